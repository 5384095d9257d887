"""What the README, docs/spark.md and docs/pipeline.md tell people to paste works when it is pasted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cursus_grpc import Producer
from cursus_grpc.testing import Broker
from tests.harness import spark as harness
from tests.harness.documents import blocks, section


def paste(script: str, broker: Broker, directory: Path) -> str:
    env = harness.environment(directory) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "CURSUS_BROKER": broker.address,
    }
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, env=env, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(1_800)
def test_the_tours_can_be_pasted(tmp_path: Path) -> None:
    readme = blocks(section("README.md", "## A tour in five minutes"), "sh")[3]
    setup, _, job = readme.partition("\n")
    assert setup.startswith("make setup "), "which is done: the tests run in what it made"
    (tour,) = blocks(section("docs/spark.md", "## A tour"), "sh")
    with Broker() as broker:
        paste("cursus topic create orders --partitions 1", broker, tmp_path)
        with Producer(broker.address, acks="all") as producer:
            for drink in (b"tea", b"cake"):
                producer.send("orders", drink, key=b"ann").result()
        assert re.search(r"^\| +ann\| +2\|$", paste(job, broker, tmp_path), re.MULTILINE)
        shown = paste(tour.replace('export PATH="$PWD/.venv/bin:$PATH"\n', ""), broker, tmp_path)
        assert sum(map(int, re.findall(r"^\| +\d\| +(\d+)\| +\d+\|$", shown, re.MULTILINE))) == 1_000


@pytest.mark.timeout(1_800)
def test_the_tour_of_the_jobs_can_be_pasted(tmp_path: Path) -> None:
    (tour,) = blocks(section("docs/pipeline.md", "## A tour"), "sh")
    with Broker() as broker:
        shown = paste(tour.replace('export PATH="$PWD/.venv/bin:$PATH"\n', ""), broker, tmp_path)
    assert "archived 1,000 records of " in shown
    assert "1000 visits in the lake" in shown
    assert "visits-again has 1,000 records more" in shown
    assert "everything was there already; nothing was stored" in shown
