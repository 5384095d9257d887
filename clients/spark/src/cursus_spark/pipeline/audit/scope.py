"""Which offsets an audit looks at, and which of them cannot be read.

The range of every partition is fixed before anything is read, so that all passes over the topic see the same records.
Where reading fails because the log is damaged, the damage is measured in tasks of Spark, and the audit goes on with
what lies around it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from cursus_grpc import END, AsyncAdmin, Consumer
from cursus_grpc.cli.places import Last, WrittenPlace
from cursus_grpc.errors import CorruptBatch, PartitionDamaged, TopicNotFound
from cursus_grpc.types import OffsetAndMetadata, TopicDescription
from cursus_proto import columns as record_columns
from cursus_spark.offsets import OffsetRange, split
from cursus_spark.options import Endpoint, OptionRefused
from cursus_spark.planning import CLIENT_ID, TopicMissing

_PATIENCE_S: Final = 120.0

PIECE: Final = "piece"
"""The column that numbers the sound pieces of a partition, where damage divides it."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Offsets of a partition that cannot be read. Without an `end` it is the whole partition."""

    partition: int
    start: int
    end: int | None
    cause: str

    def sentence(self) -> str:
        if self.end is None:
            return f"the broker does not serve the partition: {self.cause}"
        one = self.end - self.start == 1
        return f"offset{'' if one else 's'} {self.start:,}{'' if one else f' to {self.end - 1:,}'}: {self.cause}"


@dataclass(frozen=True, slots=True)
class Scope:
    """What is audited of a topic."""

    topic: str
    ranges: tuple[OffsetRange, ...]
    damage: tuple[Damage, ...]
    deduplicates_content: bool

    @property
    def records(self) -> int:
        """As the broker counts them; some may prove to be missing."""
        return sum(map(len, self.ranges))


async def find_scope(
    admin: AsyncAdmin, topic: str, begin: WrittenPlace, until: WrittenPlace, partitions: Collection[int]
) -> Scope:
    """Raises TopicMissing, OptionRefused."""
    described = await _described(admin, topic)
    known = {one.partition for one in described.partitions}
    if unknown := sorted(set(partitions) - known):
        raise OptionRefused("--partition", f"topic {topic!r} has no partition {unknown[0]}: it has {len(known)}")
    wanted = [one for one in described.partitions if not partitions or one.partition in partitions]
    damage = tuple(Damage(one.partition, one.earliest_offset, None, one.damage) for one in wanted if one.damage)
    served = [one.partition for one in wanted if not one.damage]
    ranges = []
    if served:
        ends = await admin.list_offsets(topic, END, served)
        starts, stops = await _offsets(admin, topic, begin, served), await _offsets(admin, topic, until, served)
        for partition in sorted(served):
            one = ends[partition]
            start = max(starts[partition], one.earliest_offset)
            # What is not synced yet power loss may take back: it is no part of any promise.
            ranges.append(
                OffsetRange(topic, partition, start, min(stops[partition], one.synced_offset), one.leader_epoch)
            )
    return Scope(topic, tuple(ranges), damage, described.topic.config.content_deduplication is not False)


async def _described(admin: AsyncAdmin, topic: str) -> TopicDescription:
    try:
        return await admin.describe_topic(topic)
    except TopicNotFound as error:
        raise TopicMissing(f"topic {topic!r} does not exist") from error


async def _offsets(
    admin: AsyncAdmin, topic: str, place: WrittenPlace, partitions: Collection[int]
) -> Mapping[int, int]:
    if isinstance(place, Last):
        found = await admin.list_offsets(topic, END, partitions)
        return {number: max(one.earliest_offset, one.next_offset - place.count) for number, one in found.items()}
    if isinstance(place, int):
        return dict.fromkeys(partitions, place)
    return {number: one.offset for number, one in (await admin.list_offsets(topic, place, partitions)).items()}


def sound_pieces(ranges: Sequence[OffsetRange], damage: Sequence[Damage]) -> list[list[OffsetRange]]:
    """The ranges without what is damaged. The n-th list has the n-th piece of every partition that has so many.

    >>> [[one.value for one in layer] for layer in sound_pieces([OffsetRange("t", 0, 0, 9)], [Damage(0, 3, 5, "")])]
    [[('t', 0, 0, 3, None)], [('t', 0, 5, 9, None)]]
    """
    layers: list[list[OffsetRange]] = []
    for whole in ranges:
        pieces = []
        start = whole.start
        for hole in sorted((one for one in damage if one.partition == whole.partition), key=lambda one: one.start):
            pieces.append((start, hole.start))
            start = whole.end if hole.end is None else hole.end
        pieces.append((start, whole.end))
        for number, (begin, end) in enumerate((begin, end) for begin, end in pieces if begin < end):
            if number == len(layers):
                layers.append([])
            layers[number].append(OffsetRange(whole.topic, whole.partition, begin, end, whole.epoch))
    return layers


def read(
    spark: SparkSession, options: Mapping[str, str], layers: Sequence[Sequence[OffsetRange]], schema: str
) -> DataFrame:
    """The records of all pieces, with the number of their piece."""
    found: DataFrame | None = None
    for number, layer in enumerate(layers):
        topic = layer[0].topic
        bounds = {
            "assign": {topic: [one.partition for one in layer]},
            "startingOffsets": {topic: {str(one.partition): one.start for one in layer}},
            "endingOffsets": {topic: {str(one.partition): one.end for one in layer}},
        }
        reader = spark.read.format("cursus").schema(schema).options(**options)
        reader = reader.options(**{name: json.dumps(value) for name, value in bounds.items()})
        reader = reader.option("minPartitions", spark.sparkContext.defaultParallelism)
        rows = reader.load().withColumn(PIECE, fn.lit(number))
        found = rows if found is None else found.unionByName(rows)
    assert found is not None, "there is something to read"
    return found


def survey(spark: SparkSession, endpoint: Endpoint, ranges: Sequence[OffsetRange]) -> list[Damage]:
    """Read everything once, in tasks, for the sake of finding what cannot be read. Raises what is not damage."""
    pieces = split(ranges, spark.sparkContext.defaultParallelism)
    if not pieces:
        return []
    tasks = spark.sparkContext.parallelize(pieces, len(pieces))
    found: list[Damage] = tasks.flatMap(lambda piece: find_damage(endpoint, piece)).collect()
    return found


def find_damage(endpoint: Endpoint, wanted: OffsetRange) -> Iterator[Damage]:
    """What of a range cannot be read. Runs in a task."""
    start = wanted.start
    with Consumer(endpoint.bootstrap, tls=endpoint.tls, client_id=CLIENT_ID, reset="error") as consumer:
        while start < wanted.end:
            try:
                for next_offset in _walk(consumer, wanted, start, wanted.end):
                    start = next_offset
            except (PartitionDamaged, CorruptBatch) as error:
                end = _next_readable(consumer, wanted, start)
                yield Damage(wanted.partition, start, end, str(error))
                start = end


def _walk(consumer: Consumer, wanted: OffsetRange, start: int, end: int) -> Iterator[int]:
    """Where every batch ends that can be read. Raises PartitionDamaged, CorruptBatch."""
    bookmark = OffsetAndMetadata(start, leader_epoch=wanted.epoch)
    for batch in consumer.range_batches(*wanted.place, bookmark, end, patience_s=_PATIENCE_S):
        if (found := record_columns.read(batch.packed).count) != batch.record_count:
            raise CorruptBatch(f"the batch holds {found} records and claims {batch.record_count}")
        yield min(batch.next_offset, wanted.end)


def _next_readable(consumer: Consumer, wanted: OffsetRange, damaged: int) -> int:
    """The first offset behind a damaged one that can be read, the end of the range if there is none.

    Steps get longer until one lands behind the damage, then shorter towards it. Damage is as short as a batch or as
    long as what lies between two places that the index of a segment knows.
    """

    def readable(offset: int) -> bool:
        try:
            next(_walk(consumer, wanted, offset, offset + 1), None)
        except (PartitionDamaged, CorruptBatch):
            return False
        return True

    step = 1
    behind = damaged
    while (probe := damaged + step) < wanted.end and not readable(probe):
        behind = probe
        step *= 2
    good = min(probe, wanted.end)
    while good - behind > 1:
        middle = (behind + good) // 2
        if readable(middle):
            good = middle
        else:
            behind = middle
    return good
