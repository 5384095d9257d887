"""docs/clients.md, which people write clients by, says what the broker does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cursus_broker.rpc.status import CODES
from cursus_grpc.errors import REASONS
from cursus_proto.partitioner import key_hash, partition_for_key
from cursus_proto.records import checksum
from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.records_pb2 import Record, RecordSet

TEXT = (Path(__file__).parents[3] / "docs" / "clients.md").read_text(encoding="utf-8")
ROWS = {row[1]: (row[2], row[3]) for row in re.finditer(r"^\| `([A-Z_]+)` \| ([A-Z_]+) \| (yes|no) \| \S", TEXT, re.M)}
STATUSES = {kind.reason: status.name for kind, status in CODES.items()} | {"INTERNAL": "INTERNAL"}


@pytest.mark.parametrize("reason", STATUSES)
def test_every_reason_is_in_the_table_with_its_status_and_whether_to_try_again(reason: str) -> None:
    again = "yes" if REASONS[reason].retriable else "no"
    assert ROWS.get(reason) == (STATUSES[reason], again)


def test_whatever_is_unavailable_passes_as_the_rule_says() -> None:
    assert [reason for reason, (status, again) in ROWS.items() if status == "UNAVAILABLE" and again == "no"] == []


def test_the_worked_example_of_a_record_set_is_right() -> None:
    packed = RecordSet(records=[Record(key=b"ann", value=b"tea"), Record(value=b"")]).SerializeToString()
    block = re.search(r"^```\n(0a .*?)^```", TEXT, re.M | re.S)
    assert block
    shown = "".join(re.findall(r"\b[0-9a-f]{2}\b(?= |$)", "\n".join(line[:26] for line in block[1].splitlines()), re.M))
    assert bytes.fromhex(shown) == packed
    assert f"these {len(packed)} bytes" in TEXT
    assert f"`{checksum(packed):08x}`" in TEXT


@pytest.mark.parametrize("key", ["ann", "mia"])
def test_the_worked_examples_of_routing_are_right(key: str) -> None:
    told = re.search(rf"`{key}` has (?:the hash )?`([0-9a-f]{{16}})`[^;.]*?(\d)[;.]", " ".join(TEXT.split()))
    assert told
    assert int(told[1], 16) == key_hash(key.encode())
    assert int(told[2]) == partition_for_key(key.encode(), 4)


def test_every_call_that_is_named_exists() -> None:
    section = TEXT[TEXT.index("## Which call for what") : TEXT.index("## The connection")]
    named = set(re.findall(r"`([A-Z][a-zA-Z]+)`", section))
    services = [
        service
        for module in (cluster_pb, consume_pb, group_pb, publish_pb, topic_pb)
        for service in module.DESCRIPTOR.services_by_name.values()
    ]
    known = {service.name for service in services} | {method.name for one in services for method in one.methods}
    assert named
    assert named <= known
