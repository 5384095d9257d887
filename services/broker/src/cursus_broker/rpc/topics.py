"""TopicService on the wire. What topics are is in topics/catalog.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final

import structlog

from cursus_broker.consume.fetch import LOOKED_UP_TOGETHER, resolve
from cursus_broker.errors import InvalidRequest, PartitionDamaged, StorageFailed
from cursus_broker.log.api import Cut, Offset
from cursus_broker.pace import Pace
from cursus_broker.rpc.convert import config_from_proto, config_to_proto, place_from_proto, topic_to_proto
from cursus_broker.topics.catalog import Catalog
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition
from cursus_proto.v1 import topic_service_pb2 as pb

log = structlog.get_logger(__name__)

_SHOWN: Final = 5  # partitions named in a line


class TopicServicer:
    def __init__(self, catalog: Catalog, defaults: TopicConfig) -> None:
        self._catalog = catalog
        self._defaults = defaults

    async def create_topic(self, request: pb.CreateTopicRequest, _: str) -> pb.CreateTopicResponse:
        config = config_from_proto(request.config)
        topic = await self._catalog.create(request.name, request.partition_count, config)
        return pb.CreateTopicResponse(topic=topic_to_proto(topic))

    async def delete_topic(self, request: pb.DeleteTopicRequest, _: str) -> pb.DeleteTopicResponse:
        await self._catalog.delete(request.name)
        return pb.DeleteTopicResponse()

    async def list_topics(self, _request: pb.ListTopicsRequest, _: str) -> pb.ListTopicsResponse:
        return pb.ListTopicsResponse(topics=[topic_to_proto(topic) for topic in self._catalog.topics()])

    async def describe_topic(self, request: pb.DescribeTopicRequest, _: str) -> pb.DescribeTopicResponse:
        topic = self._catalog.topic(request.name)
        return pb.DescribeTopicResponse(
            topic=topic_to_proto(topic),
            effective_config=config_to_proto(self._defaults.merged(topic.config)),
            partitions=[describe_partition(number, partition) for number, partition in enumerate(topic.partitions)],
        )

    async def update_topic(self, request: pb.UpdateTopicRequest, _: str) -> pb.UpdateTopicResponse:
        config = config_from_proto(request.config)
        topic = await self._catalog.update(request.name, config, request.reset_fields)
        return pb.UpdateTopicResponse(topic=topic_to_proto(topic))

    async def add_partitions(self, request: pb.AddPartitionsRequest, _: str) -> pb.AddPartitionsResponse:
        topic = await self._catalog.add_partitions(request.name, request.partition_count)
        return pb.AddPartitionsResponse(topic=topic_to_proto(topic))

    async def reopen_partition(self, request: pb.ReopenPartitionRequest, _: str) -> pb.ReopenPartitionResponse:
        reopened = await self._catalog.reopen(request.topic, request.partition)
        partition = self._catalog.partition(request.topic, request.partition)
        return pb.ReopenPartitionResponse(reopened=reopened, partition=describe_partition(request.partition, partition))

    async def list_offsets(self, request: pb.ListOffsetsRequest, _: str) -> pb.ListOffsetsResponse:
        topic = self._catalog.topic(request.topic)
        place = place_from_proto(request.at)
        response = pb.ListOffsetsResponse()
        wanted = request.partitions or range(len(topic.partitions))
        if request.sync:
            await _sync(map(topic.partition, wanted))
        pace = Pace(LOOKED_UP_TOGETHER)
        for partition_id in wanted:
            await pace.took()
            partition = topic.partition(partition_id)
            found = await resolve(partition, place)
            response.offsets.add(
                partition=partition_id,
                offset=found.offset,
                append_time_ms=found.append_time_ms if found.append_time_ms >= 0 else None,
                earliest_offset=partition.earliest_offset,
                next_offset=partition.next_offset,
                leader_epoch=partition.leader_epoch,
                synced_offset=partition.log.synced_offset,
            )
        return response

    async def delete_records(self, request: pb.DeleteRecordsRequest, _: str) -> pb.DeleteRecordsResponse:
        topic = self._catalog.topic(request.topic)
        response = pb.DeleteRecordsResponse()
        for part in request.partitions:
            if part.before_offset < 0:
                raise InvalidRequest(f"offset {part.before_offset} is negative", offset=part.before_offset)
        if len({part.partition for part in request.partitions}) < len(request.partitions):
            raise InvalidRequest("a deletion names each partition once")
        pace = Pace(LOOKED_UP_TOGETHER)
        for part in request.partitions:
            await pace.took()
            earliest = await self._catalog.trim(topic, part.partition, Offset(part.before_offset))
            response.partitions.add(partition=part.partition, earliest_offset=earliest)
        log.info(
            "topic.records_deleted",
            topic=topic.name,
            partitions=len(response.partitions),
            earliest_offsets={one.partition: one.earliest_offset for one in response.partitions[:_SHOWN]},
        )
        return response


async def _sync(partitions: Iterable[Partition]) -> None:
    """Return when what is written now is synced, where the disk lets it: the synced offset tells how far it is."""
    pace = Pace(LOOKED_UP_TOGETHER)
    syncs = []
    for partition in partitions:
        await pace.took()
        with contextlib.suppress(StorageFailed):
            if (sync := partition.log.sync_soon(partition.log.next_offset)) is not None:
                syncs.append(sync)
    await asyncio.gather(*syncs, return_exceptions=True)


def describe_partition(number: int, partition: Partition | PartitionDamaged) -> pb.PartitionDescription:
    if isinstance(partition, PartitionDamaged):
        return pb.PartitionDescription(partition=number, damage=str(partition))
    log = partition.log
    return pb.PartitionDescription(
        partition=number,
        earliest_offset=log.earliest_offset,
        next_offset=log.next_offset,
        synced_offset=log.synced_offset,
        size_bytes=log.size_bytes,
        segment_count=log.segment_count,
        damage="" if log.damage is None else str(log.damage),
        refusal=log.refusal or "",
        recovery_cut=None if partition.cut is None else _cut_to_proto(partition.cut),
    )


def _cut_to_proto(cut: Cut) -> pb.RecoveryCut:
    return pb.RecoveryCut(offset=cut.offset, record_count=cut.records, bytes=cut.bytes, cause=cut.cause)
