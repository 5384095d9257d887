"""Committing: which epoch an offset is committed with, and what a refusal because of a cut does to its partition."""

from __future__ import annotations

from typing import Any, cast

import pytest
from google.rpc.error_details_pb2 import ErrorInfo

from cursus_grpc._channel import Connections
from cursus_grpc._commits import Commits, unsaved
from cursus_grpc._reading import Reading
from cursus_grpc.errors import BrokerUnreachable, CommitFailed, LogTruncated
from cursus_grpc.types import OffsetAndMetadata, TopicPartition
from cursus_proto.v1 import group_service_pb2 as pb

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))


class Broker:
    """Answers commits: those of `cut` partitions are from before a cut at 5."""

    def __init__(self) -> None:
        self.cut: set[TopicPartition] = set()
        self.away = False
        self.seen: list[dict[TopicPartition, tuple[int, int | None]]] = []

    async def call(self, _method: Any, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        if self.away:
            raise BrokerUnreachable("away")
        response = pb.CommitOffsetsResponse()
        self.seen.append({})
        for one in request.offsets:
            place = TopicPartition(one.topic, one.partition)
            self.seen[-1][place] = (one.next_offset, one.leader_epoch if one.HasField("leader_epoch") else None)
            result = response.results.add(topic=one.topic, partition=one.partition)
            if place in self.cut:
                info = ErrorInfo(reason="LOG_TRUNCATED", domain="cursus", metadata={"offset": "5", "leader_epoch": "2"})
                result.error.details.add().Pack(info)
        return response


class Scene:
    def __init__(self) -> None:
        self.broker = Broker()
        self.readings = {place: Reading(place, 0, epoch=1) for place in (P0, P1)}
        self.asked: list[Reading] = []
        connections = cast("Connections", self.broker)
        self.commits = Commits("g", connections, self.readings, self.asked.append)
        for reading in self.readings.values():
            reading.advance(25, reading.version)
            reading.settle()


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_offsets_of_assigned_partitions_are_committed_with_the_epoch_they_were_read_in(scene: Scene) -> None:
    offsets = {P0: OffsetAndMetadata(20), P1: OffsetAndMetadata(20, leader_epoch=7), P2: OffsetAndMetadata(20)}
    await scene.commits.commit(offsets, None)
    assert scene.broker.seen == [{P0: (20, 1), P1: (20, 7), P2: (20, None)}]


async def test_a_refusal_because_of_a_cut_makes_its_partition_ask_again_and_no_other(scene: Scene) -> None:
    scene.broker.cut = {P0}
    with pytest.raises(CommitFailed) as caught:
        await scene.commits.commit(unsaved(scene.readings.values()), None)
    assert [type(error) for error in caught.value.errors.values()] == [LogTruncated]
    assert scene.asked == [scene.readings[P0]]
    # The other one is committed, and this one never can be: neither is tried again.
    assert unsaved(scene.readings.values()) == {}


async def test_automatic_commits_go_on_once_the_partition_has_gone_back(scene: Scene) -> None:
    scene.broker.cut = {P0}
    with pytest.raises(CommitFailed):
        await scene.commits.commit(unsaved(scene.readings.values()), None)
    scene.readings[P0].cut(5, 2)
    assert unsaved(scene.readings.values()) == {P0: OffsetAndMetadata(5, leader_epoch=2)}
    scene.broker.cut = set()
    await scene.commits.commit(unsaved(scene.readings.values()), None)
    # Also at the very offset that was refused.
    scene.readings[P0].advance(25, scene.readings[P0].version)
    scene.readings[P0].settle()
    assert unsaved(scene.readings.values()) == {P0: OffsetAndMetadata(25, leader_epoch=2)}


async def test_a_refusal_of_what_was_read_before_a_known_cut_asks_nobody(scene: Scene) -> None:
    scene.broker.cut = {P0}
    scene.readings[P0].cut(5, 2)
    with pytest.raises(CommitFailed):
        await scene.commits.commit({P0: OffsetAndMetadata(25)}, None)
    assert scene.broker.seen == [{P0: (25, 1)}]
    assert scene.asked == []


async def test_what_did_not_reach_the_broker_is_tried_again(scene: Scene) -> None:
    scene.broker.away = True
    with pytest.raises(BrokerUnreachable):
        await scene.commits.commit(unsaved(scene.readings.values()), None)
    assert unsaved(scene.readings.values()).keys() == {P0, P1}
