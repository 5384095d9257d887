"""Rollups hold what plain Python computes, whatever comes late, cannot be read or is done again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cursus_grpc import Admin, Producer
from cursus_grpc.testing import Broker
from cursus_spark.pipeline.progress import follow
from cursus_spark.pipeline.rollup.command import Totals, start
from cursus_spark.pipeline.rollup.outputs import Outputs
from cursus_spark.pipeline.rollup.windows import JsonField, Rollup
from tests.harness import spark as harness
from tests.spark.conftest import MakeTopic, Read
from tests.spark.test_stream_write import forget_last_batch

pytestmark = pytest.mark.timeout(1_800)

_MINUTE_MS = 60_000
_BASE_MS = 1_767_323_040_000
"""A full minute."""

Event = tuple[int, str, float]
"""Milliseconds after the base, shop and amount."""


def send(broker: Broker, topic: str, events: Iterable[Event | bytes], partition: int = 0) -> None:
    with Producer(broker.address, acks="all") as producer:
        for event in events:
            if isinstance(event, bytes):
                producer.send(topic, event, timestamp_ms=_BASE_MS, partition=partition)
            else:
                at, shop, amount = event
                value = json.dumps({"shop": shop, "amount": amount}).encode()
                producer.send(topic, value, key=shop, timestamp_ms=_BASE_MS + at, partition=partition)


def close_windows(broker: Broker, topic: str, at: int, partition: int = 0) -> None:
    """A record far ahead, which moves the watermark."""
    send(broker, topic, [(at, "closing", 0.0)], partition)


def computed(events: Iterable[Event], window_ms: int, slide_ms: int) -> dict[tuple[str, int], list[float]]:
    windows: dict[tuple[str, int], list[float]] = defaultdict(list)
    for at, shop, amount in events:
        begin = at - at % slide_ms
        while begin > at - window_ms:
            windows[shop, begin].append(amount)
            begin -= slide_ms
    return dict(windows)


class Rolling:
    """A rollup of a topic, run as often as a test likes."""

    def __init__(self, spark: SparkSession, broker: Broker, topic: str, directory: Path, to: str | None) -> None:
        self._spark = spark
        self._topic = topic
        self._options = {"bootstrap.servers": broker.address}
        self._to = to
        self.checkpoint = str(directory / "checkpoint")
        self.lake = str(directory / "lake")

    def run(self, asked: Rollup, *, lake: bool = True, **source: str) -> tuple[Totals, int]:
        """Everything that is there now. What was seen, and how many results were stored."""
        outputs = Outputs(self._options, self._to, self.lake if lake else None, self.checkpoint)
        totals = Totals()
        options = {"subscribe": self._topic, "startingOffsets": "earliest", **source}
        query = start(self._spark, options, asked, outputs, available_now=True)
        assert follow(query, totals.describe)
        return totals, outputs.results

    def in_lake(self) -> list[dict[str, Any]]:
        return [row.asDict() for row in self._spark.read.parquet(self.lake).collect()]


def by_amount(window_ms: int = _MINUTE_MS, slide_ms: int = _MINUTE_MS, watermark_ms: int = 0) -> Rollup:
    by, measure = JsonField("$.shop"), JsonField("$.amount")
    return Rollup(window_ms, slide_ms, watermark_ms, by, measure, (50, 95))


def published(read: Read, topic: str) -> list[dict[str, Any]]:
    return [json.loads(row["value"]) for row in read(topic).orderBy("offset").collect()]


def begin_of(result: dict[str, Any]) -> int:
    return int(datetime.fromisoformat(result["start"]).timestamp() * 1_000) - _BASE_MS


def test_results_are_those_of_plain_python_in_topic_and_lake(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, read: Read, tmp_path: Path
) -> None:
    source, target = make_topic(2), make_topic(1)
    events = [(number * 977 % 200_000, f"shop-{number % 5}", float(number % 37)) for number in range(2_000)]
    send(broker, source, events[:1_000])
    send(broker, source, events[1_000:], partition=1)
    rolling = Rolling(spark, broker, source, tmp_path, target)
    asked = by_amount(window_ms=2 * _MINUTE_MS, slide_ms=_MINUTE_MS, watermark_ms=10 * _MINUTE_MS)
    rolling.run(asked)
    close_windows(broker, source, 3_600_000)
    rolling.run(asked)
    wanted = computed(events, 2 * _MINUTE_MS, _MINUTE_MS)
    results = {(one["by"], begin_of(one)): one for one in published(read, target)}
    assert results.keys() == wanted.keys()
    for place, amounts in wanted.items():
        one = results[place]
        ordered = sorted(amounts)
        assert (one["count"], one["measured"], one["sum"]) == (len(amounts), len(amounts), sum(amounts))
        assert (one["min"], one["max"]) == (ordered[0], ordered[-1])
        assert one["p50"] == ordered[-(-len(ordered) * 50 // 100) - 1]
        assert one["p95"] == ordered[-(-len(ordered) * 95 // 100) - 1]
    rows = rolling.in_lake()
    assert len(rows) == len(wanted)
    assert sorted((row["by"], row["count"], row["sum"]) for row in rows) == sorted(
        (one["by"], one["count"], one["sum"]) for one in results.values()
    )
    keys = [json.loads(row["key"]) for row in read(target).collect()]
    assert len({(key["by"], key["start"]) for key in keys}) == len(wanted)


def test_what_is_late_or_cannot_be_read_is_counted(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, read: Read, tmp_path: Path
) -> None:
    source, target = make_topic(1), make_topic(1)
    rolling = Rolling(spark, broker, source, tmp_path, target)
    send(broker, source, [(0, "a", 1.0), (10, "a", 2.0), b"no JSON", b"\xff\xfe", b'{"shop": null}', b'{"shop": "a"}'])
    close_windows(broker, source, 10 * _MINUTE_MS)
    totals, _ = rolling.run(by_amount())
    assert (totals.records, totals.unparsed, totals.ungrouped, totals.unmeasured, totals.late) == (7, 2, 1, 1, 0)
    send(broker, source, [(20, "a", 4.0)])
    totals, _ = rolling.run(by_amount())
    assert (totals.records, totals.late) == (1, 1)
    (result,) = [one for one in published(read, target) if one["by"] == "a"]
    assert (result["count"], result["measured"], result["sum"]) == (3, 2, 3.0)


@pytest.mark.parametrize("lake", [True, False], ids=["with a lake", "without"])
def test_a_batch_that_is_done_again_stores_its_results_once(
    spark: SparkSession, broker: Broker, admin: Admin, make_topic: MakeTopic, read: Read, tmp_path: Path, lake: bool
) -> None:
    """The driver dies before Spark notes the batch, once before and once after the sink has noted it."""
    source, target = make_topic(1), make_topic(3)
    rolling = Rolling(spark, broker, source, tmp_path, target)
    events = [(number * 1_000, f"shop-{number % 3}", number / 7) for number in range(600)]
    send(broker, source, events)
    close_windows(broker, source, 3_600_000)
    _, stored = rolling.run(by_amount(), lake=lake)
    assert stored
    first = sorted(json.dumps(one) for one in published(read, target))
    assert len(first) == len(computed(events, _MINUTE_MS, _MINUTE_MS))
    for forget in (False, True):
        forget_last_batch(rolling.checkpoint)
        if forget:
            for group in [
                one.name for one in admin.list_groups() if one.name.startswith("cursus-spark-sink/txn/rollup")
            ]:
                if any(place.topic == target for place in admin.fetch_offsets(group)):
                    admin.delete_group(group)
        rolling.run(by_amount(), lake=lake)
        assert sorted(json.dumps(one) for one in published(read, target)) == first
    if lake:
        assert len(rolling.in_lake()) == len(first)


def test_keys_are_groups_too(
    spark: SparkSession, broker: Broker, make_topic: MakeTopic, read: Read, tmp_path: Path
) -> None:
    source, target = make_topic(1), make_topic(1)
    with Producer(broker.address, acks="all") as producer:
        for key in (b"a", b"a", b"\xff", None):
            producer.send(source, b"not JSON", key=key, timestamp_ms=_BASE_MS, partition=0)
    close_windows(broker, source, 10 * _MINUTE_MS)
    rolling = Rolling(spark, broker, source, tmp_path, target)
    rolling.run(Rollup(_MINUTE_MS, _MINUTE_MS, 0, None, None, ()), lake=False)
    assert {one["by"]: one["count"] for one in published(read, target)} == {"a": 2, "base64:/w==": 1, None: 1}


def test_the_command_rolls_up(broker: Broker, make_topic: MakeTopic, read: Read, tmp_path: Path) -> None:
    source, target = make_topic(1), make_topic(1)
    send(broker, source, [(0, "a", 1.5), (1, "b", 2.0), (2, "a", 1.0)])
    close_windows(broker, source, _MINUTE_MS * 30)
    command = [sys.executable, "-m", "cursus_spark.pipeline", "rollup", "--topic", source, "--window", "1m"]
    command += ["--by", "json:$.shop", "--measure", "json:$.amount", "--to", target, "--available-now"]
    command += ["--checkpoint", str(tmp_path / "checkpoint"), "--master", "local[2]", "-o", "json"]
    env = harness.environment(tmp_path) | {"CURSUS_BROKER": broker.address}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["finished"], told["records"], told["results"]) == (True, 4, 2)
    assert {one["by"]: one["sum"] for one in published(read, target)} == {"a": 2.5, "b": 2.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name where the results go: --to, --lake or both"),
        (["--to", "t"], "--to is the topic that is read"),
        (["--lake", "l", "--slide", "2m"], "--slide has to be above 0 and at most --window"),
        (["--lake", "l", "--by", "field"], "'field' is not a field of JSON values"),
        (["--lake", "l", "--percentiles", "50,200"], "'50,200' is not a list of whole numbers from 0 to 100"),
        (["--lake", "l"], "topic 't' does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused(broker: Broker, arguments: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cursus_spark.pipeline", "rollup", "--topic", "t", "--window", "1m", "--by", "key"]
    command += ["--checkpoint", str(tmp_path), *arguments]
    env = harness.environment(tmp_path) | {"CURSUS_BROKER": broker.address}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "starting Spark" not in done.stderr
