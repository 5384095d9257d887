"""Lists in requests are bounded, all of them, before they are parsed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.errors import RequestTooLarge, TooManyItems
from cursus_broker.rpc import lists, server
from cursus_proto.bounds import MAX_NAMED
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.records import varint
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from tests.harness.memory import MIB

MOST_BYTES = 4 * MIB
MOST_RECORDS = 1_000


def lists_in(message: Descriptor, seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, FieldDescriptor]]:
    """Every list a request can hold, at any depth, with the message it stands in."""
    for field in message.fields:
        if field.is_repeated:
            yield f"{message.name}.{field.name}", field
        if field.message_type is not None and field.message_type.full_name not in seen:
            yield from lists_in(field.message_type, seen | {field.message_type.full_name})


ALL_SERVICES: tuple[Any, ...] = (
    *server.SERVICES,
    *health_pb2.DESCRIPTOR.services_by_name.values(),
    *reflection_pb2.DESCRIPTOR.services_by_name.values(),
)
REQUESTS: list[Descriptor] = [method.input_type for service in ALL_SERVICES for method in service.methods]
LISTS = {name for request in REQUESTS for name, _ in lists_in(request)}


def test_every_list_of_every_request_has_a_bound_and_every_bound_a_list() -> None:
    assert set(lists.BOUNDS) == LISTS


def test_no_bound_for_partitions_is_below_what_a_topic_may_have() -> None:
    for name, bound in lists.BOUNDS.items():
        if name.partition(".")[2] in ("partitions", "offsets", "resets", "topics"):
            assert bound.most == MAX_NAMED == 10_000


def test_the_table_in_the_docs_is_the_table() -> None:
    text = (Path(__file__).parents[4] / "docs" / "limits.md").read_text()
    shown = re.findall(r"^\| `(\w+\.\w+)` \| (?:([\d,]+)|`publish.max_batch_records`) \| (.*) \|$", text, re.MULTILINE)
    assert {name: (int(most.replace(",", "")) if most else None, why) for name, most, why in shown} == {
        name: (bound.most, bound.why) for name, bound in lists.BOUNDS.items()
    }


def decoder(view: type[Any]) -> Any:
    return lists.decoder(view, MOST_BYTES, MOST_RECORDS)


def entries(field: FieldDescriptor, count: int) -> list[bytes]:
    """A list of so many entries, as short as they can be, in each encoding that parsers take."""
    tag = field.number << 3
    if field.type in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
        return [(varint(tag | 2) + b"\0") * count]
    return [varint(tag | 2) + varint(count) + bytes(count), (varint(tag) + b"\0") * count]


@pytest.mark.parametrize(
    "name", sorted(name for name, bound in lists.BOUNDS.items() if name not in ("RecordSet.records", "Record.headers"))
)
def test_a_list_is_taken_up_to_its_bound_and_refused_beyond_wherever_it_stands(name: str) -> None:
    found = 0
    most = lists.BOUNDS[name].most or MOST_RECORDS
    for request in {request.full_name: request for request in REQUESTS}.values():
        view: Any = server.OPAQUE_REQUESTS.get(request.full_name) or GetMessageClass(request)
        for before, field in places(view.DESCRIPTOR, name):
            for encoded in entries(field, most):
                decoder(view)(nested(before, encoded))
            for encoded in entries(field, most + 1):
                with pytest.raises(TooManyItems) as refused:
                    decoder(view)(nested(before, encoded))
                assert refused.value.metadata == {"field": name, "limit": str(most)}
            found += 1
    assert found


def places(message: Descriptor, name: str, before: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    for field in message.fields:
        if f"{message.name}.{field.name}" == name:
            yield before, field
        elif field.message_type is not None and not field.is_repeated:
            yield from places(field.message_type, name, (*before, field.number))


def nested(numbers: tuple[int, ...], encoded: bytes) -> bytes:
    for number in reversed(numbers):
        encoded = varint(number << 3 | 2) + varint(len(encoded)) + encoded
    return encoded


def test_a_message_in_several_parts_is_one_message_and_its_lists_add_up() -> None:
    half = nested((2,), entries(topic_pb.TopicConfig.DESCRIPTOR.fields_by_name["labels"], 65)[0])
    decode = decoder(topic_pb.UpdateTopicRequest)
    decode(half)
    with pytest.raises(TooManyItems, match=r"TopicConfig\.labels"):
        decode(half + half)


def test_a_list_that_comes_packed_and_loose_adds_up() -> None:
    packed, loose = entries(topic_pb.ListOffsetsRequest.DESCRIPTOR.fields_by_name["partitions"], 5_001)
    assert len(decoder(topic_pb.ListOffsetsRequest)(packed).partitions) == 5_001
    with pytest.raises(TooManyItems):
        decoder(topic_pb.ListOffsetsRequest)(packed + loose)


def test_numbers_of_several_bytes_are_counted_once_each() -> None:
    request = topic_pb.ListOffsetsRequest(partitions=[1_000_000, -1] * 5_000)
    assert decoder(topic_pb.ListOffsetsRequest)(request.SerializeToString()) == request
    request.partitions.append(1)
    with pytest.raises(TooManyItems):
        decoder(topic_pb.ListOffsetsRequest)(request.SerializeToString())


def test_full_requests_of_ordinary_entries_are_taken() -> None:
    topics = [f"{number:0>240}" for number in range(MAX_NAMED)]
    join = group_pb.JoinGroupRequest(group="g", topics=topics)
    fetch = consume_pb.FetchRequest(
        partitions=[consume_pb.FetchPartition(topic=one, partition=9_999, offset=2**40) for one in topics]
    )
    for request in (join, fetch):
        assert decoder(type(request))(request.SerializeToString()) == request


@pytest.mark.parametrize("junk", [b"\x0a\0", b"\xf8\x01\0", b"\xfd\x01\0\0\0\0"], ids=["name", "unknown", "fixed"])
def test_a_request_of_nothing_but_repeated_fields_is_not_walked_to_its_end(junk: bytes) -> None:
    with pytest.raises(TooManyItems):
        decoder(topic_pb.ListOffsetsRequest)(junk * 500_000)


def test_a_request_without_records_that_is_too_large_is_refused_unparsed() -> None:
    with pytest.raises(RequestTooLarge, match=str(MOST_BYTES)):
        decoder(topic_pb.ListTopicsRequest)(bytes(MOST_BYTES + 1))


def test_a_publish_is_not_looked_at_for_its_size() -> None:
    """A set is bytes, whatever it holds."""
    request = publish_pb.PublishRequest(topic="t", compressed_records=b"\n\0" * 1_000_000)
    stream = publish_pb.PublishStreamRequest(publish=request)
    decoded = decoder(opaque_pb2.PublishStreamRequest)(stream.SerializeToString())
    assert decoded.publish.compressed_records == request.compressed_records


@pytest.mark.parametrize(
    "broken", [b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x13\0", b"\x12\x80", b"\x12\x05ab", b"\x11\0"]
)
def test_what_is_no_request_is_undecodable_also_where_it_is_long(broken: bytes) -> None:
    sound = entries(topic_pb.ListOffsetsRequest.DESCRIPTOR.fields_by_name["partitions"], 9_999)[0]
    for encoded in (broken, sound + broken):
        with pytest.raises(DecodeError):
            decoder(topic_pb.ListOffsetsRequest)(encoded + b"\x1a")


@given(st.lists(st.sampled_from([b"\x12\x03\1\2\3", b"\x10\x05", b"\x0a\1t", b"\x1a\2\x08\1", b"\x12\0"]), max_size=20))
def test_what_the_walk_lets_through_is_within_the_bound_for_the_parser_too(parts: list[bytes]) -> None:
    encoded = b"".join(parts)
    parsed = topic_pb.ListOffsetsRequest.FromString(encoded)
    plan = lists._plan(topic_pb.ListOffsetsRequest.DESCRIPTOR, MOST_RECORDS)
    assert plan is not None
    walk = lists._Walk(encoded, "", 1_000)
    walk.through(plan, 0, len(encoded))
    assert sum(walk._found.values()) == len(parsed.partitions)
