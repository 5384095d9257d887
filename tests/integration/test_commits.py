"""Commits that wait for the disk, over the wire: what may overtake them and what may not.

The broker is the real one, in this process, over files whose syncs the test holds and counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cursus_broker.app import serve
from cursus_broker.log.settings import LogSettings
from cursus_broker.log.sync import BULK_AT
from cursus_broker.settings import BrokerSettings
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import group_service_pb2 as pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL, ACKS_WRITTEN, Acks
from cursus_proto.v1.records_pb2 import FlowGrant, OffsetSpec
from tests.harness.clients import Client
from tests.harness.disks import HeldFiles
from tests.harness.refusals import Refusal, refusal_of
from tests.harness.streams import Member, is_silent, within_deadline
from tests.harness.waiting import eventually

TOPIC = "orders"


@pytest.fixture
def files() -> HeldFiles:
    return HeldFiles()


@pytest.fixture
async def client(tmp_path: Path, files: HeldFiles) -> AsyncIterator[Client]:
    """Of a broker that syncs only what somebody waits for."""
    log = LogSettings(linger_ms=3_600_000, flush_records=1_000_000)
    settings = BrokerSettings(data_dir=tmp_path / "data", grpc_port=0, health_port=0, metrics_port=0, log=log)
    stop = asyncio.Event()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def announce(*, grpc: tuple[str, int], **_: tuple[str, int]) -> None:
        ready.set_result(f"{grpc[0]}:{grpc[1]}")

    serving = asyncio.create_task(serve(settings, stop, files, announce=announce))
    try:
        async with Client.connect(await within_deadline(ready)) as connected:
            yield connected
    finally:
        files.fails = False
        files.may_sync.set()
        stop.set()
        await within_deadline(serving)


async def publish(client: Client, count: int, partition: int = 0, acks: Acks.ValueType = ACKS_WRITTEN) -> None:
    await client.publish(TOPIC, [b"%d" % number for number in range(count)], partition, acks)


async def committed(client: Client, partition: int = 0) -> int | None:
    response = await client.groups.FetchOffsets(pb.FetchOffsetsRequest(group="readers"))
    found = {one.partition: one.next_offset for one in response.offsets}
    return found.get(partition)


async def commit_outside(client: Client, offsets: dict[int, int]) -> dict[int, Refusal | None]:
    """A commit of somebody outside the group."""
    request = pb.CommitOffsetsRequest(group="readers")
    for partition, next_offset in offsets.items():
        request.offsets.add(topic=TOPIC, partition=partition, next_offset=next_offset)
    response = await client.groups.CommitOffsets(request)
    return {one.partition: refusal_of(one.error) if one.HasField("error") else None for one in response.results}


async def test_a_commit_is_answered_only_when_what_was_read_is_synced(client: Client, files: HeldFiles) -> None:
    await client.create_topic(TOPIC)
    await publish(client, 3)
    files.hold()
    commit = asyncio.ensure_future(commit_outside(client, {0: 3}))
    await files.sync_started()
    assert await is_silent(asyncio.shield(commit))
    assert await committed(client) is None
    files.may_sync.set()
    assert await commit == {0: None}
    assert await committed(client) == 3


async def test_commits_of_synced_records_cost_no_sync(client: Client, files: HeldFiles) -> None:
    await client.create_topic(TOPIC)
    await publish(client, 20, acks=ACKS_ALL)
    await publish(client, 20)
    syncs = files.syncs
    async with Member.join(client, "readers", TOPIC) as reader:
        await reader.until(lambda: len(reader.values(TOPIC)) == 40)
        for offset in range(1, 21):
            assert not (await reader.commit(offset, TOPIC)).HasField("error")
        assert files.syncs == syncs
        await reader.commit(21, TOPIC)
        assert files.syncs == syncs + 1


async def test_a_commit_over_many_logs_costs_one_sync_of_the_file_system(client: Client, files: HeldFiles) -> None:
    partitions = 2 * BULK_AT
    await client.create_topic(TOPIC, partitions)
    for partition in range(partitions):
        await publish(client, 2, partition)
    before = files.syncs, files.file_system_syncs
    assert set((await commit_outside(client, dict.fromkeys(range(partitions), 2))).values()) == {None}
    assert (files.syncs, files.file_system_syncs) == (before[0], before[1] + 1)


async def test_a_log_that_cannot_be_synced_refuses_its_own_partition(client: Client, files: HeldFiles) -> None:
    await client.create_topic(TOPIC, 2)
    await publish(client, 3, 1, ACKS_ALL)
    await publish(client, 3, 0)
    files.fails = True
    outcomes = await commit_outside(client, {0: 3, 1: 3})
    assert outcomes[1] is None
    refused = outcomes[0]
    assert refused is not None
    assert refused.reason == "STORAGE_FAILED"


async def test_a_commit_that_waits_holds_back_no_credit(client: Client, files: HeldFiles) -> None:
    await client.create_topic(TOPIC)
    await publish(client, 2)
    await publish(client, 2)
    async with Member.join(client, "readers", TOPIC, grant=FlowGrant(records=2, bytes=1_000_000)) as reader:
        await reader.until(lambda: len(reader.values(TOPIC)) == 2)
        files.hold()
        commit = asyncio.ensure_future(reader.commit(2, TOPIC))
        await files.sync_started()
        await reader.grant(records=2)
        await eventually(lambda: len(reader.values(TOPIC)) == 4)
        assert not commit.done()
        files.may_sync.set()
        assert not (await commit).HasField("error")


async def test_an_acknowledgement_does_not_overtake_the_commit_before_it(client: Client, files: HeldFiles) -> None:
    """Else the next owner would begin where the group stood before the commit."""
    await client.create_topic(TOPIC)
    await publish(client, 3)
    # By modulo the partition goes to the member whose id sorts first, so it moves when the other comes.
    modulo = pb.ASSIGNMENT_STRATEGY_MODULO
    async with Member.join(client, "readers", TOPIC, client_id="b", strategy=modulo) as first:
        await first.until(lambda: len(first.values(TOPIC)) == 3)
        files.hold()
        async with Member.join(client, "readers", TOPIC, client_id="a") as second:
            await first.until(lambda: not first.owned, acknowledge=False)
            commit = asyncio.ensure_future(first.commit(3, TOPIC))
            await files.sync_started()
            await first.acknowledge()
            granted = asyncio.ensure_future(second.until_owner_of((TOPIC, 0)))
            assert await is_silent(asyncio.shield(granted))
            files.may_sync.set()
            assert not (await commit).HasField("error")
            await granted
            assert second.starts == {(TOPIC, 0): 3}


async def test_leaving_does_not_overtake_the_commit_before_it(client: Client, files: HeldFiles) -> None:
    await client.create_topic(TOPIC)
    await publish(client, 3)
    async with Member.join(client, "readers", TOPIC) as reader:
        await reader.until(lambda: len(reader.values(TOPIC)) == 3)
        files.hold()
        commit = asyncio.ensure_future(reader.commit(3, TOPIC))
        await files.sync_started()
        await reader.close_sending()
        files.may_sync.set()
        assert not (await commit).HasField("error")
        assert await reader.read() is None
    assert await committed(client) == 3
    described = await client.groups.DescribeGroup(pb.DescribeGroupRequest(group="readers"))
    assert described.summary.member_count == 0


async def test_commits_of_a_stream_are_answered_in_their_order(client: Client, files: HeldFiles) -> None:
    """The first waits for the disk, the second need not."""
    await client.create_topic(TOPIC, 2)
    await publish(client, 3, 0)
    await publish(client, 3, 1, ACKS_ALL)
    call = client.consuming.Subscribe()
    start = consume_pb.SubscribeStart(group="readers", topics=[TOPIC])
    await call.write(consume_pb.SubscribeRequest(start=start))
    files.hold()
    for number, partition in enumerate((0, 1, 0), start=1):
        offset = pb.CommitOffset(topic=TOPIC, partition=partition, next_offset=3)
        request = consume_pb.SubscribeCommit(commit_id=number, offsets=[offset])
        await call.write(consume_pb.SubscribeRequest(commit=request))
    await files.sync_started()
    answered: list[int] = []
    while len(answered) < 3:
        response = await within_deadline(call.read())
        assert isinstance(response, consume_pb.SubscribeResponse)
        if response.HasField("committed"):
            answered.append(response.committed.commit_id)
        elif response.HasField("batches") and not files.may_sync.is_set():
            files.may_sync.set()  # the records have come, and nothing was answered before them
    call.cancel()
    assert answered == [1, 2, 3]


async def test_a_reset_waits_for_the_disk_too(client: Client, files: HeldFiles) -> None:
    await client.create_topic(TOPIC)
    await publish(client, 3)
    files.hold()
    change = pb.OffsetReset(topic=TOPIC, to=OffsetSpec(offset=3))
    reset = asyncio.ensure_future(client.groups.ResetOffsets(pb.ResetOffsetsRequest(group="readers", resets=[change])))
    await files.sync_started()
    assert await is_silent(asyncio.shield(reset))
    assert await committed(client) is None
    files.may_sync.set()
    await reset
    assert await committed(client) == 3
