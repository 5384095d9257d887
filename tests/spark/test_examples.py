"""The examples run as they are, and show what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cursus_grpc.testing import Broker
from tests.harness import spark as harness

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(1_800)
def test_orders_with_spark(broker: Broker, tmp_path: Path) -> None:
    env = harness.environment(tmp_path) | {"CURSUS_BROKER": broker.address, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(_EXAMPLES / "orders_with_spark.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 micro-batches with orders" in done.stdout
    # Ten minutes of orders, the last at 9:59.4. The watermark stands at 7:59.4: seven whole minutes are past.
    told = re.search(r"^(\d+) results, (\d+) orders, revenue ([\d.]+)$", done.stdout, re.MULTILINE)
    assert told is not None, done.stdout
    in_seven = range(700)
    assert (int(told[1]), int(told[2])) == (7 * 3, len(in_seven))
    assert float(told[3]) == sum(number % 50 + 0.5 for number in in_seven)
