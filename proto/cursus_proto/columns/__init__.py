"""The records of a set as columns of numpy arrays: where each field of every record begins and how long it is.

    rows.py     rows at equal distances in bytes, read and copied a column at a time
    table.py    sets whose records all have one shape are such rows
    mixed.py    all other sets: the same step is taken in all records at once
    walking.py  such a step; headers.py takes it in headers
    parsed.py   what neither of them understands, from protobuf's own parser
    found.py    what is found, whichever way

Needs numpy: `cursus-proto[columns]`. Broker and client do without.
"""

from __future__ import annotations

from cursus_proto.columns.found import Columns, Headers, Numbered, Spans
from cursus_proto.columns.mixed import find_mixed
from cursus_proto.columns.parsed import parse
from cursus_proto.columns.table import Table

__all__ = ["Columns", "Headers", "Numbered", "Spans", "Table", "find_mixed", "parse", "read"]


def read(packed: bytes) -> Columns:
    """The columns of a plain record set, whatever it holds: what is found is what protobuf's parser finds, and what
    that refuses is refused. Raises MalformedRecordSet.

    >>> from cursus_proto.records import encode_record
    >>> columns = read(b"".join(encode_record(value, key=b"k") for value in (b"one", None, b"")))
    >>> columns.values.of(columns.data), columns.values.present.tolist()
    ([b'one', b'', b''], [True, False, True])
    """
    table = Table.of_set(packed)
    columns = find_mixed(packed) if table is None else table.columns()
    return parse(packed) if columns is None else columns
