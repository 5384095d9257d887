"""Looking up offsets by place, for admin clients and consumers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from cursus_grpc import _convert, _rpcs
from cursus_grpc._channel import Connections
from cursus_grpc.types import ListedOffset, Place, Timestamp, TopicPartition
from cursus_proto.bounds import portions
from cursus_proto.v1 import topic_service_pb2 as pb


async def list_offsets(
    connections: Connections, topic: str, at: Place, partitions: Collection[int], *, sync: bool = False
) -> dict[int, ListedOffset]:
    """Of these partitions, or of all; with `sync` after what is written was synced. Raises what the broker refuses
    with, and what calls raise."""
    found: dict[int, ListedOffset] = {}
    for part in portions(list(partitions)):
        request = pb.ListOffsetsRequest(topic=topic, partitions=part, at=_convert.place_to_proto(at), sync=sync)
        response = await connections.call(_rpcs.LIST_OFFSETS, request)
        found.update((one.partition, _convert.listed_from_proto(one)) for one in response.offsets)
    return found


async def offsets_at(
    connections: Connections, places: Mapping[TopicPartition, Place]
) -> dict[TopicPartition, ListedOffset]:
    """A place in each partition, with a call for all partitions of a topic that ask for the same."""
    alike: defaultdict[tuple[str, Place], list[int]] = defaultdict(list)
    for (topic, partition), place in places.items():
        alike[topic, place].append(partition)
    return {
        TopicPartition(topic, partition): listed
        for (topic, place), partitions in alike.items()
        for partition, listed in (await list_offsets(connections, topic, place, partitions)).items()
    }


async def edges(
    connections: Connections, partitions: Iterable[TopicPartition], edge: Place
) -> dict[TopicPartition, int]:
    found = await offsets_at(connections, {TopicPartition(*partition): edge for partition in partitions})
    return {partition: listed.offset for partition, listed in found.items()}


async def at_times(connections: Connections, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    places = {TopicPartition(*partition): Timestamp(ms) for partition, ms in times.items()}
    found = await offsets_at(connections, places)
    return {partition: None if listed.append_time_ms is None else listed.offset for partition, listed in found.items()}
