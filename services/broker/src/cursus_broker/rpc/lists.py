"""How long the lists in requests may be: the one table, and the one place that looks, before a request is parsed.

A list costs a peer a byte or two an entry, less if it is compressed on the wire, and the broker a message, an answer
and a turn on the event loop for each. Parsing alone takes tens of milliseconds and 60 bytes an entry, so the encoded
request is looked at first. Nearly every request is too short to hold a list that is too long, which is one comparison.
The others are walked through, field by field but not into the entries, no farther than to the first entry too many.
Record sets are bytes here; what they hold is counted when they are published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from cursus_broker.errors import RequestTooLarge, TooManyItems
from cursus_proto.bounds import MAX_NAMED, MAX_NAMED_PRODUCERS
from cursus_proto.records import read_varint


@dataclass(frozen=True, slots=True)
class Bound:
    """`most` entries; None for as many as a set may have records, which is the setting `publish.max_batch_records`."""

    most: int | None
    why: str


_PARTITIONS: Final = Bound(MAX_NAMED, "as many partitions as a topic may have; clients split what is longer")
_PRODUCERS: Final = Bound(MAX_NAMED_PRODUCERS, "answered in one turn of the event loop; clients split what is longer")
_TOPICS: Final = Bound(MAX_NAMED, "as many topics as a subscription may name")

BOUNDS: Final[Mapping[str, Bound]] = {
    "GetMetadataRequest.topics": _TOPICS,
    "JoinGroupRequest.topics": _TOPICS,
    "SubscribeStart.topics": _TOPICS,
    "FetchRequest.partitions": _PARTITIONS,
    "ListOffsetsRequest.partitions": _PARTITIONS,
    "DeleteRecordsRequest.partitions": _PARTITIONS,
    "CommitOffsetsRequest.offsets": _PARTITIONS,
    "SubscribeCommit.offsets": _PARTITIONS,
    "FetchOffsetsRequest.partitions": _PARTITIONS,
    "ResetOffsetsRequest.resets": _PARTITIONS,
    "TopicConfig.labels": Bound(128, "a topic has 64 labels, and one change may replace them all"),
    "UpdateTopicRequest.reset_fields": Bound(64, "there are fewer fields than that"),
    "DescribeProducersRequest.producer_ids": _PRODUCERS,
    "ReleaseProducersRequest.producers": _PRODUCERS,
    "ProducerIdentity.sequences": Bound(None, "one a record"),
    "RecordSet.records": Bound(None, "counted when the set is published; here it is bytes"),
    "Record.headers": Bound(None, "counted with the records where a set is looked into; here it is bytes"),
}
"""Every list and map in a request, also within others. A test walks through the contract and fails for one without."""

# Fields besides lists that a walk passes: many times what our messages have, and room for those of later versions.
_OTHER_FIELDS: Final = 1_000
_LONGEST_NUMBER: Final = 10
_CONTINUED: Final = bytes(range(0x80, 0x100))
_WIDTHS: Final = {
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_DOUBLE: 8,
}
_NEVER_PACKED: Final = frozenset(
    {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP}
)


@dataclass(frozen=True, slots=True, eq=False)
class _Rule:
    """What to do with a field."""

    name: str
    most: int = 0
    """Of a list."""
    width: int = 0
    """Of the entries of a packed list; 0 if they have no fixed one."""
    is_packed: bool = False
    inside: _Plan | None = None
    """Of a message that has lists itself."""


@dataclass(frozen=True, slots=True)
class _Plan:
    rules: dict[int, _Rule] = field(default_factory=dict)

    def bounds(self) -> Iterator[int]:
        for rule in self.rules.values():
            if rule.most:
                yield rule.most
            if rule.inside is not None:
                yield from rule.inside.bounds()


def _plan(message: Descriptor, max_records: int) -> _Plan | None:
    """None for a message without lists. Raises KeyError for a list without a bound."""
    plan = _Plan()
    for one in message.fields:
        inside = _plan(one.message_type, max_records) if one.message_type is not None else None
        if one.is_repeated:
            name = f"{message.name}.{one.name}"
            most = BOUNDS[name].most or max_records
            packed = one.type not in _NEVER_PACKED
            plan.rules[one.number] = _Rule(name, most, _WIDTHS.get(one.type, 0), packed, inside)
        elif inside is not None:
            plan.rules[one.number] = _Rule(one.name, inside=inside)
    return plan if plan.rules else None


def decoder(view: type[Any], max_bytes: int, max_records: int) -> Callable[[bytes], Any]:
    """Parses requests of at most `max_bytes`, after a look at their lists. What it makes raises RequestTooLarge,
    TooManyItems, DecodeError.
    """
    plan = _plan(view.DESCRIPTOR, max_records)
    # No shorter request can hold a list that is too long: an entry takes a byte at least.
    harmless_bytes = min(max_bytes, *plan.bounds()) if plan is not None else max_bytes
    parse = view.FromString
    check = partial(_check, plan=plan, name=view.DESCRIPTOR.name, max_bytes=max_bytes)

    def decode(data: bytes) -> Any:
        if len(data) > harmless_bytes:
            check(data)
        return parse(data)

    return decode


def _check(data: bytes, plan: _Plan | None, name: str, max_bytes: int) -> None:
    if len(data) > max_bytes:
        raise RequestTooLarge(f"{name} has {len(data)} bytes, at most {max_bytes} are taken", limit=max_bytes)
    if plan is not None:
        try:
            _Walk(data, name, _OTHER_FIELDS + sum(plan.bounds())).through(plan, 0, len(data))
        except IndexError as error:
            raise DecodeError("cut short") from error


class _Walk:
    """Through one encoded request. A message that comes in several parts is one, so what they list is added up."""

    def __init__(self, data: bytes, name: str, max_fields: int) -> None:
        self._data = data
        self._name = name
        self._fields_left = self._max_fields = max_fields
        self._found: dict[_Rule, int] = {}

    def through(self, plan: _Plan, at: int, end: int) -> None:
        data, rules = self._data, plan.rules
        while at < end:
            tag, at = read_varint(data, at)
            begin, at = _content(data, at, tag & 7)
            if at > end:
                raise DecodeError("a field goes beyond the end of its message")
            self._fields_left -= 1
            if self._fields_left < 0:
                raise TooManyItems(self._name, self._max_fields)
            rule = rules.get(tag >> 3)
            if rule is None:
                continue
            if rule.most:
                self._count(rule, self._packed(rule, begin, at) if rule.is_packed and tag & 7 == 2 else 1)
            if rule.inside is not None and tag & 7 == 2:
                self.through(rule.inside, begin, at)

    def _count(self, rule: _Rule, entries: int) -> None:
        found = self._found[rule] = self._found.get(rule, 0) + entries
        if found > rule.most:
            raise TooManyItems(rule.name, rule.most)

    def _packed(self, rule: _Rule, begin: int, end: int) -> int:
        size = end - begin
        if rule.width:
            return size // rule.width
        if size > _LONGEST_NUMBER * rule.most:
            return size
        # A number ends with the byte that has its highest bit clear.
        return len(self._data[begin:end].translate(None, _CONTINUED))


def _content(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Where a field's content begins and ends."""
    match kind:
        case 2:
            size, at = read_varint(data, at)
            return at, at + size
        case 0:
            return at, read_varint(data, at)[1]
        case 1:
            return at, at + 8
        case 5:
            return at, at + 4
        case _:
            raise DecodeError(f"a field of kind {kind}")
