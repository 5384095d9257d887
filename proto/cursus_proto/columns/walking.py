"""Steps that are taken in many records, or headers, at once: from each of some places to the end of what is there."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cursus_proto.columns.found import Mask, Numbered, Places, Spans

Octets: TypeAlias = NDArray[np.uint8]

# Lengths below 2**28. No set is longer, and parsers differ about what a fifth byte may say.
_LENGTH_BYTES: Final = 4
_NUMBER_BYTES: Final = 10


def octets_of(data: bytes) -> Octets:
    return np.frombuffer(data, np.uint8)


def at(octets: Octets, places: Places) -> Octets:
    """The bytes at these places. Behind the last byte that one is found; whoever looks there notices by the place."""
    return octets.take(places, mode="clip")


def sized(octets: Octets, places: Places, ends: Places) -> tuple[Places, Places] | None:
    """Where the contents begin whose lengths are at these places, and how long they are. None if one of them is not
    over at its end, or is for the parser."""
    byte = at(octets, places)
    sizes = byte.astype(np.int64)
    begins = places + 1
    more = byte >= 0x80
    if more.any():
        sizes &= 0x7F
        for place in range(1, _LENGTH_BYTES):
            byte = at(octets, places + place)
            sizes += np.where(more, (byte & 0x7F).astype(np.int64) << 7 * place, 0)
            begins += more
            more &= byte >= 0x80
        if more.any():
            return None
    if (begins + sizes > ends).any():
        return None
    return begins, sizes


def spans_at(octets: Octets, places: Places, ends: Places, having: Mask) -> Spans | None:
    """The contents of the fields whose tags are at these places, in those records that are `having` one; the others
    stay where they are. None as for `sized`."""
    if having.all():
        found = sized(octets, places + 1, ends)
        return None if found is None else Spans(*found)
    begins, sizes = places.copy(), np.zeros(len(places), np.int64)
    found = sized(octets, places[having] + 1, ends[having])
    if found is None:
        return None
    begins[having], sizes[having] = found
    return Spans(begins, sizes, ~having)


def numbers_at(octets: Octets, places: Places, ends: Places, having: Mask) -> tuple[Numbered, Places] | None:
    """The numbers whose tags are at these places, and where they end, in those records that are `having` one; the
    others stay where they are. None as for `_numbers`."""
    if having.all():
        found = _numbers(octets, places + 1, ends)
        return None if found is None else (Numbered(found[0]), found[1])
    found = _numbers(octets, places[having] + 1, ends[having])
    if found is None:
        return None
    numbers, after = np.zeros(len(places), np.uint64), places.copy()
    numbers[having], after[having] = found
    return Numbered(numbers, ~having), after


def _numbers(octets: Octets, places: Places, ends: Places) -> tuple[NDArray[np.uint64], Places] | None:
    """The varints at these places and where they end. None if one of them is not over at its end, or is for the
    parser."""
    found = np.zeros(len(places), np.uint64)
    after = places.copy()
    more = np.ones(len(places), np.bool_)
    for place in range(_NUMBER_BYTES):
        byte = at(octets, places + place)
        found |= np.where(more, byte & 0x7F, 0).astype(np.uint64) << np.uint64(7 * place)
        after += more
        if place == _NUMBER_BYTES - 1 and (byte[more] > 1).any():
            return None  # more than 64 bits
        more &= byte >= 0x80
        if not more.any():
            break
    if (after > ends).any():
        return None
    return found, after
