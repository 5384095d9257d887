"""Arrow arrays from places in a buffer. Nothing here is done value by value in Python."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Octets = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_INLINE: Final = 12
"""A view holds a value up to this size itself."""


def binary_array(data: Octets, starts: Ints, lengths: Ints, present: Bools | None = None) -> pa.Array:
    """The values that lie at these places of `data`; null where not present, whose length must be 0.

    Values of one size are one table. Short ones are gathered byte by byte, by numpy. For the others Arrow copies them
    out of views laid over their places: 26 ns for a value of 100 bytes, where gathering takes 570.
    """
    count = len(starts)
    total = int(lengths.sum())
    validity = None if present is None or present.all() else np.packbits(present, bitorder="little")
    if validity is None and count and (lengths == lengths[0]).all() and (table := _table(data, starts, total // count)):
        values: pa.Buffer = table
    elif total <= _INLINE * count:
        values = pa.py_buffer(_gathered(data, starts, lengths, total))
    else:
        return _copied(data, starts, lengths, validity)
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(ends), values]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _table(data: Octets, starts: Ints, size: int) -> pa.Buffer | None:
    """Values of one size that lie equally far apart, one after the other; None if they do not."""
    count = len(starts)
    step = int(starts[1] - starts[0]) if count > 1 else size
    if step < size or (np.diff(starts) != step).any():
        return None
    first = int(starts[0])
    rows = np.lib.stride_tricks.as_strided(data[first:], (count, size), (step, 1), writeable=False)
    return pa.py_buffer(np.ascontiguousarray(rows))


def _places(starts: Ints, lengths: Ints, total: int) -> Ints:
    """The place of every byte of the values, one after the other."""
    begins = np.cumsum(lengths) - lengths
    places: Ints = np.repeat(starts - begins, lengths)
    places += np.arange(total)
    return places


def _gathered(data: Octets, starts: Ints, lengths: Ints, total: int) -> Octets:
    return data[_places(starts, lengths, total)]


def _copied(data: Octets, starts: Ints, lengths: Ints, validity: Octets | None) -> pa.Array:
    """A view is four words: the length; the value's first four bytes, the buffer's number (0) and the place in it; or,
    in place of these three, a short value itself. The first four bytes serve comparisons; they are left out here,
    because the views are gone as soon as their values are copied.
    """
    count = len(starts)
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = lengths
    views[:, 3] = starts
    short = np.flatnonzero(lengths <= _INLINE)
    if len(short):
        views[short, 3] = 0
        sizes = lengths[short]
        total = int(sizes.sum())
        inside = _places(short * 16 + 4, sizes, total)
        views.view(np.uint8).reshape(-1)[inside] = _gathered(data, starts[short], sizes, total)
    buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(views), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers).cast(pa.binary())


def constant_text(text: str, count: int) -> pa.Array:
    """The same text in every row."""
    encoded = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * len(encoded)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(encoded * count)])


def integers(numbers: npt.NDArray[np.integer[Any]], kind: pa.DataType, absent: Bools | None = None) -> pa.Array:
    """Numbers of an Arrow type, null where absent."""
    return pa.array(numbers.astype(kind.to_pandas_dtype(), copy=False), kind, mask=absent)


def timestamps(milliseconds: Ints) -> pa.Array:
    """Times in milliseconds since 1970, as Spark has them."""
    return integers(milliseconds * 1000, pa.int64()).view(pa.timestamp("us", tz="UTC"))
