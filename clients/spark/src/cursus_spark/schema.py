"""The columns that a record becomes, and what a reader is asked for of them."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

# As Spark's Kafka source has them, in its order.
RECORD_COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_EXTRA: Final[dict[str, DataType]] = {
    "append_time": TimestampType(),
    "batch_offset": LongType(),
    "producer_id": BinaryType(),
    "producer_epoch": LongType(),
    "sequence": LongType(),
    "event_type": BinaryType(),
    "schema_version": LongType(),
    "aggregate_version": LongType(),
    "metadata": BinaryType(),
}

EXTRA_COLUMNS: Final = tuple(_EXTRA)
"""What `extraColumns` may name."""

ALL_COLUMNS: Final[dict[str, DataType]] = RECORD_COLUMNS | {"headers": HEADERS} | _EXTRA

CREATE_TIME: Final = 0
APPEND_TIME: Final = 1
"""What `timestampType` says: set by the producer, or stood in for by the broker's append time."""


class SchemaRefused(ValueError):
    """A schema that the source or sink has no data for."""


def read_schema(extra_columns: tuple[str, ...]) -> StructType:
    """What a read yields unless it is given a schema of its own."""
    columns = RECORD_COLUMNS | {name: ALL_COLUMNS[name] for name in extra_columns}
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def check_read_schema(schema: StructType) -> None:
    """A schema given by the user picks columns, in any order: what it leaves out is not decoded.

    Raises SchemaRefused.
    """
    for field in schema.fields:
        kind = ALL_COLUMNS.get(field.name)
        if kind is None:
            raise SchemaRefused(f"there is no column {field.name!r}; there are {', '.join(ALL_COLUMNS)}")
        if not _equal(field.dataType, kind):
            raise SchemaRefused(
                f"column {field.name!r} is {kind.simpleString()}, not {field.dataType.simpleString()}: cast it after"
                " reading"
            )


_BYTES: Final = (BinaryType(), StringType())

_WRITTEN: Final[dict[str, tuple[DataType, ...]]] = {
    "key": _BYTES,
    "value": _BYTES,
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "headers": (HEADERS,),
    "timestamp": (TimestampType(),),
    "event_type": _BYTES,
    "schema_version": (LongType(),),
    "aggregate_version": (LongType(),),
    "metadata": _BYTES,
}
"""What a write takes: that which Spark's Kafka sink does, and what a record can have beside it. Strings are written as
UTF-8."""

_SET_BY_BROKER: Final = frozenset({"offset", "timestampType"})
"""Of a read, so that its rows can be written again as they are. They are left out."""


def check_write_schema(schema: StructType, topic: str | None) -> None:
    """Raises SchemaRefused."""
    for field in schema.fields:
        if field.name in _SET_BY_BROKER:
            continue
        kinds = _WRITTEN.get(field.name)
        if kinds is None:
            raise SchemaRefused(
                f"column {field.name!r} cannot be written; there are {', '.join(_WRITTEN)}: drop it, or make it part of"
                " the value"
            )
        if not any(_equal(field.dataType, kind) for kind in kinds):
            wanted = " or ".join(kind.simpleString() for kind in kinds)
            raise SchemaRefused(f"column {field.name!r} has to be {wanted}, not {field.dataType.simpleString()}")
    if "value" not in schema.fieldNames():
        raise SchemaRefused("there is no column 'value'")
    if topic is None and "topic" not in schema.fieldNames():
        raise SchemaRefused("there is neither the option `topic` nor a column 'topic'")


def _equal(one: DataType, other: DataType) -> bool:
    """Equal but for what may be null."""
    return one.simpleString() == other.simpleString()
