"""Reading: long-poll fetches, Consume streams, history and live records, retention and what readers are told of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL, ACKS_WRITTEN
from cursus_proto.v1.records_pb2 import OFFSET_EDGE_EARLIEST, OFFSET_EDGE_LATEST, FlowGrant, OffsetSpec
from tests.harness.clients import Client
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import OUT_OF_RANGE, invalid, not_found, refusal, refusal_of
from tests.harness.streams import ConsumeStream, is_silent, within_deadline
from tests.harness.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

LATEST = OffsetSpec(edge=OFFSET_EDGE_LATEST)
NO_DEDUP = topic_pb.TopicConfig(content_deduplication=False)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("consume") / "data"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(data_dir: Path) -> AsyncIterator[BrokerProcess]:
    """A broker that looks after retention all the time and keeps few records in memory."""
    args = ("--topics-retention-check-ms", "100", "--consume-tail-records", "50")
    async with BrokerProcess.start(data_dir, *args) as process:
        yield process


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with Client.connect(broker.grpc) as connected:
        yield connected


@pytest_asyncio.fixture(loop_scope="module")
async def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, with two partitions."""
    name = str(request.node.name)
    await client.create_topic(name, 2, NO_DEDUP)
    return name


def parts(topic: str, *offsets: int) -> list[pb.FetchPartition]:
    """A fetch of partition i at offset i of `offsets`."""
    return [pb.FetchPartition(topic=topic, partition=index, offset=at) for index, at in enumerate(offsets)]


def counts(response: pb.FetchResponse) -> list[int]:
    return [sum(batch.record_count for batch in one.batches) for one in response.partitions]


# Fetch


async def test_an_acknowledged_record_is_visible_to_the_next_fetch(client: Client, topic: str) -> None:
    for number in range(50):
        appended = await client.publish(topic, [b"%d" % number], acks=ACKS_ALL if number % 2 else ACKS_WRITTEN)
        fetched = await client.fetch(topic, 0, appended.base_offset)
        assert fetched.batches[0].records.records[0].value == b"%d" % number
        assert fetched.next_offset == number + 1


async def test_a_waiting_fetch_is_woken_by_the_publish(client: Client, topic: str) -> None:
    waiting = asyncio.ensure_future(client.fetch(topic, 0, 0, max_wait_ms=60_000))
    assert await is_silent(asyncio.shield(waiting), 0.1)
    await client.publish(topic, [b"wake up"])
    assert (await within_deadline(waiting)).batches[0].record_count == 1


async def test_a_fetch_answers_empty_when_its_wait_is_over(client: Client, topic: str) -> None:
    began = time.monotonic()
    fetched = await client.fetch(topic, 0, 0, max_wait_ms=200)
    assert not fetched.batches
    assert not fetched.HasField("error")
    assert time.monotonic() - began >= 0.2


async def test_a_fetch_waits_for_min_bytes(client: Client, topic: str) -> None:
    request = pb.FetchRequest(partitions=parts(topic, 0, 0), max_wait_ms=60_000, min_bytes=2_000)
    waiting = asyncio.ensure_future(client.consuming.Fetch(request))
    await client.publish(topic, [bytes(900)])
    assert await is_silent(asyncio.shield(waiting), 0.1)
    await client.publish(topic, [bytes(1_200)], partition=1)
    assert counts(await within_deadline(waiting)) == [1, 1]


async def test_a_fetch_that_can_never_reach_min_bytes_answers_with_what_its_limits_allow(
    client: Client, topic: str
) -> None:
    """It used to spin: more records were there than max_records or max_bytes let it take, so it was woken at once,
    again and again, and no other call was served any more.
    """
    for _ in range(5):
        await client.publish(topic, [bytes(600)])
    limits: list[dict[str, int]] = [{"max_records": 1}, {"max_bytes": 1_000}]
    for limit in limits:
        request = pb.FetchRequest(partitions=parts(topic, 0), max_wait_ms=60_000, min_bytes=100_000, **limit)
        assert counts(await within_deadline(client.consuming.Fetch(request))) == [1]
    narrow = pb.FetchPartition(topic=topic, partition=0, offset=0, max_bytes=700)
    request = pb.FetchRequest(partitions=[narrow], max_wait_ms=60_000, min_bytes=100_000)
    assert counts(await within_deadline(client.consuming.Fetch(request))) == [1]


async def test_max_records_and_max_bytes_stop_at_whole_batches(client: Client, topic: str) -> None:
    for partition in (0, 1):
        for _ in range(4):
            await client.publish(topic, [bytes(100)] * 10, partition)
    fetch = client.consuming.Fetch
    assert counts(await fetch(pb.FetchRequest(partitions=parts(topic, 0, 0), max_records=25))) == [20, 0]
    assert counts(await fetch(pb.FetchRequest(partitions=parts(topic, 0, 0), max_records=55))) == [40, 10]
    assert counts(await fetch(pb.FetchRequest(partitions=parts(topic, 0, 0), max_bytes=2_500))) == [20, 0]
    assert counts(await fetch(pb.FetchRequest(partitions=parts(topic, 0, 0), max_bytes=1))) == [10, 0]
    narrow = parts(topic, 0, 0)
    narrow[0].max_bytes = 1
    assert counts(await fetch(pb.FetchRequest(partitions=narrow))) == [10, 40]


async def test_a_fetch_inside_a_batch_delivers_the_whole_batch(client: Client, topic: str) -> None:
    await client.publish(topic, [b"a", b"b", b"c"])
    fetched = await client.fetch(topic, 0, 1)
    assert fetched.batches[0].base_offset == 0
    assert [one.value for one in await client.read_all(topic, 0, 1)] == [b"b", b"c"]


async def test_a_failing_partition_is_answered_in_its_place(client: Client, topic: str) -> None:
    await client.publish(topic, [b"x"])
    asked = [
        pb.FetchPartition(topic="no-such-topic", partition=0),
        pb.FetchPartition(topic=topic, partition=0, offset=0),
        pb.FetchPartition(topic=topic, partition=9, offset=0),
        pb.FetchPartition(topic=topic, partition=0, offset=99),
        pb.FetchPartition(topic=topic, partition=0, offset=-1),
    ]
    answered = await client.consuming.Fetch(pb.FetchRequest(partitions=asked, max_wait_ms=60_000))
    errors = [refusal_of(one.error) if one.HasField("error") else None for one in answered.partitions]
    assert errors == [not_found("TOPIC_NOT_FOUND"), None, not_found("PARTITION_NOT_FOUND"), OUT_OF_RANGE, invalid()]
    assert counts(answered) == [0, 1, 0, 0, 0]
    assert errors[3] is not None
    assert errors[3].metadata == {"requested": "99", "earliest": "0", "latest": "1"}


async def test_fetches_of_no_partition_or_too_many_are_refused(client: Client, topic: str) -> None:
    many = [pb.FetchPartition(topic=topic, partition=0)] * 10_001
    assert await refusal(client.consuming.Fetch(pb.FetchRequest())) == invalid()
    assert await refusal(client.consuming.Fetch(pb.FetchRequest(partitions=many))) == invalid("TOO_MANY_ITEMS")
    assert len((await client.consuming.Fetch(pb.FetchRequest(partitions=many[1:]))).partitions) == 10_000


# Consume


async def test_a_stream_reads_history_and_then_follows(client: Client, topic: str) -> None:
    for number in range(30):
        await client.publish(topic, [b"old %d" % number])
    async with ConsumeStream.open(client, topic) as stream:
        assert (stream.started.start_offset, stream.started.next_offset) == (0, 30)
        assert not stream.started.HasField("end_offset")
        taken = await stream.take(30)
        for number in range(5):
            await client.publish(topic, [b"new %d" % number])
            taken += await stream.take(1)
    assert [one.offset for one in taken] == list(range(35))
    assert [one.value for one in taken[30:]] == [b"new %d" % number for number in range(5)]


async def test_a_stream_starts_where_it_is_told(client: Client, topic: str) -> None:
    times = []
    for number in range(6):
        times.append((await client.publish(topic, [b"%d" % number])).append_time_ms)
        # Append times have a resolution of a millisecond; the next batch has to get a later one.
        await eventually(lambda: time.time_ns() // 1_000_000 > times[-1])

    async def first(start_at: OffsetSpec) -> int:
        async with ConsumeStream.open(client, topic, start_at=start_at, stop_at_end=True) as stream:
            taken = await stream.rest()
            assert [one.offset for one in taken] == list(range(stream.started.start_offset, 6))
            return stream.started.start_offset

    assert await first(OffsetSpec(edge=OFFSET_EDGE_EARLIEST)) == 0
    assert await first(LATEST) == 6
    assert await first(OffsetSpec(offset=4)) == 4
    assert await first(OffsetSpec(offset=6)) == 6
    assert await first(OffsetSpec(timestamp_ms=times[3])) == 3
    assert await first(OffsetSpec(timestamp_ms=times[3] + 1)) == 4
    assert await first(OffsetSpec(timestamp_ms=0)) == 0
    assert await first(OffsetSpec(timestamp_ms=times[5] + 60_000)) == 6


async def test_a_bounded_stream_ends_by_itself(client: Client, topic: str) -> None:
    for number in range(10):
        await client.publish(topic, [b"%d" % number])
    async with ConsumeStream.open(client, topic, end_offset=4) as stream:
        assert stream.started.end_offset == 4
        assert [one.offset for one in await stream.rest()] == [0, 1, 2, 3]
    async with ConsumeStream.open(client, topic, stop_at_end=True) as stream:
        await client.publish(topic, [b"later"])
        assert [one.offset for one in await stream.rest()] == list(range(10))


async def test_a_bound_beyond_the_end_waits_for_the_records(client: Client, topic: str) -> None:
    await client.publish(topic, [b"0"])
    async with ConsumeStream.open(client, topic, end_offset=3) as stream:
        assert len(await stream.take(1)) == 1
        await client.publish(topic, [b"1", b"2", b"3"])
        # The last batch is whole, also where it reaches beyond the bound.
        assert [one.value for one in await stream.rest()] == [b"1", b"2", b"3"]


async def test_a_reader_that_closed_its_sending_side_still_receives(client: Client, topic: str) -> None:
    await client.publish(topic, [b"0"])
    call = client.consuming.Consume()
    start = pb.ConsumeStart(topic=topic, start_at=OffsetSpec(offset=0))
    await call.write(pb.ConsumeRequest(start=start))
    await call.done_writing()
    responses = [await within_deadline(call.read()) for _ in range(2)]
    await client.publish(topic, [b"1"])
    responses.append(await within_deadline(call.read()))
    call.cancel()
    assert [one.WhichOneof("response") for one in responses if isinstance(one, pb.ConsumeResponse)] == [
        "started",
        "batches",
        "batches",
    ]


async def test_credit_holds_a_stream_back(client: Client, topic: str) -> None:
    for number in range(10):
        await client.publish(topic, [b"%d" % number])
    async with ConsumeStream.open(client, topic, grant=FlowGrant(records=3)) as stream:
        assert [one.offset for one in await stream.take(3)] == [0, 1, 2]
        waiting = asyncio.ensure_future(stream.next())
        assert await is_silent(asyncio.shield(waiting))
        await stream.grant(records=4)
        taken = await within_deadline(waiting)
        assert taken is not None
        taken += await stream.take(4 - len(taken))
        assert [one.offset for one in taken] == [3, 4, 5, 6]
        assert await is_silent(stream.next())


async def test_credit_in_bytes_may_be_overdrawn_by_one_batch(client: Client, topic: str) -> None:
    for _ in range(6):
        await client.publish(topic, [bytes(1_000)])
    async with ConsumeStream.open(client, topic, grant=FlowGrant(bytes=1_500), max_response_bytes=1) as stream:
        assert len(await stream.take(2)) == 2
        assert await is_silent(stream.next())


async def test_a_stream_takes_nothing_but_grants_after_its_start(client: Client, topic: str) -> None:
    """Used to be answered INTERNAL: a refusal inside the stream's tasks was not recognised as one."""
    async with ConsumeStream.open(client, topic) as stream:
        await stream.send(pb.ConsumeRequest(start=pb.ConsumeStart(topic=topic, start_at=LATEST)))
        assert await refusal(stream.next()) == invalid()
    async with ConsumeStream.open(client, topic) as stream:
        await stream.grant(records=-1)
        assert await refusal(stream.next()) == invalid()


async def test_history_is_read_across_segments_and_from_disk(client: Client) -> None:
    """Far more than the tail cache of 50 records, in segments of some twenty batches each."""
    config = topic_pb.TopicConfig(content_deduplication=False, segment_bytes=8_192)
    await client.create_topic("many-segments", 1, config)
    expected: list[bytes] = []
    async with ConsumeStream.open(client, "many-segments") as live:
        for number in range(100):
            values = [b"%d-%d" % (number, index) + bytes(100) for index in range(5)]
            await client.publish("many-segments", values)
            expected += values
        described = await client.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name="many-segments"))
        assert described.partitions[0].segment_count > 5
        assert await client.read_values("many-segments") == expected
        assert [one.value for one in await live.take(len(expected))] == expected
    async with ConsumeStream.open(client, "many-segments", stop_at_end=True, max_response_bytes=2_000) as stream:
        assert [one.value for one in await stream.rest()] == expected


# Retention, deletion and change


async def moved_earliest(client: Client, topic: str) -> int:
    """The earliest offset of partition 0, once retention has moved it."""

    async def earliest() -> int:
        described = await client.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name=topic))
        return described.partitions[0].earliest_offset

    return await eventually(earliest)


async def test_retention_by_size_moves_the_earliest_offset(client: Client) -> None:
    config = topic_pb.TopicConfig(content_deduplication=False, segment_bytes=4_096, retention_bytes=10_000)
    await client.create_topic("by-size", 1, config)
    for number in range(50):
        await client.publish("by-size", [b"%02d" % number + bytes(998)])
    earliest = await moved_earliest(client, "by-size")
    fetched = await client.fetch("by-size", 0, 0)
    refused = refusal_of(fetched.error)
    assert refused == OUT_OF_RANGE
    assert int(refused.metadata["earliest"]) >= earliest
    assert refused.metadata["latest"] == "50"
    left = await client.read_all("by-size")
    assert [one.value[:2] for one in left] == [b"%02d" % one.offset for one in left]
    assert left[-1].offset == 49
    start = pb.ConsumeStart(topic="by-size", start_at=OffsetSpec(offset=0))
    call = client.consuming.Consume()
    await call.write(pb.ConsumeRequest(start=start))
    assert await refusal(call.read()) == OUT_OF_RANGE


async def test_retention_by_age_retires_also_the_last_segment(client: Client) -> None:
    config = topic_pb.TopicConfig(content_deduplication=False, segment_ms=100, retention_ms=200)
    await client.create_topic("by-age", 1, config)
    await client.publish("by-age", [b"old"] * 3)
    assert await moved_earliest(client, "by-age") == 3
    assert (await client.publish("by-age", [b"new"])).base_offset == 3


async def test_a_reader_whose_records_are_deleted_is_told_the_range(client: Client, topic: str) -> None:
    """Used to be answered INTERNAL, because it happens while the stream runs."""
    for number in range(10):
        await client.publish(topic, [b"%d" % number])
    async with ConsumeStream.open(client, topic, grant=FlowGrant(records=2)) as stream:
        assert len(await stream.take(2)) == 2
        await delete_records(client, topic, 8)
        await stream.grant(records=1)
        refused = await refusal(stream.next())
    assert refused == OUT_OF_RANGE
    assert refused.metadata == {"requested": "2", "earliest": "8", "latest": "10"}


async def delete_records(client: Client, topic: str, before: int) -> int:
    part = topic_pb.DeleteRecordsPartition(partition=0, before_offset=before)
    request = topic_pb.DeleteRecordsRequest(topic=topic, partitions=[part])
    return (await client.topics.DeleteRecords(request)).partitions[0].earliest_offset


async def test_deleted_records_are_gone_for_good(client: Client, topic: str) -> None:
    for number in range(10):
        await client.publish(topic, [b"%d" % number])
    assert await delete_records(client, topic, 4) == 4
    assert [one.offset for one in await client.read_all(topic)] == [4, 5, 6, 7, 8, 9]
    assert refusal_of((await client.fetch(topic, 0, 3)).error) == OUT_OF_RANGE
    assert await delete_records(client, topic, 2) == 4
    assert await refusal(delete_records(client, topic, 11)) == OUT_OF_RANGE
    assert await refusal(delete_records(client, topic, -1)) == invalid()
    assert await delete_records(client, topic, 10) == 10
    assert await client.read_all(topic) == []
    assert (await client.publish(topic, [b"next"])).base_offset == 10


async def test_offsets_are_listed_by_edge_and_time(client: Client, topic: str) -> None:
    appended = [await client.publish(topic, [b"%d" % number]) for number in range(3)]
    times = [one.append_time_ms for one in appended]

    async def offsets(at: OffsetSpec) -> list[int]:
        request = topic_pb.ListOffsetsRequest(topic=topic, at=at)
        return [one.offset for one in (await client.topics.ListOffsets(request)).offsets]

    assert await offsets(OffsetSpec(edge=OFFSET_EDGE_EARLIEST)) == [0, 0]
    assert await offsets(LATEST) == [3, 0]
    assert await offsets(OffsetSpec(timestamp_ms=times[2])) == [times.index(times[2]), 0]
    request = topic_pb.ListOffsetsRequest(topic=topic, partitions=[1, 0], at=OffsetSpec(timestamp_ms=0))
    listed = (await client.topics.ListOffsets(request)).offsets
    assert [(one.partition, one.offset, one.HasField("append_time_ms")) for one in listed] == [
        (1, 0, False),
        (0, 0, True),
    ]
    assert listed[1].append_time_ms == times[0]


async def test_partitions_are_added_and_never_taken_away(client: Client, topic: str) -> None:
    await client.publish(topic, [b"before"], partition=1)
    grown = await client.topics.AddPartitions(topic_pb.AddPartitionsRequest(name=topic, partition_count=5))
    assert grown.topic.partition_count == 5
    await client.publish(topic, [b"after"], partition=4)
    assert await client.read_values(topic, 4) == [b"after"]
    assert await client.read_values(topic, 1) == [b"before"]
    shrink = topic_pb.AddPartitionsRequest(name=topic, partition_count=2)
    assert await refusal(client.topics.AddPartitions(shrink)) == invalid("INVALID_PARTITION_COUNT")
    same = await client.topics.AddPartitions(topic_pb.AddPartitionsRequest(name=topic, partition_count=5))
    assert same.topic.partition_count == 5


async def test_a_deleted_topic_frees_its_data_and_its_name(client: Client, data_dir: Path, topic: str) -> None:
    await client.publish(topic, [b"old"] * 3)
    directory = data_dir / "logs" / topic
    assert directory.exists()
    async with ConsumeStream.open(client, topic) as stream:
        assert len(await stream.take(3)) == 3
        waiting = asyncio.ensure_future(client.fetch(topic, 0, 3, max_wait_ms=60_000))
        assert await is_silent(asyncio.shield(waiting), 0.1)
        await client.topics.DeleteTopic(topic_pb.DeleteTopicRequest(name=topic))
        assert await refusal(stream.next()) == not_found("TOPIC_NOT_FOUND")
        assert refusal_of((await within_deadline(waiting)).error) == not_found("TOPIC_NOT_FOUND")
    assert not directory.exists()
    assert await refusal(client.publish(topic, [b"x"])) == not_found("TOPIC_NOT_FOUND")
    created = await client.create_topic(topic, 1, NO_DEDUP)
    assert created.partition_count == 1
    assert (await client.publish(topic, [b"new"])).base_offset == 0
    assert await client.read_values(topic) == [b"new"]


async def test_a_topic_is_reconfigured_while_it_is_used(client: Client, topic: str) -> None:
    config = topic_pb.TopicConfig(max_value_bytes=10, labels={"team": "blue", "tier": "gold"})
    updated = await client.topics.UpdateTopic(topic_pb.UpdateTopicRequest(name=topic, config=config))
    assert updated.topic.config.max_value_bytes == 10
    assert await refusal(client.publish(topic, [bytes(11)])) == invalid("RECORD_TOO_LARGE")
    await client.publish(topic, [bytes(10)])
    change = topic_pb.UpdateTopicRequest(
        name=topic, config=topic_pb.TopicConfig(labels={"team": "", "env": "test"}), reset_fields=["max_value_bytes"]
    )
    updated = await client.topics.UpdateTopic(change)
    assert not updated.topic.config.HasField("max_value_bytes")
    assert dict(updated.topic.config.labels) == {"tier": "gold", "env": "test"}
    await client.publish(topic, [bytes(11)])
    unknown = topic_pb.UpdateTopicRequest(name=topic, reset_fields=["no_such_field"])
    assert await refusal(client.topics.UpdateTopic(unknown)) == invalid("INVALID_TOPIC_CONFIG")
    smaller = topic_pb.UpdateTopicRequest(name=topic, config=topic_pb.TopicConfig(segment_bytes=1_024))
    await client.topics.UpdateTopic(smaller)
    for _ in range(20):
        await client.publish(topic, [bytes(500)])
    described = await client.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name=topic))
    assert described.partitions[0].segment_count > 5
