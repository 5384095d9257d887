"""The broker's view of the contract, in which record sets are bytes, and the public view read each other's bytes."""

from __future__ import annotations

from typing import Any, Final

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from cursus_broker.rpc.server import ENCODED_RESPONSES, OPAQUE_REQUESTS
from cursus_proto.internal.v1 import opaque_pb2

# Imported for their descriptors: the public messages are looked up by name.
from cursus_proto.v1 import consume_service_pb2, publish_service_pb2, records_pb2
from tests.unit.contract.messages import messages

OPAQUE: Final = list(opaque_pb2.DESCRIPTOR.message_types_by_name.values())
PUBLIC_FILES: Final = (consume_service_pb2, publish_service_pb2, records_pb2)
NAMES: Final = [one.name for one in OPAQUE]


def twin(opaque: Descriptor) -> Descriptor:
    """The public message of the same name."""
    found: Descriptor = descriptor_pool.Default().FindMessageTypeByName(f"cursus.v1.{opaque.name}")
    return found


def is_packed_message(field: FieldDescriptor) -> bool:
    """Whether an opaque field holds as bytes what the public view has as a message."""
    owner = field.containing_type
    if owner is None or owner.file.package != opaque_pb2.DESCRIPTOR.package:
        return False
    return field.type == FieldDescriptor.TYPE_BYTES and twin(owner).fields_by_name[field.name].message_type is not None


def encoded_twin(field: FieldDescriptor) -> st.SearchStrategy[Any] | None:
    """For such a field: encodings of what the public view has in its place."""
    if field.containing_type is None or not is_packed_message(field):
        return None
    public = twin(field.containing_type).fields_by_name[field.name].message_type
    assert public is not None
    return messages(public).map(lambda message: message.SerializeToString())


def kind(field: FieldDescriptor) -> tuple[object, ...]:
    """What decides how a field is encoded and what may be in it."""
    oneof = field.containing_oneof
    return (
        field.name,
        field.number,
        field.is_repeated,
        # The compiler makes up a oneof for an `optional` field; `has_presence` below says the same.
        oneof.name if oneof is not None and not oneof.name.startswith("_") else None,
        field.enum_type.full_name if field.enum_type else None,
    )


@pytest.mark.parametrize("opaque", OPAQUE, ids=NAMES)
def test_the_views_have_the_same_fields(opaque: Descriptor) -> None:
    public = twin(opaque)
    assert [kind(field) for field in opaque.fields] == [kind(field) for field in public.fields]
    for field in opaque.fields:
        mirrored = public.fields_by_name[field.name]
        if is_packed_message(field):
            assert mirrored.message_type is not None
            assert mirrored.message_type.name in ("RecordSet", "Record")
        else:
            assert field.type == mirrored.type
        assert field.has_presence == mirrored.has_presence
        if field.message_type is not None and field.message_type.file is opaque_pb2.DESCRIPTOR:
            assert mirrored.message_type is twin(field.message_type)
        elif field.message_type is not None:
            assert mirrored.message_type is field.message_type


@pytest.mark.parametrize("opaque", OPAQUE, ids=NAMES)
def test_what_the_public_view_wrote_the_opaque_view_reads_and_writes_again(opaque: Descriptor) -> None:
    public = twin(opaque)

    @settings(max_examples=40)
    @given(messages(public))
    def check(message: Message) -> None:
        seen = GetMessageClass(opaque).FromString(message.SerializeToString())
        assert not _unknown(seen)
        assert GetMessageClass(public).FromString(seen.SerializeToString()) == message

    check()


@pytest.mark.parametrize("opaque", OPAQUE, ids=NAMES)
def test_what_the_opaque_view_wrote_the_public_view_reads_and_writes_again(opaque: Descriptor) -> None:
    public = twin(opaque)

    @settings(max_examples=40)
    @given(messages(opaque, encoded_twin))
    def check(message: Message) -> None:
        seen = GetMessageClass(public).FromString(message.SerializeToString())
        assert not _unknown(seen)
        again = GetMessageClass(opaque).FromString(seen.SerializeToString())
        assert GetMessageClass(public).FromString(again.SerializeToString()) == seen

    check()


def _unknown(message: Message) -> bool:
    """Whether a message carries fields that its own view does not know: they would be there in its encoding, and not
    in that of a copy without them.
    """
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return known.ByteSize() != message.ByteSize()


def test_every_message_that_carries_record_sets_is_served_without_parsing_them() -> None:
    """A message of the contract's services whose fields reach a RecordSet needs an opaque twin, and the server has to
    use it.
    """
    bearing = {
        message.full_name
        for module in PUBLIC_FILES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        for message in (method.input_type, method.output_type)
        if _reaches_set(message, set())
    }
    assert bearing == OPAQUE_REQUESTS.keys() | ENCODED_RESPONSES
    assert {name.rsplit(".", 1)[1] for name in bearing} <= set(NAMES)


def _reaches_set(message: Descriptor, seen: set[str]) -> bool:
    if message.full_name == "cursus.v1.RecordSet":
        return True
    if message.full_name in seen:
        return False
    seen.add(message.full_name)
    return any(_reaches_set(field.message_type, seen) for field in message.fields if field.message_type is not None)
