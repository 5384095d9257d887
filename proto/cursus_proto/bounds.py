"""What all ends keep to: how much a request may name, and what a record set may unpack to, found out before anything
is made of it.

A few thousand bytes can unpack to a set of many millions of records, and a record takes 140 bytes once it is parsed,
even an empty one. So a set is looked at first. Every record and every header begins with a certain byte, and counting
that byte is an upper bound at the speed of memory. Few sets hold it so often, and only those are walked, no farther
than to the first record too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

MIB: Final = 1024 * 1024

# Above the largest set the broker takes by default, so that whatever can be stored can be unpacked.
MAX_UNPACKED_BYTES: Final = 128 * MIB
MAX_UNPACKED_RECORDS: Final = 1_000_000

MAX_NAMED: Final = 10_000
"""Partitions or topics that one request may name. Clients make several of a longer one."""
MAX_NAMED_PRODUCERS: Final = 1_000
"""Producers that one request may name, likewise."""
MAX_REQUEST_BYTES: Final = 4 * MIB
"""What a broker takes as a request without records, by default."""

_RECORD: Final = 0x0A
_HEADER: Final = 0x22
_RECORD_TAG: Final = bytes((_RECORD,))
_HEADER_TAG: Final = bytes((_HEADER,))
# A tag and a length.
_LEAST_RECORD_BYTES: Final = 2
# As many fields besides headers a record has; any more are counted, or a record could hold millions to walk through.
_OTHER_FIELDS: Final = 9


class Bounds(NamedTuple):
    """What one set may unpack to."""

    max_bytes: int = MAX_UNPACKED_BYTES
    max_records: int = MAX_UNPACKED_RECORDS
    """Records and their headers, counted together."""


DEFAULT_BOUNDS: Final = Bounds()


class TooManyRecords(ValueError):
    """The set holds more than it may."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"holds more than {limit} records and headers")
        self.limit = limit


def portions(
    items: Sequence[T], *, most: int = MAX_NAMED, size_of: Callable[[T], int] | None = None
) -> Iterator[Sequence[T]]:
    """The items in order, in as few parts as fit a request each; one that is empty for none at all. `size_of` tells the
    bytes of those that may be large.

    >>> [list(part) for part in portions(range(5), most=2)], list(portions([]))
    ([[0, 1], [2, 3], [4]], [[]])
    """
    begin, size = 0, 0
    for index, item in enumerate(items):
        added = size_of(item) if size_of is not None else 0
        # Half of a request is left for what comes with each item and beside them.
        if index - begin == most or (index > begin and size + added > MAX_REQUEST_BYTES // 2):
            yield items[begin:index]
            begin, size = index, 0
        size += added
    if begin < len(items) or not items:
        yield items[begin:]


def surely_within(plain: bytes, limit: int, *, with_headers: bool) -> bool:
    """Whether a plain set is known to hold no more than `limit` records, without walking through it.

    >>> surely_within(b"\\n\\0" * 10, 10, with_headers=True), surely_within(b"\\n\\0" * 10, 2, with_headers=True)
    (True, False)
    """
    if len(plain) <= _LEAST_RECORD_BYTES * limit:
        return True
    found = plain.count(_RECORD_TAG)
    if with_headers and found <= limit:
        found += plain.count(_HEADER_TAG)
    return found <= limit


def walk(plain: bytes, limit: int, *, with_headers: bool) -> int:
    """The number of records in a plain set, with their headers if they are to be counted. Raises TooManyRecords as soon
    as there are more than `limit`; what is malformed ends the walk, for the parser to say what is wrong.

    >>> walk(b"\\n\\0" * 10, 10, with_headers=True)
    10
    """
    at, end, found, strange = 0, len(plain), 0, 0
    try:
        while at < end:
            if plain[at] == _RECORD:
                size = plain[at + 1]
                at += 2
                if size > 0x7F:
                    size, at = _number(plain, at - 1)
                found += 1
                if with_headers and plain.find(_HEADER_TAG, at, at + size) >= 0:
                    found += _fields(plain, at, at + size, limit - found)
                at += size
            else:
                at = _skip(plain, at)
                strange += 1
            if found + strange > limit:
                raise TooManyRecords(limit)
    except IndexError:
        pass
    return found


def _fields(plain: bytes, at: int, end: int, limit: int) -> int:
    """The headers of the record between two places, and what else it has too many of. Stops beyond the limit."""
    headers, others = 0, 0
    while at < end and headers + others <= limit + _OTHER_FIELDS:
        if plain[at] == _HEADER:
            headers += 1
        else:
            others += 1
        at = _skip(plain, at)
    return headers + max(0, others - _OTHER_FIELDS)


def _skip(plain: bytes, at: int) -> int:
    """Where the field ends that begins there. Raises IndexError."""
    tag, at = _number(plain, at)
    match tag & 7:
        case 2:
            size, at = _number(plain, at)
            return at + size
        case 0:
            return _number(plain, at)[1]
        case 1:
            return at + 8
        case 5:
            return at + 4
        case kind:
            raise IndexError(f"a field of kind {kind}")


def _number(plain: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = plain[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than ten bytes")
