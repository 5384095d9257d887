"""Random messages of any type, built from nothing but their descriptor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

_MAX_DEPTH: Final = 4

_INT32: Final = st.integers(-(2**31), 2**31 - 1)
_INT64: Final = st.integers(-(2**63), 2**63 - 1)
_SCALARS: Final[dict[int, st.SearchStrategy[Any]]] = {
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
}

Override = Callable[[FieldDescriptor], st.SearchStrategy[Any] | None]


def messages(
    descriptor: Descriptor, override: Override = lambda _: None, depth: int = _MAX_DEPTH
) -> st.SearchStrategy[Message]:
    """Messages of this type. `override` may choose other values for a field than any its type allows."""

    @st.composite
    def build(draw: st.DrawFn) -> Message:
        message: Message = GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if draw(st.booleans()):
                _fill(draw, message, field, override, depth)
        return message

    return build()


def _fill(draw: st.DrawFn, message: Message, field: FieldDescriptor, override: Override, depth: int) -> None:
    if field.message_type is not None and depth == 0:
        return
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name).update(draw(st.dictionaries(st.text("ab", max_size=2), st.text("cd", max_size=2))))
        return
    values = override(field)
    if values is None:
        values = _values(field, override, depth)
    if field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(values, max_size=3)))
    elif field.message_type is not None:
        # Also an empty message is there once it is set.
        getattr(message, field.name).SetInParent()
        getattr(message, field.name).CopyFrom(draw(values))
    else:
        setattr(message, field.name, draw(values))


def _values(field: FieldDescriptor, override: Override, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, override, depth - 1)
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return _SCALARS[field.type]
