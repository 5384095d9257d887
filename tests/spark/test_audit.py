"""The audit finds what is wrong with a log, all of it and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cursus_grpc import BEGINNING, END, Admin, Producer
from cursus_grpc.testing import Broker
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_spark.offsets import OffsetRange
from cursus_spark.options import Endpoint
from cursus_spark.pipeline.audit import checks
from cursus_spark.pipeline.audit.batches import SCHEMA, batches
from cursus_spark.pipeline.audit.examination import Question, examine
from cursus_spark.pipeline.audit.findings import CHECKS, Finding, Severity
from cursus_spark.pipeline.audit.report import Audit, page
from cursus_spark.pipeline.audit.scope import PIECE, find_scope
from cursus_spark.pipeline.job import FOUND
from cursus_spark.planning import ask
from tests.harness import spark as harness
from tests.harness.clients import Client, publish_request
from tests.harness.damage import Stored, rewrite_log

pytestmark = pytest.mark.timeout(1_800)

_HOUR_MS = 3_600_000
_SEVERITIES = {name: check.default for name, check in CHECKS.items()}


def audited(spark: SparkSession, address: str, topic: str) -> Audit:
    scope = ask(Endpoint(address), lambda admin: find_scope(admin, topic, BEGINNING, END, ()))
    return examine(spark, {"bootstrap.servers": address}, Question(scope, 30 * 60_000, _SEVERITIES))


def found(audit: Audit) -> dict[str, int]:
    return {one.check.name: one.count for one in audit.findings}


def one(audit: Audit, check: str) -> Finding:
    return next(finding for finding in audit.findings if finding.check.name == check)


async def publish(
    address: str, topic: str, partition: int, batches: list[list[bytes]], producer_id: bytes | None = None
) -> None:
    """Batches of nobody, or of a producer, each of them by itself."""
    async with Client.connect(address) as client:
        sequence = 0
        for values in batches:
            wanted = publish_request(topic, values, partition, publish_pb.ACKS_ALL)
            if producer_id is not None:
                wanted.producer.CopyFrom(publish_pb.ProducerIdentity(id=producer_id, epoch=1, first_sequence=sequence))
            else:
                wanted.deduplication = publish_pb.DEDUPLICATION_NONE
            await client.publishing.Publish(wanted)
            sequence += len(values)


def tens(count: int) -> list[list[bytes]]:
    return [[b"%d" % number for number in range(begin, begin + 10)] for begin in range(0, count * 10, 10)]


def out_of_order(entries: list[Stored]) -> list[Stored]:
    """The second batch twice, the third not at all, the last two exchanged, and the last one stored an hour before."""
    changed = []
    for slot, source in zip(entries, (0, 1, 1, 3, 5, 4), strict=True):
        header, payload = entries[source]
        at = slot[0].append_time_ms
        changed.append((header._replace(base_offset=slot[0].base_offset, append_time_ms=at), payload))
    last, payload = changed[-1]
    return [*changed[:-1], (last._replace(append_time_ms=last.append_time_ms - _HOUR_MS), payload)]


def later_from_fourth(entries: list[Stored]) -> list[Stored]:
    """The fourth batch and those behind it were stored two hours later."""
    return [
        *entries[:3],
        *(
            (header._replace(append_time_ms=header.append_time_ms + 2 * _HOUR_MS), payload)
            for header, payload in entries[3:]
        ),
    ]


def without_second(entries: list[Stored]) -> list[Stored]:
    return [entries[0], *entries[2:]]


def of_one_producer(entries: list[Stored]) -> list[Stored]:
    """Two producers had one identity, which no broker lets them have."""
    return [(header._replace(producer_id=b"<b>"), payload) for header, payload in entries]


@pytest.fixture(scope="module")
def seeded() -> Iterator[Broker]:
    """A broker whose topics have something wrong with them."""
    with Broker() as broker:
        with Admin(broker.address) as admin:
            for topic, partitions in (("ordered", 1), ("content", 1), ("holed", 3), ("reused", 1)):
                admin.create_topic(topic, partitions)
            asyncio.run(publish(broker.address, "ordered", 0, tens(6), producer_id=b"maker"))
            asyncio.run(publish(broker.address, "content", 0, [[b"x"], [b"y"], [b"x"], [b"x"], [b"y"] * 3]))
            for partition in range(3):
                asyncio.run(publish(broker.address, "holed", partition, tens(5)))
            asyncio.run(publish(broker.address, "reused", 0, tens(2), producer_id=b"<b>"))
            asyncio.run(publish(broker.address, "reused", 0, [tens(1)[0], [b"other"] * 10], producer_id=b"<c>"))
        broker.stop()
        rewrite_log(broker.data_dir, "ordered", out_of_order)
        rewrite_log(broker.data_dir, "content", later_from_fourth)
        rewrite_log(broker.data_dir, "reused", of_one_producer)
        rewrite_log(broker.data_dir, "holed", without_second)
        rewrite_log(broker.data_dir, "holed", without_second, partition=1, index=False)
        broker.start()
        yield broker


def test_what_is_twice_missing_and_out_of_order_is_found(spark: SparkSession, seeded: Broker) -> None:
    audit = audited(spark, seeded.address, "ordered")
    assert found(audit) == {
        "sequence-duplicates": 10,
        "sequence-gaps": 10,
        "sequence-order": 10,
        "append-order": 10,
    }
    assert [one.text for one in one(audit, "sequence-duplicates").examples] == [
        "sequences 10 to 19 of maker in epoch 1 also at offset 10"
    ]
    assert [one.text for one in one(audit, "sequence-gaps").examples] == [
        "sequences 20 to 29 of maker in epoch 1 missing before this"
    ]
    assert [one.offset for one in one(audit, "sequence-order").examples] == [40]
    assert [one.offset for one in one(audit, "append-order").examples] == [50]
    assert len(audit.violations) == 4


def test_equal_records_of_nobody_are_told_by_the_time_between_them(spark: SparkSession, seeded: Broker) -> None:
    audit = audited(spark, seeded.address, "content")
    assert found(audit) == {"content-duplicates": 1, "content-repeats": 1}
    assert [finding.severity for finding in audit.findings] == [Severity.VIOLATION, Severity.NOTE]
    assert [(one.offset, one.text[:10]) for one in one(audit, "content-repeats").examples] == [(3, "equal to o")]


def test_batches_that_are_gone_are_found_and_the_rest_is_audited(spark: SparkSession, seeded: Broker) -> None:
    """In one partition the broker meets the hole when it reads, in another when it opens the log."""
    audit = audited(spark, seeded.address, "holed")
    unreadable = one(audit, "unreadable")
    assert unreadable.by_partition == {0: 10, 1: 0}
    first, second = unreadable.examples
    assert first.text.startswith("offsets 10 to 19: ")
    assert second.text.startswith("the broker does not serve the partition: ")
    assert {one.partition: one.records for one in audit.partitions} == {0: 40, 2: 50}
    assert set(found(audit)) == {"unreadable"}


def test_an_identity_that_was_used_twice_is_found_and_escaped(spark: SparkSession, seeded: Broker) -> None:
    audit = audited(spark, seeded.address, "reused")
    assert found(audit) == {"sequence-duplicates": 10, "sequence-conflicts": 10}
    html = page(audit)
    assert "of &lt;b&gt; in epoch 1" in html
    assert "<b> in epoch" not in html


def rows_without(spark: SparkSession, missing: set[int]) -> DataFrame:
    """Three batches of ten records each, without some: as no broker hands them out."""
    rows = spark.range(30).where(f"id NOT IN ({', '.join(map(str, missing))})")
    columns = {
        "partition": "7",
        "offset": "id",
        "batch_offset": "id - id % 10",
        "append_time": "timestamp_millis(1000 + id - id % 10)",
        "timestamp": "timestamp_millis(1000)",
        "timestampType": "1",
    }
    fields = [field.split(" ", 1) for field in SCHEMA.split(", ")]
    return rows.selectExpr(
        *(f"CAST({columns.get(name.strip('`'), 'NULL')} AS {kind}) AS {name}" for name, kind in fields), f"0 AS {PIECE}"
    )


def test_offsets_that_are_missing_anywhere_are_found(spark: SparkSession) -> None:
    missing = {0, 1, *range(10, 20), 25, 28, 29}
    hits = checks.offset_gaps(batches(rows_without(spark, missing)), [[OffsetRange("t", 7, 0, 30)]])
    (finding,) = checks.judge([hits], (), _SEVERITIES)
    assert (finding.count, finding.by_partition) == (len(missing), {7: len(missing)})
    assert [one.text for one in finding.examples] == [
        "offsets 0 to 1 missing",
        "offsets 10 to 19 missing",
        "1 of the offsets 20 to 27 missing",
        "offsets 28 to 29 missing",
    ]


def test_the_command_finds_nothing_in_a_clean_log(tmp_path: Path, broker: Broker, admin: Admin) -> None:
    """Numbered and anonymous producers, times that go back, records deleted from the front, other partitions empty."""
    topic = "clean-audit"
    admin.create_topic(topic, 3)
    now = int(time.time() * 1_000)
    for _ in range(2):
        with Producer(broker.address, acks="all") as producer:
            for number in range(1_000):
                stated = now - number % 7 * 1_000 if number % 2 else None
                producer.send(topic, b"%d" % (number % 10), partition=number % 2, timestamp_ms=stated)
    asyncio.run(publish(broker.address, topic, 0, [[b"equal", b"equal"]] * 2))
    admin.delete_records(topic, {0: 100})
    report = tmp_path / "audit.html"
    command = [sys.executable, "-m", "cursus_spark.pipeline", "audit", "--topic", topic, "--report", str(report)]
    env = harness.environment(tmp_path) | {"CURSUS_BROKER": broker.address}
    done = subprocess.run(
        [*command, "-o", "json", "--master", "local[2]"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["complete"]
    assert told["records"] == 2_000 + 4 - 100
    assert [(one["check"], one["severity"]) for one in told["findings"]] == [("timestamp-order", "note")]
    assert [one["start_offset"] for one in told["partitions"]] == [100, 0, 0]
    html = report.read_text()
    assert html.count("<svg") == 4
    assert "Complete: no violation" in html
    assert not any(word in html for word in ("http://", "https://", "<script", "<link"))


def test_the_command_ends_with_3_on_a_violation(tmp_path: Path, broker: Broker, admin: Admin) -> None:
    topic = "unclean-audit"
    admin.create_topic(topic, 1)
    asyncio.run(publish(broker.address, topic, 0, [[b"x"], [b"x"]]))
    env = harness.environment(tmp_path) | {"CURSUS_BROKER": broker.address}
    command = [sys.executable, "-m", "cursus_spark.pipeline", "audit", "--topic", topic, "--master", "local[1]"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == FOUND, done.stderr
    assert (
        "violation: Equal anonymous records within the window: 1 record, partition 0 (content-duplicates)"
        in done.stdout
    )
    assert done.stdout.endswith(f"{topic} is not sound: 1 kind of violations\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "nowhere"], "topic 'nowhere' does not exist"),
        (["--topic", "t", "--window", "soon"], "'soon' is not a time span"),
        (["--topic", "t", "--check", "colour=note"], "there is no check 'colour'"),
        (["--topic", "t", "--check", "offset-gaps=bad"], "'offset-gaps=bad' is not offset-gaps=violation"),
        (["--topic", "t", "--from", "never"], "'never' is no place in a log"),
        (["--topic", "t", "--report", "no/where.html"], "there is no directory no"),
    ],
)
def test_what_makes_no_sense_is_refused_without_spark(broker: Broker, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "cursus_spark.pipeline", "audit", *arguments]
    env = {**os.environ, "CURSUS_BROKER": broker.address}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "starting Spark" not in done.stderr
