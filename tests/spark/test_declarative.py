"""The project of `examples/pipeline` runs with Spark's own `spark-pipelines`."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cursus_grpc import Producer
from cursus_grpc.testing import Broker
from tests.harness import spark as harness
from tests.spark.conftest import MakeTopic

PROJECT = Path(__file__).parents[2] / "examples" / "pipeline"


@pytest.mark.timeout(1_800)
def test_bronze_becomes_silver_and_gold(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(2)
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(
        re.sub(r"^storage: .*$", f"storage: {(tmp_path / 'storage').as_uri()}", spec.read_text(), flags=re.M)
    )
    with Producer(broker.address, acks="all") as producer:
        for number in range(10):
            order = b'{"item": "tea", "quantity": 2, "price": 1.50}' if number % 2 else b'{"item": "cake"}'
            producer.send(topic, order, key=b"ann")
        producer.send(topic, b"no order", key=b"mia")
    scripts = Path(sys.executable).parent
    env = harness.environment(tmp_path) | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "CURSUS_BROKER": broker.address,
        "ORDERS_TOPIC": topic,
    }
    tables = tmp_path / "tables"
    command = [str(scripts / "spark-pipelines"), "run", "--spec", str(spec), "--conf", "spark.ui.enabled=false"]
    command += ["--conf", f"spark.sql.warehouse.dir={tables}"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    def table(name: str) -> list[tuple[object, ...]]:
        found = spark.read.parquet(str(tables / name))
        return sorted(tuple(row) for row in found.collect())

    assert len(table("bronze_orders")) == 11
    assert len(table("silver_orders")) == 5
    assert len(table("silver_rejected")) == 6
    assert table("gold_revenue") == [("tea", 5, 10, Decimal("15.00"))]
