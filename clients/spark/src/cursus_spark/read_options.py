"""What a read is asked for: which topics, from where to where, how much at once."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cursus_grpc import TopicPartition
from cursus_spark.options import ENDPOINT_OPTIONS, Endpoint, OptionRefused, Options
from cursus_spark.schema import EXTRA_COLUMNS

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""Stand for the ends of a log in JSON offsets, as in Spark's Kafka source."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All partitions of the topics whose whole name matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions and no others."""

    partitions: tuple[TopicPartition, ...]


Selection = Subscribe | SubscribePattern | Assign


class Edge(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for each partition; negative ones stand for an end of the log."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first record appended at or after this time, in milliseconds since 1970, in every partition."""

    ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The same, with a time for each partition."""

    ms: Mapping[TopicPartition, int]


Bound = Edge | AtOffsets | AtTimestamp | AtTimestamps

_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_ENDS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupIdPrefix",
    "groupId",
)

READ_OPTIONS: Final = (
    *ENDPOINT_OPTIONS,
    "subscribe",
    "subscribePattern",
    "assign",
    *_STARTS,
    *_ENDS,
    "startingOffsetsByTimestampStrategy",
    *_STREAM_ONLY,
    "minPartitions",
    "failOnDataLoss",
    "readUpTo",
    "includeHeaders",
    "extraColumns",
    "retryTimeout",
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Every option of a read, checked. `docs/spark.md` explains them to users."""

    endpoint: Endpoint
    selection: Selection
    starting: Bound
    ending: Bound
    late_start_is_latest: bool
    """What a start by time does in a partition that has no record so late: begin at its end, or refuse."""
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    fail_on_data_loss: bool
    read_unsynced: bool
    group_id: str | None
    group_id_prefix: str
    extra_columns: tuple[str, ...]
    retry_timeout_s: float

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
        """Raises OptionRefused."""
        options = Options(given, READ_OPTIONS)
        if streaming:
            options.refuse(_ENDS, "is for batch reads; a stream has no end")
        else:
            options.refuse(_STREAM_ONLY, "is for streams; a batch read takes everything between its bounds")
        options.at_most_one("groupId", "groupIdPrefix")
        starting = _bound(options, _STARTS, Edge.LATEST if streaming else Edge.EARLIEST)
        ending = _bound(options, _ENDS, Edge.LATEST)
        if not streaming:
            _refuse_edge(starting, Edge.LATEST, LATEST_OFFSET, "startingOffsets")
        _refuse_edge(ending, Edge.EARLIEST, EARLIEST_OFFSET, "endingOffsets")
        most = options.integer("maxOffsetsPerTrigger", least=1)
        least = options.integer("minOffsetsPerTrigger", least=1)
        if most is not None and least is not None and least > most:
            raise OptionRefused("minOffsetsPerTrigger", f"{least} is above `maxOffsetsPerTrigger` = {most}")
        if "maxTriggerDelay" in options and least is None:
            raise OptionRefused("maxTriggerDelay", "means nothing without `minOffsetsPerTrigger`")
        return cls(
            endpoint=options.endpoint(),
            selection=_selection(options),
            starting=starting,
            ending=ending,
            late_start_is_latest=options.choice(
                "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}, False
            ),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=_or(options.duration_ms("maxTriggerDelay"), 15 * 60_000),
            min_partitions=options.integer("minPartitions", least=1),
            fail_on_data_loss=options.boolean("failOnDataLoss", True),
            read_unsynced=options.choice("readUpTo", {"synced": False, "written": True}, False),
            group_id=options.text("groupId"),
            group_id_prefix=options.text("groupIdPrefix") or "cursus-spark",
            extra_columns=_extra_columns(options),
            retry_timeout_s=_or(options.duration_ms("retryTimeout"), 120_000) / 1000,
        )


def extra_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns asked for beside the usual ones: all that decides the schema. Raises OptionRefused, for any name that
    is not an option too: `load()` is the first to ask, and the place where people look for the mistake."""
    return _extra_columns(Options(given, READ_OPTIONS))


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _selection(options: Options) -> Selection:
    given = options.at_most_one("subscribe", "subscribePattern", "assign")
    if given is None:
        raise OptionRefused("subscribe", "is missing; name topics with it, with `subscribePattern` or with `assign`")
    if given == "subscribe":
        return Subscribe(tuple(dict.fromkeys(options.names(given) or ())))
    if given == "subscribePattern":
        pattern = options.required(given, "orders-.*")
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionRefused(given, f"{pattern!r} is not a regular expression: {error}") from None
        return SubscribePattern(pattern)
    return Assign(_assigned(options.json(given)))


def _assigned(found: object) -> tuple[TopicPartition, ...]:
    example = 'for example {"orders": [0, 1]}'
    if not isinstance(found, dict) or not found:
        raise OptionRefused("assign", f"is not an object of topics; {example}")
    partitions: dict[TopicPartition, None] = {}
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not numbers or not all(_is_count(number) for number in numbers):
            raise OptionRefused("assign", f"topic {topic!r} has no list of partition numbers; {example}")
        partitions.update(dict.fromkeys(TopicPartition(topic, number) for number in numbers))
    return tuple(partitions)


def _bound(options: Options, names: tuple[str, str, str], default: Edge) -> Bound:
    given = options.at_most_one(*names)
    offsets, timestamp, by_timestamp = names
    if given is None:
        return default
    if given == timestamp:
        return AtTimestamp(_or(options.integer(given, least=0), 0))
    if given == by_timestamp:
        return AtTimestamps(_by_partition(options, given, least=0))
    text = options.required(given, "earliest")
    if text.lower() in ("earliest", "latest"):
        return Edge(text.lower())
    if not text.lstrip().startswith("{"):
        raise OptionRefused(offsets, f'{text!r} is neither earliest, latest nor JSON such as {{"orders": {{"0": 23}}}}')
    return AtOffsets(_by_partition(options, given, least=EARLIEST_OFFSET))


def _by_partition(options: Options, name: str, *, least: int) -> dict[TopicPartition, int]:
    found = options.json(name)
    example = 'for example {"orders": {"0": 23, "1": 5}}'
    if not isinstance(found, dict) or not found:
        raise OptionRefused(name, f"is not an object of topics; {example}")
    numbers: dict[TopicPartition, int] = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, dict) or not partitions:
            raise OptionRefused(name, f"topic {topic!r} has no object of partitions; {example}")
        for partition, number in partitions.items():
            if not partition.isdigit():
                raise OptionRefused(name, f"{partition!r} of topic {topic!r} is not a partition number; {example}")
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise OptionRefused(name, f"{number!r} for {topic}/{partition} is not a number from {least} on")
            numbers[TopicPartition(topic, int(partition))] = number
    return numbers


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _refuse_edge(bound: Bound, edge: Edge, number: int, name: str) -> None:
    if bound is edge or (isinstance(bound, AtOffsets) and number in bound.offsets.values()):
        raise OptionRefused(name, f"a batch read cannot {'start' if edge is Edge.LATEST else 'end'} at `{edge.value}`")


def _extra_columns(options: Options) -> tuple[str, ...]:
    wanted = options.names("extraColumns") or ()
    if wanted == ("all",):
        wanted = EXTRA_COLUMNS
    for name in wanted:
        if name not in EXTRA_COLUMNS:
            raise OptionRefused("extraColumns", f"there is no {name!r}; there are {', '.join(EXTRA_COLUMNS)}, or all")
    headers = ("headers",) if options.boolean("includeHeaders", False) else ()
    return (*headers, *dict.fromkeys(wanted))
