"""The headers of many records at once: in each round one header of every record that has one more."""

from __future__ import annotations

from typing import Final

import numpy as np

from cursus_proto.columns.found import Headers, Places, Spans
from cursus_proto.columns.walking import Octets, at, octets_of, sized, spans_at

HEADER: Final = 0x22
_NAME: Final = 0x0A
_VALUE: Final = 0x12

# A round costs the same for a single record. Who has more headers is left to the parser, which takes one at a time.
_MOST_ROUNDS: Final = 32

# Looking for what is not ASCII takes eight times as many bytes.
_MOST_NAME_BYTES: Final = 1 << 20


def find_headers(data: bytes, places: Places, ends: Places) -> tuple[Headers, Places] | None:
    """The headers from each of these places on, up to the first thing that is none, or to the end; and where that is.
    None if one of them is not laid out as writers do it, or too many are there."""
    octets = octets_of(data)
    places = places.copy()
    count = len(places)
    having = np.flatnonzero((places < ends) & (at(octets, places) == HEADER))
    owners: list[Places] = []
    found: list[tuple[Spans, Spans]] = []
    while having.size:
        if len(owners) == _MOST_ROUNDS:
            return None
        bodies = sized(octets, places[having] + 1, ends[having])
        if bodies is None:
            return None
        begins, sizes = bodies
        parts = _parts(octets, begins, begins + sizes)
        if parts is None:
            return None
        owners.append(having)
        found.append(parts)
        places[having] = begins + sizes
        following = places[having]
        having = having[(following < ends[having]) & (at(octets, following) == HEADER)]
    if not owners:
        nobody = Spans.nowhere(0)
        return Headers(np.zeros(count + 1, np.int64), nobody, nobody), places
    owner = np.concatenate(owners)
    # Round after round becomes record after record.
    order = np.argsort(owner, kind="stable")
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=count), out=offsets[1:])
    names, values = (_joined([parts[which] for parts in found], order) for which in range(2))
    if not _are_ascii(data, octets, names):
        return None
    return Headers(offsets, names, values), places


def _parts(octets: Octets, begins: Places, ends: Places) -> tuple[Spans, Spans] | None:
    """Names and values of headers that have no more than these, in this order."""
    names = spans_at(octets, begins, ends, (begins < ends) & (at(octets, begins) == _NAME))
    if names is None:
        return None
    places = names.ends
    values = spans_at(octets, places, ends, (places < ends) & (at(octets, places) == _VALUE))
    if values is None or (values.ends != ends).any():
        return None
    return names, values


def _joined(parts: list[Spans], order: Places) -> Spans:
    begins, sizes = (
        np.concatenate([one.begins for one in parts])[order],
        np.concatenate([one.sizes for one in parts])[order],
    )
    if all(one.absent is None for one in parts):
        return Spans(begins, sizes)
    return Spans(begins, sizes, np.concatenate([~one.present for one in parts])[order])


def _are_ascii(data: bytes, octets: Octets, names: Spans) -> bool:
    """Parsers refuse names that are not UTF-8. That all of them are is seen at once if they are ASCII; names of other
    scripts are left to the parser."""
    if data.isascii():
        return True
    total = int(names.sizes.sum())
    if total > _MOST_NAME_BYTES:
        return False
    before = np.cumsum(names.sizes) - names.sizes
    places = np.repeat(names.begins - before, names.sizes) + np.arange(total)
    return not (at(octets, places) >= 0x80).any()
