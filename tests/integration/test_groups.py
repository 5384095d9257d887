"""Consumer groups over a real broker: membership, fencing, assignment, offsets, and the Subscribe stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import group_service_pb2 as pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.records_pb2 import OFFSET_EDGE_EARLIEST, OFFSET_EDGE_LATEST, FlowGrant, OffsetSpec, TopicPartition
from tests.harness.clients import Client
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import OUT_OF_RANGE, Refusal, invalid, not_found, precondition, refusal, refusal_of
from tests.harness.streams import Member, Place, is_silent, within_deadline
from tests.harness.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

NO_DEDUP = topic_pb.TopicConfig(content_deduplication=False)
SHORT_SESSION_MS = 1_000  # the least a member may ask for


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess.start(tmp_path_factory.mktemp("groups") / "data") as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with Client.connect(broker.grpc) as connected:
        yield connected


@pytest_asyncio.fixture(loop_scope="module")
async def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with four partitions. Its name is also the name of the test's group."""
    name = re.sub(r"[^\w.-]", "-", str(request.node.name))
    await client.create_topic(name, 4, NO_DEDUP)
    return name


async def join(client: Client, group: str, *topics: str, **fields: object) -> pb.JoinGroupResponse:
    request = pb.JoinGroupRequest(group=group, topics=topics or [group], **fields)  # type: ignore[arg-type]  # by tests
    return await client.groups.JoinGroup(request)


async def sync(
    client: Client, group: str, member_id: str, generation: int, max_wait_ms: int = 60_000
) -> pb.SyncGroupResponse:
    request = pb.SyncGroupRequest(group=group, member_id=member_id, generation=generation, max_wait_ms=max_wait_ms)
    return await client.groups.SyncGroup(request)


async def heartbeat(client: Client, group: str, member_id: str, generation: int = 0) -> pb.HeartbeatResponse:
    return await client.groups.Heartbeat(pb.HeartbeatRequest(group=group, member_id=member_id, generation=generation))


async def commit(client: Client, topic: str, next_offset: int, partition: int = 0, **fields: object) -> Refusal | None:
    """Commit one offset for the group named like the topic; None if it was taken."""
    offset = pb.CommitOffset(topic=topic, partition=partition, next_offset=next_offset)
    fields.setdefault("group", topic)
    request = pb.CommitOffsetsRequest(offsets=[offset], **fields)  # type: ignore[arg-type]  # by tests
    (result,) = (await client.groups.CommitOffsets(request)).results
    return refusal_of(result.error) if result.HasField("error") else None


async def committed(client: Client, group: str, topic: str, partition: int = 0) -> int | None:
    request = pb.FetchOffsetsRequest(group=group, partitions=[TopicPartition(topic=topic, partition=partition)])
    (found,) = (await client.groups.FetchOffsets(request)).offsets
    return found.next_offset if found.HasField("next_offset") else None


async def describe(client: Client, group: str) -> pb.DescribeGroupResponse:
    return await client.groups.DescribeGroup(pb.DescribeGroupRequest(group=group))


def numbers(places: Sequence[TopicPartition]) -> list[int]:
    return [place.partition for place in places]


def places(topic: str, *partitions: int) -> list[Place]:
    return [(topic, partition) for partition in partitions]


# Membership by single calls


async def test_a_member_joins_syncs_beats_and_leaves(client: Client, topic: str) -> None:
    joined = await join(client, topic, client_id="tester")
    assert joined.member_id.startswith("tester-")
    assert (joined.generation, numbers(joined.partitions), joined.complete) == (1, [0, 1, 2, 3], True)
    synced = await sync(client, topic, joined.member_id, 1)
    assert (synced.generation, numbers(synced.partitions), synced.complete) == (1, [0, 1, 2, 3], True)
    assert not (await heartbeat(client, topic, joined.member_id, 1)).must_sync
    again = await join(client, topic, member_id=joined.member_id)
    assert again.generation == 1, "a join that changes nothing raises no generation"
    await client.groups.LeaveGroup(pb.LeaveGroupRequest(group=topic, member_id=joined.member_id))
    assert await refusal(heartbeat(client, topic, joined.member_id)) == not_found("MEMBER_NOT_FOUND")
    summary = (await describe(client, topic)).summary
    assert (summary.state, summary.member_count) == (pb.GROUP_STATE_EMPTY, 0)


async def test_a_partition_is_handed_over_only_when_its_holder_lets_go(client: Client, topic: str) -> None:
    first = await join(client, topic, member_id="m-1")
    await sync(client, topic, "m-1", first.generation)
    second = await join(client, topic, member_id="m-2")
    assert (second.generation, numbers(second.partitions), second.complete) == (2, [], False)
    beat = await heartbeat(client, topic, "m-1", 1)
    assert (beat.generation, beat.must_sync) == (2, True)
    assert await commit(client, topic, 0, partition=1, member_id="m-1", generation=1) is None
    waiting = asyncio.ensure_future(sync(client, topic, "m-2", 2))
    assert await is_silent(asyncio.shield(waiting), 0.1)
    assert (await describe(client, topic)).summary.state == pb.GROUP_STATE_REBALANCING
    assert numbers((await sync(client, topic, "m-1", 2)).partitions) == [0, 2]
    assert numbers((await within_deadline(waiting)).partitions) == [1, 3]
    assert (await describe(client, topic)).summary.state == pb.GROUP_STATE_STABLE
    refused = await commit(client, topic, 0, partition=1, member_id="m-1", generation=2)
    assert refused == precondition("NOT_OWNER")
    assert await commit(client, topic, 0, partition=1, member_id="m-2", generation=2) is None


async def test_an_old_generation_is_fenced(client: Client, topic: str) -> None:
    await join(client, topic, member_id="m-1")
    await join(client, topic, member_id="m-2")
    refused = await refusal(sync(client, topic, "m-1", 1))
    assert refused == precondition("GENERATION_MISMATCH")
    assert refused.metadata["current"] == "2"
    await sync(client, topic, "m-1", 2)
    assert await commit(client, topic, 0, 1, member_id="m-1", generation=1) == precondition("GENERATION_MISMATCH")
    ownership = {"member_id": "m-1", "generation": 0, "fencing": pb.FENCING_OWNERSHIP}
    assert await commit(client, topic, 0, 0, **ownership) is None
    assert await commit(client, topic, 0, 1, **ownership) == precondition("NOT_OWNER")


async def test_a_member_that_is_not_heard_of_loses_its_place(client: Client, topic: str) -> None:
    await join(client, topic, member_id="mute", session_timeout_ms=SHORT_SESSION_MS)
    await join(client, topic, member_id="alive")

    async def owns_all() -> bool:
        beat = await heartbeat(client, topic, "alive")
        answer = await sync(client, topic, "alive", beat.generation, 0)
        return numbers(answer.partitions) == [0, 1, 2, 3]

    # Between its two calls the group may move on, which refuses the second; then it tries again.
    alone: bool = await eventually(owns_all, ignoring=(grpc.aio.AioRpcError,))
    assert alone
    assert await refusal(heartbeat(client, topic, "mute")) == not_found("MEMBER_NOT_FOUND")


async def test_a_member_that_does_not_let_go_is_relieved_of_its_partitions(client: Client, topic: str) -> None:
    await join(client, topic, member_id="m-1", rebalance_timeout_ms=300)
    joined = await join(client, topic, member_id="m-2")
    synced = await sync(client, topic, "m-2", joined.generation)
    assert (numbers(synced.partitions), synced.complete) == ([1, 3], True)
    assert await commit(client, topic, 0, 1, member_id="m-1", generation=2) == precondition("NOT_OWNER")


async def test_members_that_cannot_acknowledge_change_at_once(client: Client, topic: str) -> None:
    await join(client, topic, member_id="m-1", at_once=True)
    joined = await join(client, topic, member_id="m-2", at_once=True)
    assert (numbers(joined.partitions), joined.complete) == ([1, 3], True)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (pb.ASSIGNMENT_STRATEGY_MODULO, {"a": [0, 2], "b": [1, 3]}),
        (pb.ASSIGNMENT_STRATEGY_RANGE, {"a": [0, 1], "b": [2, 3]}),
    ],
)
async def test_partitions_are_shared_by_the_groups_strategy(
    client: Client, topic: str, strategy: pb.AssignmentStrategy.ValueType, expected: dict[str, list[int]]
) -> None:
    await join(client, topic, member_id="a", strategy=strategy)
    joined = await join(client, topic, member_id="b", strategy=strategy)
    owned = {name: numbers((await sync(client, topic, name, joined.generation, 0)).partitions) for name in ("a", "b")}
    assert owned == expected
    other = pb.ASSIGNMENT_STRATEGY_STICKY
    assert await refusal(join(client, topic, member_id="c", strategy=other)) == precondition("INCONSISTENT_GROUP")
    assert (await describe(client, topic)).summary.strategy == strategy


@pytest.mark.parametrize("strategy", [pb.ASSIGNMENT_STRATEGY_STICKY, pb.ASSIGNMENT_STRATEGY_UNSPECIFIED])
async def test_a_newcomer_moves_no_more_than_it_has_to_also_by_default(
    client: Client, topic: str, strategy: pb.AssignmentStrategy.ValueType
) -> None:
    await join(client, topic, member_id="b", strategy=strategy)
    generation = (await join(client, topic, member_id="c", strategy=strategy)).generation
    before = {name: set(numbers((await sync(client, topic, name, generation, 0)).partitions)) for name in ("b", "c")}
    generation = (await join(client, topic, member_id="a", strategy=strategy)).generation
    after = {
        name: set(numbers((await sync(client, topic, name, generation, 0)).partitions)) for name in ("b", "c", "a")
    }
    assert all(after[name] <= before[name] for name in ("b", "c"))
    assert sorted(len(owned) for owned in after.values()) == [1, 1, 2]
    assert (await describe(client, topic)).summary.strategy == pb.ASSIGNMENT_STRATEGY_STICKY


async def test_a_legacy_member_begins_a_group_by_modulo(client: Client, topic: str) -> None:
    await join(client, topic, member_id="b", at_once=True)
    generation = (await join(client, topic, member_id="a")).generation
    assert numbers((await sync(client, topic, "a", generation, 0)).partitions) == [0, 2]
    assert (await describe(client, topic)).summary.strategy == pb.ASSIGNMENT_STRATEGY_MODULO


async def test_a_restarted_static_member_keeps_its_partitions(client: Client, topic: str) -> None:
    await join(client, topic, member_id="z-dynamic")
    old = await join(client, topic, instance_id="worker-1")
    await sync(client, topic, "z-dynamic", old.generation)
    owned = numbers((await sync(client, topic, old.member_id, old.generation)).partitions)
    assert owned
    new = await join(client, topic, instance_id="worker-1")
    assert new.generation == old.generation, "nothing moved, so nobody has to do anything"
    assert new.member_id != old.member_id
    assert numbers(new.partitions) == owned
    assert await refusal(heartbeat(client, topic, old.member_id)) == precondition("MEMBER_FENCED")
    refused = await refusal(commit(client, topic, 0, owned[0], member_id=old.member_id, generation=old.generation))
    assert refused == precondition("MEMBER_FENCED")
    await client.groups.LeaveGroup(pb.LeaveGroupRequest(group=topic, instance_id="worker-1"))
    assert (await describe(client, topic)).summary.member_count == 1


# Offsets


async def test_offsets_only_move_forward_until_they_are_reset(client: Client, topic: str) -> None:
    await client.publish(topic, [b"x"] * 10)
    assert await committed(client, topic, topic) is None
    assert await commit(client, topic, 7) is None
    assert await commit(client, topic, 7) is None
    assert await commit(client, topic, 6) == precondition("OFFSET_REGRESSION")
    assert await commit(client, topic, 11) == invalid()
    assert await commit(client, topic, -1) == invalid()
    assert await commit(client, topic, 0, partition=9) == not_found("PARTITION_NOT_FOUND")
    assert await commit(client, "no-such-topic", 0, group=topic) == not_found("TOPIC_NOT_FOUND")
    assert await committed(client, topic, topic) == 7

    def reset(to: OffsetSpec, *, dry_run: bool = False) -> pb.ResetOffsetsRequest:
        one = pb.OffsetReset(topic=topic, partition=0, to=to)
        return pb.ResetOffsetsRequest(group=topic, resets=[one], dry_run=dry_run)

    earliest = OffsetSpec(edge=OFFSET_EDGE_EARLIEST)
    (change,) = (await client.groups.ResetOffsets(reset(earliest, dry_run=True))).changes
    assert (change.before, change.after) == (7, 0)
    assert await committed(client, topic, topic) == 7, "a dry run changes nothing"
    assert await refusal(client.groups.ResetOffsets(reset(OffsetSpec(offset=11)))) == OUT_OF_RANGE
    await client.groups.ResetOffsets(reset(OffsetSpec(offset=3)))
    assert await committed(client, topic, topic) == 3
    await client.groups.ResetOffsets(reset(OffsetSpec(edge=OFFSET_EDGE_LATEST)))
    assert await committed(client, topic, topic) == 10

    joined = await join(client, topic)
    assert await refusal(client.groups.ResetOffsets(reset(earliest))) == precondition("GROUP_NOT_EMPTY")
    delete = pb.DeleteGroupRequest(group=topic)
    assert await refusal(client.groups.DeleteGroup(delete)) == precondition("GROUP_NOT_EMPTY")
    await client.groups.LeaveGroup(pb.LeaveGroupRequest(group=topic, member_id=joined.member_id))
    await client.groups.DeleteGroup(delete)
    assert await committed(client, topic, topic) is None
    assert await refusal(client.groups.DeleteGroup(delete)) == not_found("GROUP_NOT_FOUND")


async def test_resetting_a_group_that_does_not_exist_makes_it(client: Client, topic: str) -> None:
    await client.publish(topic, [b"x"] * 5, partition=2)
    whole = pb.OffsetReset(topic=topic, to=OffsetSpec(edge=OFFSET_EDGE_LATEST))
    changes = (await client.groups.ResetOffsets(pb.ResetOffsetsRequest(group=topic, resets=[whole]))).changes
    assert [(one.partition, one.HasField("before"), one.after) for one in changes] == [
        (0, False, 0),
        (1, False, 0),
        (2, False, 5),
        (3, False, 0),
    ]
    assert await committed(client, topic, topic, 2) == 5


async def test_an_outsider_commits_only_where_no_member_reads(client: Client, topic: str) -> None:
    await client.publish(topic, [b"x"])
    joined = await join(client, topic)
    assert await commit(client, topic, 1) == precondition("NOT_OWNER")
    await client.groups.LeaveGroup(pb.LeaveGroupRequest(group=topic, member_id=joined.member_id))
    assert await commit(client, topic, 1) is None


async def test_groups_are_listed_and_described_with_their_lag(client: Client, topic: str) -> None:
    await client.publish(topic, [b"x"] * 4)
    await client.publish(topic, [b"x"] * 6, partition=1)
    offset = pb.CommitOffset(topic=topic, partition=1, next_offset=2, metadata="half way")
    await client.groups.CommitOffsets(pb.CommitOffsetsRequest(group=topic, offsets=[offset]))
    joined = await join(client, topic, client_id="reader", session_timeout_ms=9_000)

    async def oldest_is_a_little_old() -> pb.DescribeGroupResponse:
        described = await describe(client, topic)
        assert described.partitions[0].lag_seconds > 0
        return described

    described: pb.DescribeGroupResponse = await eventually(oldest_is_a_little_old)
    lags = [(one.partition, one.member_id, one.lag_records, one.lag_seconds > 0) for one in described.partitions]
    member_id = joined.member_id
    assert lags == [
        (0, member_id, 4, True),
        (1, member_id, 4, True),
        (2, member_id, 0, False),
        (3, member_id, 0, False),
    ]
    assert not described.partitions[0].HasField("committed_offset")
    assert (described.partitions[1].committed_offset, described.partitions[1].metadata) == (2, "half way")
    (member,) = described.members
    assert (member.client_id, member.session_timeout_ms, list(member.topics)) == ("reader", 9_000, [topic])
    assert member.peer
    assert 0 < member.joined_ms <= member.last_heartbeat_ms
    assert described.rebalanced_ms > 0
    listed = {one.group: one for one in (await client.groups.ListGroups(pb.ListGroupsRequest())).groups}
    assert listed[topic].member_count == 1
    assert list(listed) == sorted(listed)


async def test_offsets_and_generations_survive_a_killed_broker(tmp_path: Path) -> None:
    async with BrokerProcess.start(tmp_path / "data") as broker:
        async with Client.connect(broker.grpc) as client:
            await client.create_topic("orders", 2, NO_DEDUP)
            await client.publish("orders", [b"x"] * 10)
            await join(client, "g", "orders", member_id="m-1")
            await join(client, "g", "orders", member_id="m-2")
            await commit(client, "orders", 8, group="g", member_id="m-1", generation=2)
        await broker.restart(kill=True)
        async with Client.connect(broker.grpc) as client:
            assert await committed(client, "g", "orders") == 8
            described = await describe(client, "g")
            assert (described.summary.state, described.summary.generation) == (pb.GROUP_STATE_EMPTY, 2)
            assert (await join(client, "g", "orders")).generation == 3
            assert await refusal(heartbeat(client, "g", "m-1")) == not_found("MEMBER_NOT_FOUND")


# Subscribe


async def test_a_subscriber_receives_commits_and_leaves(client: Client, topic: str) -> None:
    for partition in range(4):
        await client.publish(topic, [b"%d" % partition], partition)
    async with Member.join(client, topic, topic) as member:
        await member.until(lambda: len(member.received) == 4)
        assert member.owned == set(places(topic, 0, 1, 2, 3))
        await client.publish(topic, [b"live"], 2)
        await member.until(lambda: member.values(topic, 2) == [b"2", b"live"])
        assert not (await member.commit(2, topic, 2)).HasField("error")
        assert refusal_of((await member.commit(1, topic, 2)).error) == precondition("OFFSET_REGRESSION")
        await member.leave()
    assert (await describe(client, topic)).summary.member_count == 0
    async with Member.join(client, topic, topic) as successor:
        await successor.until(lambda: len(successor.received) == 3)
        assert successor.starts[(topic, 2)] == 2, "what was committed is not delivered again"
        assert successor.values(topic, 0) == [b"0"], "what was not is"


async def test_a_group_without_commits_starts_where_the_member_says(client: Client, topic: str) -> None:
    await client.publish(topic, [b"old"])
    async with Member.join(client, topic, topic, start_without_commit=OffsetSpec(edge=OFFSET_EDGE_LATEST)) as member:
        await member.until(lambda: bool(member.owned))
        await client.publish(topic, [b"new"])
        await member.until(lambda: bool(member.received))
        assert member.values(topic) == [b"new"]


async def test_a_handover_between_streams_waits_for_the_acknowledgement(client: Client, topic: str) -> None:
    async with Member.join(client, topic, topic, client_id="a") as first:
        await first.until_owner_of(*places(topic, 0, 1, 2, 3))
        async with Member.join(client, topic, topic, client_id="b") as second:
            told = await second.read()
            assert told is not None
            assert not told.assignment.partitions
            assert not told.assignment.complete
            await first.until(lambda: first.generation == 2, acknowledge=False)
            assert first.owned == set(places(topic, 0, 2))
            # Its last progress before the handover still counts.
            assert not (await first.commit(0, topic, 1)).HasField("error")
            assert await is_silent(second.read(), 0.1)
            await first.acknowledge()
            await second.until_owner_of(*places(topic, 1, 3))
            refused = refusal_of((await first.commit(0, topic, 1)).error)
            assert refused == precondition("NOT_OWNER")


async def test_a_stream_that_breaks_is_never_taken_for_one_that_was_closed(client: Client, topic: str) -> None:
    await client.publish(topic, [b"x"])

    async def break_and_resume(group: str) -> bool:
        async with Member.join(client, group, topic) as member:
            await member.until(lambda: bool(member.received))
        async with Member.join(client, group, topic, member_id=member.id) as resumed:
            return resumed.generation == member.generation

    for turn in range(25):
        assert all(await asyncio.gather(*(break_and_resume(f"{topic}-{turn}-{number}") for number in range(8))))


async def test_a_broken_stream_is_resumed_by_its_member_id(client: Client, topic: str) -> None:
    await client.publish(topic, [b"x"])
    async with Member.join(client, topic, topic) as member:
        await member.until(lambda: bool(member.received))
    async with Member.join(client, topic, topic, member_id=member.id) as resumed:
        assert (resumed.id, resumed.generation) == (member.id, member.generation)
        await resumed.until(lambda: bool(resumed.received))
        assert resumed.values(topic) == [b"x"], "delivered again, because it was not committed"
        async with Member.join(client, topic, topic, member_id=member.id) as newer:
            await newer.until(lambda: bool(newer.received))
            assert await refusal(resumed.until(lambda: False)) == precondition("MEMBER_FENCED")


async def test_a_static_member_keeps_its_partitions_over_a_restart(client: Client, topic: str) -> None:
    async with Member.join(client, topic, topic, client_id="other") as other:
        old = await Member.subscribe(client, topic, topic, instance_id="worker")
        await other.until(lambda: other.generation == 2)
        await old.until(lambda: bool(old.owned))
        owned, generation = old.owned, old.generation
        await old.leave()
        async with Member.join(client, topic, topic, instance_id="worker") as new:
            await new.until(lambda: bool(new.owned))
            assert (new.owned, new.generation) == (owned, generation)
            assert new.id != old.id


async def test_a_member_whose_stream_broke_is_replaced_after_its_session(client: Client, topic: str) -> None:
    dying = await Member.subscribe(client, topic, topic, client_id="a", session_timeout_ms=SHORT_SESSION_MS)
    async with Member.join(client, topic, topic, client_id="b") as member:
        await dying.until(lambda: dying.generation == 2)
        await member.until_owner_of(*places(topic, 1, 3))
        dying.break_off()
        await member.until_owner_of(*places(topic, 0, 1, 2, 3))


async def test_a_pattern_picks_up_new_topics(client: Client) -> None:
    await client.create_topic("metrics.cpu", 1, NO_DEDUP)
    async with Member.join(client, "patterns", topic_pattern=r"metrics\..*") as member:
        await member.until_owner_of(("metrics.cpu", 0))
        await client.create_topic("metrics.disk", 2, NO_DEDUP)
        await client.create_topic("other.metrics.disk", 1, NO_DEDUP)
        await member.until_owner_of(("metrics.cpu", 0), ("metrics.disk", 0), ("metrics.disk", 1))
        await client.publish("metrics.disk", [b"full"], partition=1)
        await member.until(lambda: member.values("metrics.disk", 1) == [b"full"])
    assert await refusal(Member.subscribe(client, "patterns", topic_pattern="(unclosed")) == invalid()


async def test_added_partitions_are_assigned(client: Client, topic: str) -> None:
    async with Member.join(client, topic, topic) as member:
        await member.until_owner_of(*places(topic, 0, 1, 2, 3))
        await client.topics.AddPartitions(topic_pb.AddPartitionsRequest(name=topic, partition_count=6))
        await member.until_owner_of(*places(topic, 0, 1, 2, 3, 4, 5))
        await client.publish(topic, [b"new"], 5)
        await member.until(lambda: member.values(topic, 5) == [b"new"])


async def test_a_topic_may_be_deleted_and_made_again_under_a_subscriber(client: Client, topic: str) -> None:
    await client.create_topic(f"{topic}-kept", 1, NO_DEDUP)
    async with Member.join(client, topic, topic, f"{topic}-kept") as member:
        await client.publish(topic, [b"old"])
        await member.until(lambda: member.values(topic) == [b"old"])
        assert not (await member.commit(1, topic)).HasField("error")
        await client.topics.DeleteTopic(topic_pb.DeleteTopicRequest(name=topic))
        await member.until_owner_of((f"{topic}-kept", 0))
        await client.publish(f"{topic}-kept", [b"goes on"])
        await member.until(lambda: member.values(f"{topic}-kept") == [b"goes on"])
        await client.create_topic(topic, 1, NO_DEDUP)
        await client.publish(topic, [b"new"])
        await member.until(lambda: member.values(topic) == [b"old", b"new"])
        assert member.starts[(topic, 0)] == 0, "the offsets of the deleted topic are forgotten"


async def test_credit_holds_a_subscriber_back(client: Client, topic: str) -> None:
    for number in range(8):
        await client.publish(topic, [b"%d" % number], number % 4)

    def total() -> int:
        return sum(len(records) for records in member.received.values())

    async with Member.join(client, topic, topic, grant=FlowGrant(records=3)) as member:
        await member.until(lambda: total() == 3)
        assert await is_silent(member.read())
        await member.grant(records=4)
        await member.until(lambda: total() == 7)
        assert await is_silent(member.read())
        assert not (await member.commit(1, topic)).HasField("error"), "commits need no credit"


async def test_a_stream_must_begin_with_its_start(client: Client) -> None:
    call = client.consuming.Subscribe()
    await call.write(consume_pb.SubscribeRequest(grant=FlowGrant(records=1)))
    assert await refusal(call.read()) == invalid()
    call = client.consuming.Subscribe()
    await call.done_writing()
    assert await within_deadline(call.read()) is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
