"""Jobs on a standalone cluster, whose executors have none of our packages but those a job ships."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cursus_grpc import END, Admin, Consumer, Producer
from cursus_grpc.testing import Broker
from tests.harness import spark as harness
from tests.harness import spark_cluster
from tests.harness.spark_cluster import Cluster, JvmProcess
from tests.spark.conftest import MakeTopic

pytestmark = pytest.mark.timeout(1_800)

HERE = Path(__file__).parent
ARCHIVE = "environment.tar.gz"
SHIPPED = ("--archives", f"{ARCHIVE}#environment")
PARTITIONS = 2
ROWS = 80_000
HOLD_AT = 30_000


@dataclass(frozen=True, slots=True)
class Site:
    """Where jobs are submitted: a running cluster, and a directory with the archive, packed and unpacked."""

    cluster: Cluster
    directory: Path

    def submit(
        self, name: str, *arguments: str, python: str = "./environment/bin/python", **settings: str
    ) -> JvmProcess:
        """`arguments` are further flags of spark-submit, then the program's path and its own."""
        every = {**harness.CONFIGURATION, **spark_cluster.CONFIGURATION, **settings}
        every["spark.sql.warehouse.dir"] = str(self.directory / "warehouse")
        command = [str(spark_cluster.SPARK_HOME / "bin" / "spark-submit"), "--master", self.cluster.url]
        command += [word for one in every.items() for word in ("--conf", "=".join(one))]
        env = spark_cluster.environment(self.directory) | {"PYSPARK_PYTHON": python}
        return JvmProcess([*command, *arguments], self.directory / f"{name}.log", env, self.directory)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH whose Python is of the right version and has no packages."""
    directory = tmp_path_factory.mktemp("bare")
    # Not from our environment: its packages would come along.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    path = os.pathsep.join([str(directory / "bin"), os.environ["PATH"]])
    packages = ("cursus_spark", "cursus_grpc", "pyarrow", "numpy", "grpc")
    look = f"import importlib.util as u, sys; sys.exit(any(map(u.find_spec, {packages})))"
    subprocess.run(["python3", "-c", look], env={"PATH": path}, check=True)
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, bare: str) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("cluster")
    archive = directory / ARCHIVE
    subprocess.run([sys.executable, "-m", "cursus_spark.pipeline", "package", str(archive)], check=True)
    with tarfile.open(archive) as opened:
        opened.extractall(directory / "environment", filter="data")
    with spark_cluster.running(directory, bare) as cluster:
        yield Site(cluster, directory)


def fill(broker: Broker, topic: str, rows: int) -> None:
    with Producer(broker.address, acks="all") as producer:
        for number in range(rows):
            producer.send(topic, b"%d" % number, key=b"%d" % (number % 100), partition=number % PARTITIONS)


def values(broker: Broker, topic: str) -> list[int]:
    with Consumer(broker.address) as consumer:
        return sorted(
            int(record.value or b"") for partition in range(PARTITIONS) for record in consumer.range(topic, partition)
        )


def stored(admin: Admin, topic: str) -> int:
    return sum(found.offset for found in admin.list_offsets(topic, END).values())


def test_copies_are_exact_though_executors_are_killed(
    broker: Broker, admin: Admin, make_topic: MakeTopic, site: Site, tmp_path: Path
) -> None:
    source = make_topic(PARTITIONS)
    targets = {"batch": make_topic(PARTITIONS), "stream": make_topic(PARTITIONS)}
    fill(broker, source, ROWS)
    arguments = ["--broker", broker.address, "--source", source, "--directory", str(tmp_path)]
    arguments += ["--hold-at", str(HOLD_AT)]
    for way, target in targets.items():
        (tmp_path / way).mkdir()
        arguments += [f"--{way}", target]

    def note(way: str, attempt: str) -> dict[str, str]:
        found: dict[str, str] = json.loads((tmp_path / way / attempt).read_text())
        return found

    def kill_in_the_middle(job: JvmProcess, way: str, target: str) -> None:
        # More than one task has: so both have begun, and the first will not end.
        job.until(lambda: stored(admin, target) > ROWS // PARTITIONS)
        held = Path(note(way, "0-0-0")["directory"])
        (executor,) = [one for one in site.cluster.executors() if one.directory == held]
        assert stored(admin, target) < ROWS
        os.kill(executor.pid, signal.SIGKILL)

    with site.submit("copy", *SHIPPED, str(HERE / "cluster_copy.py"), *arguments) as job:
        for way, target in targets.items():
            kill_in_the_middle(job, way, target)
        assert job.ended() == 0, job.log
    for way, target in targets.items():
        assert values(broker, target) == list(range(ROWS))
        first, other, again = (note(way, attempt) for attempt in ("0-0-0", "0-1-0", "0-0-1"))
        assert {worker(first), worker(other)} == {"worker-0", "worker-1"}
        assert first["directory"] != again["directory"]
        for one in (first, other, again):
            assert Path(one["packages"]).is_relative_to(one["directory"]), "the packages are not those of the archive"


def worker(note: dict[str, str]) -> str:
    """Whose executor left this: it works in the directory WORKER/APPLICATION/ID."""
    return Path(note["directory"]).parents[1].name


def test_connect_clients_need_nothing_of_ours(
    broker: Broker, make_topic: MakeTopic, site: Site, tmp_path: Path
) -> None:
    source, written, streamed = (make_topic(PARTITIONS) for _ in range(3))
    fill(broker, source, 100)
    # Installed on all machines: Spark starts Python now in the session's directory, now in the executor's, so that no
    # relative path leads to an archive.
    server = site.submit(
        "connect",
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
        python=sys.executable,
        **{"spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": "0"},
    )
    with server:
        port = server.said(r"Spark Connect server started at: \S+:(\d+)")[1]
        command = [sys.executable, str(HERE / "connect_client.py"), "--remote", f"sc://127.0.0.1:{port}"]
        command += ["--broker", broker.address, "--source", source, "--written", written, "--streamed", streamed]
        command += ["--checkpoint", str(tmp_path / "checkpoint")]
        done = subprocess.run(
            command, env=spark_cluster.environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr + server.log
    found = json.loads(done.stdout)
    assert found["read"] == list(range(100))
    assert found["total"] == sum(range(100))
    # In small letters, as Connect hands options over.
    assert "option `minpartition`: unknown; did you mean `minPartitions`?" in found["refused"]
    assert found["imported"] == []
    assert values(broker, written) == values(broker, streamed) == list(range(100))
