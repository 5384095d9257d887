"""The images really built and run, as a pod runs them: one network of their own with nothing but a loopback, not root,
no capabilities, a read-only root. `make test-images`; a machine without an engine builds the same environments in a
directory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.harness.clean_room import CleanRoom
from tests.harness.containers import Engine, why_no_engine
from tests.harness.gateway import LegacyClient
from tests.harness.processes import ServiceProcess
from tests.harness.waiting import eventually
from tools.build_images import IMAGES, Image

ROOT: Final = Path(__file__).parents[2]
TAG: Final = "test"
MAX_ADDED_BYTES: Final = 200_000_000
WAIT_S: Final = 120.0
RESTRICTED: Final = ("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pull", "never")

pytestmark = [
    pytest.mark.skipif(not os.environ.get("CURSUS_TEST_IMAGES"), reason="takes minutes; `make test-images` runs it"),
    pytest.mark.timeout(3600),
]
needs_engine = pytest.mark.skipif(why_no_engine() is not None, reason=f"{why_no_engine()}")

# What a legacy client does, with nothing but Python: run inside the network of the broker.
LEGACY_SCRIPT: Final = """
import socket
wire = socket.create_connection(("127.0.0.1", 9000)).makefile("rwb")
for command in (b"CREATE shouts 1", b"PUBLISH shouts hello over TCP", b"CONSUME shouts 0 0"):
    wire.write((2 + len(command)).to_bytes(4, "big") + b"\\0\\0" + command)
    wire.flush()
    print(wire.read(int.from_bytes(wire.read(4), "big")).decode())
"""


def _tag(image: str) -> str:
    return f"localhost/{image}:{TAG}"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    made = Engine(tmp_path_factory.mktemp("engine"))
    made.prepare()
    return made


@pytest.fixture(scope="module")
def images(engine: Engine) -> Engine:
    """The engine with all images but Spark's, built by the command behind `make images`."""
    names = [image.name for image in IMAGES if not image.spark]
    command = (sys.executable, str(ROOT / "tools/build_images.py"), "--engine", "podman", "--network", "host")
    engine.command(*command, "--tag", TAG, "--base", engine.python_base(), *names)
    return engine


@pytest.fixture
def pod(images: Engine, tmp_path: Path) -> Iterator[Engine]:
    """A broker and a gateway that share a network, as containers of a pod do."""
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, 10001, 10001)
    started: list[str] = []
    try:
        broker = ("--name", "broker", "--network", "none", "--volume", f"{data}:/var/lib/cursus")
        gateway = ("--name", "gateway", "--network", "container:broker")
        for name, arguments in (("broker", broker), ("gateway", gateway)):
            images.run("run", "--detach", *RESTRICTED, *arguments, _tag(f"cursus-{name}"))
            started.append(name)
        for name in started:
            _wait_healthy(images, name)
        yield images
    finally:
        for name in reversed(started):
            sys.stderr.write(images.run("logs", name, check=False).stderr[-4000:])
            images.run("rm", "--force", "--time", "1", name, check=False)


def _wait_healthy(engine: Engine, name: str) -> None:
    """Until the image's own health command is content: no daemon runs it here."""

    def healthy() -> bool:
        asked = engine.run("healthcheck", "run", name, check=False)
        assert asked.returncode == 0, f"{name}: {asked.stdout}{asked.stderr}"
        return True

    asyncio.run(eventually(healthy, WAIT_S))


def _cursus(engine: Engine, *arguments: str, stdin: str = "") -> str:
    """The command line's image, beside the broker."""
    return engine.run(
        *("run", "--rm", "--interactive", *RESTRICTED, "--network", "container:broker", _tag("cursus-cli")),
        *arguments,
        stdin=stdin,
    ).stdout


@needs_engine
def test_an_image_adds_less_than_200_mb_to_its_base(images: Engine) -> None:
    base = images.size_bytes(images.python_base())
    sys.stderr.write(f"\nbase {base / 1e6:.0f} MB\n")
    for image in IMAGES:
        if image.spark:
            continue
        added = images.size_bytes(_tag(image.name)) - base
        sys.stderr.write(f"{image.name} adds {added / 1e6:.0f} MB\n")
        assert 0 < added < MAX_ADDED_BYTES, image.name


@needs_engine
def test_nothing_that_builds_is_inside(images: Engine) -> None:
    look = (
        "import importlib.util, os\n"
        "places = ('/src', '/build', '/wheels', os.path.expanduser('~root/.cache'))\n"
        "print([name for name in ('pip', 'setuptools', 'hatchling') if importlib.util.find_spec(name)]"
        " + [path for path in places if os.path.exists(path)])"
    )
    for image in IMAGES:
        if not image.spark:
            shown = images.run(
                "run", "--rm", *RESTRICTED, "--network", "none", "--entrypoint", "python", _tag(image.name), "-c", look
            )
            assert shown.stdout.strip() == "[]", image.name


@needs_engine
def test_messages_go_through_the_gateway_and_both_drain_on_sigterm(pod: Engine) -> None:
    assert pod.run("exec", "broker", "id", "-u").stdout.strip() == "10001"
    assert pod.run("exec", "broker", "touch", "/opt/cursus/here", check=False).returncode != 0
    spoken = pod.run(
        *("run", "--rm", "--interactive", *RESTRICTED, "--network", "container:broker"),
        *("--entrypoint", "python", _tag("cursus-cli"), "-"),
        stdin=LEGACY_SCRIPT,
    ).stdout
    assert spoken.splitlines()[-1] == "hello over TCP"
    _cursus(pod, "publish", "shouts", "--acks", "1", stdin="".join(f"line {n}\n" for n in range(1000)))
    assert len(_cursus(pod, "consume", "shouts").splitlines()) == 1001

    for name, event in (("gateway", "gateway.stopped"), ("broker", "broker.stopped")):
        pod.run("stop", "--time", "60", name)
        assert pod.run("inspect", "--format", "{{.State.ExitCode}}", name).stdout.strip() == "0"
        assert event in pod.run("logs", name).stderr
    pod.run("start", "broker")
    _wait_healthy(pod, "broker")
    assert len(_cursus(pod, "consume", "shouts").splitlines()) == 1001


@needs_engine
def test_what_an_operator_says_wins_over_the_file_in_the_image(images: Engine) -> None:
    shown = images.run(
        *("run", "--rm", *RESTRICTED, "--network", "none", "--env", "CURSUS_LOG_LINGER_MS=7ms"),
        *(_tag("cursus-broker"), "--print-config", "--grpc-port", "1234"),
    ).stdout
    assert "data_dir: /var/lib/cursus" in shown
    assert "linger_ms: 7ms" in shown
    assert "grpc_port: 1234" in shown
    assert "host: 0.0.0.0" in shown


@needs_engine
def test_spark_reads_a_topic_in_its_image(pod: Engine) -> None:
    """On a base made of Debian's Java and Spark's Python distribution; what it adds is printed, without a bar."""
    import pyspark

    base = pod.spark_base(Path(pyspark.__file__).parent)
    command = (sys.executable, str(ROOT / "tools/build_images.py"), "--engine", "podman", "--network", "host")
    pod.command(*command, "--tag", TAG, "--spark-base", base, "cursus-spark")
    added = pod.size_bytes(_tag("cursus-spark")) - pod.size_bytes(base)
    sys.stderr.write(f"\ncursus-spark adds {added / 1e6:.0f} MB\n")
    _cursus(pod, "topic", "create", "orders", "--partitions", "2")
    _cursus(pod, "publish", "orders", stdin="".join(f"line {n}\n" for n in range(100)))
    script = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false')"
        ".config('spark.driver.host', '127.0.0.1').getOrCreate()\n"
        "found = spark.read.format('cursus').option('bootstrap.servers', '127.0.0.1:50051')"
        ".option('subscribe', 'orders').load()\n"
        "print('found', found.count())\n"
        "spark.stop()\n"
    )
    shown = pod.run(
        *("run", "--rm", "--interactive", *RESTRICTED, "--network", "container:broker", "--tmpfs", "/tmp:mode=1777"),
        *("--env", "SPARK_LOCAL_IP=127.0.0.1", "--entrypoint", "python", _tag("cursus-spark"), "-"),
        stdin=script,
    )
    assert "found 100" in shown.stdout, shown.stderr[-4000:]
    jobs = pod.run("run", "--rm", *RESTRICTED, "--network", "none", _tag("cursus-spark"), "--help").stdout
    assert jobs.startswith("Usage: cursus-pipeline")


class _FromImage(ServiceProcess):
    """A service started as its image would start it."""

    @classmethod
    def of(cls, room: CleanRoom, log: Path, *arguments: str) -> _FromImage:
        return cls((*room.entry_point(), *arguments), log, {**room.environment(), "CURSUS_HOST": "127.0.0.1"})


async def test_the_dockerfiles_commands_make_the_same_environments_in_a_directory(tmp_path: Path) -> None:
    """What a machine without an engine can show: the locks install, the wheels build, the entry points run."""
    rooms: dict[str, CleanRoom] = {}
    for image in IMAGES:
        if not image.spark:
            rooms[image.name] = await _furnish(image, tmp_path)
    free = ("--health-port", "0", "--metrics-port", "0")
    data = ("--data-dir", str(tmp_path / "data"), "--grpc-port", "0", *free)
    async with _FromImage.of(rooms["cursus-broker"], tmp_path / "broker.log", *data) as broker:
        front = ("--broker", broker.address("grpc"), "--port", "0", *free)
        async with _FromImage.of(rooms["cursus-gateway"], tmp_path / "gateway.log", *front) as gateway:
            async with LegacyClient.connect(gateway.address("tcp")) as client:
                await client.ask("CREATE shouts 1")
                await client.ask("PUBLISH shouts hello over TCP")
            room = rooms["cursus-cli"]
            read = await asyncio.to_thread(
                subprocess.run,
                [*room.entry_point(), "consume", "shouts", "--broker", broker.address("grpc")],
                env=dict(room.environment()),
                capture_output=True,
                text=True,
                timeout=WAIT_S,
            )
            assert read.stdout == "hello over TCP\n", read.stderr
            assert await gateway.terminate() == 0
        assert await broker.terminate() == 0
    assert '"event": "broker.stopped"' in (tmp_path / "broker.log").read_text()


async def _furnish(image: Image, directory: Path) -> CleanRoom:
    room = CleanRoom(image.dockerfile, ROOT, directory / image.name)
    await asyncio.to_thread(room.build)
    return room
