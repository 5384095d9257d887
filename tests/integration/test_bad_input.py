"""Whatever a client sends: a clear status with a reason, and the next request works."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import pytest
import pytest_asyncio

from cursus_proto import codecs
from cursus_proto import records as record_sets
from cursus_proto.v1 import cluster_service_pb2 as cluster_pb
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import group_service_pb2 as group_pb
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1 import records_pb2
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.records_pb2 import OffsetSpec, Record, RecordSet
from tests.harness.clients import Client, publish_request, stored_records
from tests.harness.memory import peak_of
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import OUT_OF_RANGE, Refusal, invalid, not_found, precondition, refusal, refusal_of
from tests.harness.streams import ConsumeStream, Member, within_deadline

pytestmark = pytest.mark.asyncio(loop_scope="module")

if TYPE_CHECKING:
    Raw = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
    RawStream = grpc.aio.StreamStreamMultiCallable[bytes, bytes]

MIB = 1024 * 1024
LIMIT = 64 * MIB
TOPIC = "sound"
NO_DEDUP = topic_pb.TopicConfig(content_deduplication=False)
PRODUCER = pb.ProducerIdentity(id=b"p", epoch=1, first_sequence=0)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess.start(tmp_path_factory.mktemp("bad") / "data") as process:
        yield process
        assert "rpc.failed" not in process.log, "something was answered INTERNAL"
        assert "Traceback" not in process.log


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    async with Client.connect(broker.grpc) as connected:
        await connected.create_topic(TOPIC, 2, NO_DEDUP)
        yield connected


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def the_next_request_works(client: Client) -> AsyncIterator[None]:
    """After every test: publishing and reading go on over the same connection."""
    yield
    appended = await client.publish(TOPIC, [b"still there"], partition=1)
    fetched = await client.fetch(TOPIC, 1, appended.base_offset)
    assert fetched.batches[0].records.records[0].value == b"still there"


async def publish(client: Client, **fields: object) -> pb.PublishResponse:
    """Publish with these fields to partition 0 of the topic, unless they say otherwise."""
    values: dict[str, object] = {"topic": TOPIC, "partition": 0, **fields}
    if not {"records", "compressed_records"} & values.keys():
        values["records"] = RecordSet(records=[Record(value=b"x")])
    return await client.publishing.Publish(pb.PublishRequest(**values))  # type: ignore[arg-type]  # named by tests


# Sizes


async def test_a_record_set_above_the_limit_is_refused_by_name_and_number(client: Client) -> None:
    refused = await refusal(publish(client, records=RecordSet(records=[Record(value=bytes(LIMIT))])))
    assert refused == invalid("RECORD_TOO_LARGE")
    assert refused.metadata["limit"] == str(LIMIT)
    assert int(refused.metadata["size"]) > LIMIT


async def test_a_record_set_at_the_limit_is_stored_and_delivered(client: Client) -> None:
    await client.create_topic("large", 1, NO_DEDUP)
    overhead = RecordSet(records=[Record(value=bytes(LIMIT - 100))]).ByteSize() - (LIMIT - 100)
    value = random.Random(1).randbytes(1024) * ((LIMIT - overhead) // 1024) + bytes((LIMIT - overhead) % 1024)
    request = publish_request("large", [value])
    assert request.records.ByteSize() == LIMIT
    assert (await client.publishing.Publish(request)).appended[0].base_offset == 0
    (batch,) = (await client.fetch("large", 0, 0)).batches
    assert stored_records(batch)[0].value == value
    await client.topics.DeleteTopic(topic_pb.DeleteTopicRequest(name="large"))


async def test_a_message_above_the_transports_limit_is_refused_by_the_transport(client: Client) -> None:
    """Far above the limit gRPC itself refuses, before the bytes reach the broker's code."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await publish(client, records=RecordSet(records=[Record(value=bytes(LIMIT + 8 * MIB))]))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_refused_batch_does_not_end_its_stream(client: Client) -> None:
    requests = [
        publish_request(TOPIC, [b"one"]),
        publish_request(TOPIC, [bytes(LIMIT)]),
        publish_request("no-such-topic", [b"x"]),
        publish_request(TOPIC, [b"x"], partition=99),
        pb.PublishRequest(topic=TOPIC, partition=0),
        publish_request(TOPIC, [b"two"]),
    ]
    async with client.publish_stream() as stream:
        assert stream.opened.max_batch_bytes == LIMIT
        outcomes = [await stream.publish(request) for request in requests]
    reasons = [
        refusal_of(one.refused).reason if one is not None and one.HasField("refused") else "stored" for one in outcomes
    ]
    expected = ["RECORD_TOO_LARGE", "TOPIC_NOT_FOUND", "PARTITION_NOT_FOUND", "INVALID_REQUEST"]
    assert reasons == ["stored", *expected, "stored"]


async def test_a_stream_that_breaks_its_shape_is_ended_with_a_reason(client: Client) -> None:
    call = client.publishing.PublishStream()
    await call.write(pb.PublishStreamRequest(publish=publish_request(TOPIC, [b"x"])))
    assert await refusal(call.read()) == invalid()
    call = client.publishing.PublishStream()
    for _ in range(2):
        await call.write(pb.PublishStreamRequest(open=pb.PublishStreamOpen()))
    await call.read()
    assert await refusal(call.read()) == invalid()


async def test_zero_length_keys_and_values_are_kept_as_they_are(client: Client) -> None:
    await client.create_topic("empty", 1, NO_DEDUP)
    sent = [Record(), Record(key=b""), Record(key=b"k"), Record(key=b"", value=b"v"), Record(value=b"")]
    await client.publish("empty", sent)
    assert [one.record for one in await client.read_all("empty")] == sent
    routed = await client.publishing.Publish(publish_request("empty", [Record(key=b"")], partition=None))
    assert routed.appended[0].record_count == 1


# Names


@pytest.mark.parametrize(
    "name",
    ["a", "A-Z_0.9", "x" * 249, "größe", "主题", "тема-1", "ü" * 124 + "x", "...", ".hidden", "-", "con"],
    ids=range(11),
)
async def test_names_of_letters_and_digits_of_any_script_are_taken(client: Client, name: str) -> None:
    assert (await client.create_topic(name)).name == name
    await client.publish(name, [name.encode()])
    assert await client.read_values(name) == [name.encode()]
    listed = await client.topics.ListTopics(topic_pb.ListTopicsRequest())
    assert name in [topic.name for topic in listed.topics]
    await client.topics.DeleteTopic(topic_pb.DeleteTopicRequest(name=name))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../escape",
        "a/b",
        "/etc/passwd",
        "a\\b",
        "a\0b",
        "a b",
        "a\n",
        "x" * 250,
        "ü" * 125,
        "~",
        "a:b",
        "a*",
        "\u202ereversed",
        "u\u0308",
        "🙂",
        "%2e%2e",
    ],
    ids=range(19),
)
async def test_other_names_and_path_tricks_are_refused(client: Client, name: str) -> None:
    refused = await refusal(client.create_topic(name))
    assert refused == invalid("INVALID_TOPIC_NAME")
    assert refused.message
    assert await refusal(client.publish(name, [b"x"])) == not_found("TOPIC_NOT_FOUND")


async def test_bytes_that_are_no_message_are_refused(broker: BrokerProcess) -> None:
    """gRPC's own answer to them was UNKNOWN, with a traceback in the broker's log."""
    not_utf_8, cut_off = b"\x0a\x02\xff\xfe", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"
    async with grpc.aio.insecure_channel(broker.grpc) as channel:
        create: Raw = channel.unary_unary("/cursus.v1.TopicService/CreateTopic")
        assert await refusal(create(not_utf_8)) == invalid()
        assert await refusal(create(cut_off)) == invalid()
        for method in ("PublishService/PublishStream", "ConsumeService/Consume", "ConsumeService/Subscribe"):
            open_stream: RawStream = channel.stream_stream(f"/cursus.v1.{method}")
            call = open_stream()
            await call.write(cut_off)
            assert await refusal(call.read()) == invalid()


# Record sets


async def test_an_unknown_codec_is_refused(client: Client) -> None:
    unknown: records_pb2.Codec.ValueType = records_pb2.Codec.ValueType(77)
    refused = await refusal(publish(client, codec=unknown, compressed_records=b"x", record_count=1))
    assert refused == invalid("UNKNOWN_CODEC")
    assert refused.metadata["codec"] == "77"


@pytest.mark.parametrize("codec", [records_pb2.CODEC_GZIP, records_pb2.CODEC_ZSTD, records_pb2.CODEC_SNAPPY])
async def test_a_corrupt_compressed_set_is_refused_where_the_broker_must_look_inside(
    client: Client, codec: records_pb2.Codec.ValueType
) -> None:
    packed = bytearray(record_sets.pack([Record(key=b"%d" % n, value=bytes(50)) for n in range(20)], codec))
    packed[len(packed) // 2] ^= 0xFF
    fields: dict[str, object] = {"codec": codec, "compressed_records": bytes(packed), "record_count": 20}
    assert await refusal(publish(client, **fields, partition=None)) == invalid("CORRUPT_RECORD_SET")
    garbage: dict[str, object] = {"codec": codec, "compressed_records": b"\x00garbage", "record_count": 1}
    assert await refusal(publish(client, **garbage, partition=None)) == invalid("CORRUPT_RECORD_SET")


async def test_a_corrupt_compressed_set_is_delivered_as_it_is_and_refused_by_the_reader(client: Client) -> None:
    """With a named partition and several records nothing asks the broker to open the set."""
    await client.create_topic("opaque", 1, NO_DEDUP)
    packed = record_sets.pack([Record(value=bytes(50))] * 3, records_pb2.CODEC_GZIP)[:-9]
    await publish(client, topic="opaque", codec=records_pb2.CODEC_GZIP, compressed_records=packed, record_count=3)
    (batch,) = (await client.fetch("opaque", 0, 0)).batches
    assert batch.compressed_records == packed
    with pytest.raises(record_sets.MalformedRecordSet):
        record_sets.unpack(batch.compressed_records, batch.codec)
    await client.publish("opaque", [b"after"])
    assert (await client.fetch("opaque", 0, 3)).batches[0].record_count == 1


async def test_a_small_set_that_would_unpack_to_very_much_is_refused(client: Client) -> None:
    packed = record_sets.pack([Record(value=bytes(129 * MIB))], records_pb2.CODEC_ZSTD)
    assert len(packed) < MIB
    fields: dict[str, object] = {"codec": records_pb2.CODEC_ZSTD, "compressed_records": packed, "record_count": 1}
    assert await refusal(publish(client, **fields, partition=None)) == invalid("RECORD_SET_TOO_LARGE")


@pytest.mark.parametrize("claimed", [1, 1_000_000, 20_000_000])
async def test_millions_of_records_in_a_few_kilobytes_are_refused_before_any_is_made(
    client: Client, broker: BrokerProcess, claimed: int
) -> None:
    """They took 3.2 GB."""
    before = peak_of(broker.pid)
    packed = codecs.compress(records_pb2.CODEC_ZSTD, b"\n\0" * 20_000_000)
    assert len(packed) < 4_000
    fields: dict[str, object] = {"codec": records_pb2.CODEC_ZSTD, "compressed_records": packed, "record_count": claimed}
    assert await refusal(publish(client, **fields, partition=None)) == invalid("RECORD_SET_TOO_LARGE")
    assert peak_of(broker.pid) - before < 250 * MIB


async def test_a_list_of_a_million_is_refused_and_the_stream_or_call_alone_ends(client: Client) -> None:
    """Looking one partition up a million times held the event loop for six seconds."""
    place = OffsetSpec(edge=records_pb2.OFFSET_EDGE_LATEST)
    million = topic_pb.ListOffsetsRequest(topic=TOPIC, partitions=[0] * 1_000_000, at=place)
    found = await refusal(client.topics.ListOffsets(million))
    assert found == invalid("TOO_MANY_ITEMS")
    assert found.metadata == {"field": "ListOffsetsRequest.partitions", "limit": "10000"}
    most = topic_pb.ListOffsetsRequest(topic=TOPIC, partitions=[0] * 10_000, at=place)
    assert len((await client.topics.ListOffsets(most)).offsets) == 10_000
    start = consume_pb.SubscribeStart(group="g", topics=["t"] * 10_001)
    call = client.consuming.Subscribe()
    await call.write(consume_pb.SubscribeRequest(start=start))
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await within_deadline(call.read())
    assert refusal_of(ended.value) == invalid("TOO_MANY_ITEMS")


async def test_a_request_without_records_has_a_limit_of_its_own(client: Client) -> None:
    name = "n" * (4 * MIB)
    assert await refusal(client.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name=name))) == invalid(
        "REQUEST_TOO_LARGE"
    )


async def test_a_refusal_repeats_only_the_beginning_of_a_name_of_megabytes(client: Client) -> None:
    request = topic_pb.DescribeTopicRequest(name="n" * 3 * MIB)
    found = await refusal(client.topics.DescribeTopic(request))
    assert found == not_found("TOPIC_NOT_FOUND")
    assert len(found.message) + len(found.metadata["topic"]) < 3_000


async def test_records_are_deleted_once_a_partition(client: Client) -> None:
    twice = [topic_pb.DeleteRecordsPartition(partition=0, before_offset=0)] * 2
    request = topic_pb.DeleteRecordsRequest(topic=TOPIC, partitions=twice)
    assert await refusal(client.topics.DeleteRecords(request)) == invalid()


async def test_sets_that_are_not_what_they_claim_are_refused(client: Client) -> None:
    one = RecordSet(records=[Record(value=b"x")])
    crc = record_sets.checksum(one.SerializeToString())
    packed = record_sets.pack([Record(value=b"x")], records_pb2.CODEC_GZIP)
    gzip = records_pb2.CODEC_GZIP
    cases: list[tuple[dict[str, object], Refusal]] = [
        ({"records": one, "records_crc32c": crc ^ 1}, invalid("CORRUPT_RECORD_SET")),
        ({"records": one, "record_count": 2}, invalid("CORRUPT_RECORD_SET")),
        ({"records": RecordSet()}, invalid()),
        ({"records": one, "record_count": -1}, invalid()),
        ({"records": one, "record_count": 2**31 - 1}, invalid("RECORD_SET_TOO_LARGE")),
        ({"codec": gzip, "compressed_records": packed}, invalid()),
        ({"codec": gzip, "compressed_records": b"", "record_count": 1}, invalid("CORRUPT_RECORD_SET")),
        ({"codec": gzip, "records": one, "record_count": 1}, invalid()),
        ({"compressed_records": packed, "record_count": 1}, invalid()),
        ({"codec": gzip, "compressed_records": packed, "record_count": 5, "partition": None},
         invalid("CORRUPT_RECORD_SET")),
        ({"acks": 9}, invalid()),
        ({"deduplication": 9}, invalid()),
        ({"deduplication": pb.DEDUPLICATION_CONTENT, "records": RecordSet(records=[Record()] * 2)}, invalid()),
        ({"deduplication": pb.DEDUPLICATION_NONE, "producer": PRODUCER}, invalid()),
    ]  # fmt: skip
    for fields, expected in cases:
        assert await refusal(publish(client, **fields)) == expected, fields
    good = await publish(client, records=one, records_crc32c=crc, record_count=1)
    assert good.appended[0].record_count == 1


async def test_bytes_that_are_no_record_set_are_refused(client: Client, broker: BrokerProcess) -> None:
    async with grpc.aio.insecure_channel(broker.grpc) as channel:
        raw: Raw = channel.unary_unary("/cursus.v1.PublishService/Publish")
        topic = b"\x0a\x05sound" + b"\x10\x00"
        # A set (field 9) whose only record claims more bytes than there are.
        assert await refusal(raw(topic + b"\x4a\x03\x0a\x7fx")) == invalid("CORRUPT_RECORD_SET")
        # A set of a record that is well framed but not a record: no reader must choke on what the broker let in.
        refused = await refusal(raw(topic + b"\x4a\x00"))
        assert refused == invalid()


# Numbers


async def test_absurd_producers_are_refused(client: Client) -> None:
    def producer(**fields: object) -> pb.ProducerIdentity:
        return pb.ProducerIdentity(**{"id": b"p", "epoch": 0, "first_sequence": 0, **fields})  # type: ignore[arg-type]

    cases: list[tuple[pb.ProducerIdentity, dict[str, object], Refusal]] = [
        (producer(id=b""), {}, invalid()),
        (producer(first_sequence=-1), {}, invalid()),
        (producer(first_sequence=2**63 - 1), {}, invalid()),
        (producer(first_sequence=5), {}, precondition("PRODUCER_FORGOTTEN")),
        (producer(epoch=-1), {}, invalid()),
        (producer(sequencing=9), {}, invalid()),
        (producer(sequences=[1, 2]), {}, invalid()),
        (producer(id=b"x" * 65_536), {}, invalid()),
        (producer(), {"partition": None}, invalid("PARTITION_REQUIRED")),
    ]
    for identity, fields, expected in cases:
        assert await refusal(publish(client, producer=identity, **fields)) == expected, identity


async def test_partitions_that_do_not_exist_are_refused(client: Client) -> None:
    assert await refusal(publish(client, partition=-1)) == invalid()
    assert await refusal(publish(client, partition=2)) == not_found("PARTITION_NOT_FOUND")
    assert await refusal(publish(client, partition=2**31 - 1)) == not_found("PARTITION_NOT_FOUND")


async def test_absurd_counts_are_refused(client: Client) -> None:
    for count in (-1, -(2**31), 10_001, 2**31 - 1):
        assert await refusal(client.create_topic("absurd", count)) == invalid("INVALID_PARTITION_COUNT")
        add = topic_pb.AddPartitionsRequest(name=TOPIC, partition_count=count)
        assert await refusal(client.topics.AddPartitions(add)) == invalid("INVALID_PARTITION_COUNT")
    assert await refusal(client.create_topic(TOPIC)) == Refusal("ALREADY_EXISTS", "TOPIC_EXISTS")


@pytest.mark.parametrize(
    "config",
    [
        topic_pb.TopicConfig(segment_bytes=0),
        topic_pb.TopicConfig(segment_bytes=2**62),
        topic_pb.TopicConfig(segment_ms=-5),
        topic_pb.TopicConfig(retention_ms=-2),
        topic_pb.TopicConfig(retention_bytes=-2),
        topic_pb.TopicConfig(min_value_bytes=-1),
        topic_pb.TopicConfig(min_value_bytes=2, max_value_bytes=1),
        topic_pb.TopicConfig(labels={"": "x"}),
        topic_pb.TopicConfig(labels={"k": "x" * 300}),
        topic_pb.TopicConfig(labels={str(n): "x" for n in range(100)}),
    ],
    ids=range(10),
)
async def test_absurd_configurations_are_refused(client: Client, config: topic_pb.TopicConfig) -> None:
    assert await refusal(client.create_topic("absurd", 1, config)) == invalid("INVALID_TOPIC_CONFIG")
    update = topic_pb.UpdateTopicRequest(name=TOPIC, config=config)
    assert await refusal(client.topics.UpdateTopic(update)) == invalid("INVALID_TOPIC_CONFIG")


async def test_negative_and_future_offsets_are_refused(client: Client) -> None:
    await client.create_topic("short", 1, NO_DEDUP)
    await client.publish("short", [b"x"] * 5)
    refused = refusal_of((await client.fetch("short", 0, 6)).error)
    assert refused == OUT_OF_RANGE
    assert (refused.metadata["earliest"], refused.metadata["latest"]) == ("0", "5")
    assert refusal_of((await client.fetch("short", 0, 2**63 - 1)).error) == OUT_OF_RANGE
    assert refusal_of((await client.fetch("short", 0, -1)).error) == invalid()
    assert refusal_of((await client.fetch("short", 0, -(2**63))).error) == invalid()

    async def consume(**fields: object) -> None:
        async with ConsumeStream.open(client, "short", 0, **fields) as stream:
            await stream.next()

    for spec, expected in (
        (OffsetSpec(offset=-1), invalid()),
        (OffsetSpec(offset=6), OUT_OF_RANGE),
        (OffsetSpec(), invalid()),
        (OffsetSpec(edge=records_pb2.OffsetEdge.ValueType(9)), invalid()),
    ):
        assert await refusal(consume(start_at=spec)) == expected
        listed = topic_pb.ListOffsetsRequest(topic="short", at=spec)
        assert await refusal(client.topics.ListOffsets(listed)) == expected
        reset = group_pb.OffsetReset(topic="short", partition=0, to=spec)
        request = group_pb.ResetOffsetsRequest(group="g", resets=[reset])
        assert await refusal(client.groups.ResetOffsets(request)) == expected
    assert await refusal(consume(end_offset=-1)) == invalid()
    assert await refusal(consume(max_response_bytes=-1)) == invalid()
    assert await refusal(consume(grant=records_pb2.FlowGrant(records=-1))) == invalid()


@pytest.mark.parametrize(
    "limits",
    [
        {"max_wait_ms": -1},
        {"max_wait_ms": 60_001},
        {"min_bytes": -1},
        {"max_bytes": -1},
        {"max_records": -(2**31)},
    ],
    ids=range(5),
)
async def test_absurd_fetch_limits_are_refused(client: Client, limits: dict[str, int]) -> None:
    part = consume_pb.FetchPartition(topic=TOPIC)
    assert await refusal(client.consuming.Fetch(consume_pb.FetchRequest(partitions=[part], **limits))) == invalid()


@pytest.mark.parametrize(
    "fields",
    [
        {"group": ""},
        {"group": "x" * 250},
        {"group": "a b"},
        {"topics": []},
        {"topics": [""]},
        {"topic_pattern": "(a"},
        {"topic_pattern": "x" * 1_001},
        {"strategy": 9},
        {"session_timeout_ms": -1},
        {"session_timeout_ms": 2**31 - 1},
        {"session_timeout_ms": 1},
        {"rebalance_timeout_ms": -1},
        {"member_id": "x" * 300},
        {"instance_id": "a\nb"},
        {"client_id": "\x07"},
    ],
    ids=range(15),
)
async def test_absurd_members_are_refused(client: Client, fields: dict[str, object]) -> None:
    values: dict[str, object] = {"group": "absurd", "topics": [TOPIC], **fields}
    join = group_pb.JoinGroupRequest(**values)  # type: ignore[arg-type]  # named by the parameters
    assert await refusal(client.groups.JoinGroup(join)) == invalid()
    start = consume_pb.SubscribeStart(**values)  # type: ignore[arg-type]  # named by the parameters
    call = client.consuming.Subscribe()
    await call.write(consume_pb.SubscribeRequest(start=start))
    assert await refusal(within_deadline(call.read())) == invalid()


async def test_absurd_group_requests_are_refused(client: Client) -> None:
    groups = client.groups
    assert await refusal(groups.LeaveGroup(group_pb.LeaveGroupRequest(group="g"))) == invalid()
    both = group_pb.LeaveGroupRequest(group="g", member_id="m", instance_id="i")
    assert await refusal(groups.LeaveGroup(both)) == invalid()
    assert await refusal(groups.Heartbeat(group_pb.HeartbeatRequest(group="g", member_id="m"))) == not_found(
        "MEMBER_NOT_FOUND"
    )
    assert await refusal(groups.SyncGroup(group_pb.SyncGroupRequest())) == not_found("MEMBER_NOT_FOUND")
    assert await refusal(groups.DescribeGroup(group_pb.DescribeGroupRequest(group="?"))) == not_found("GROUP_NOT_FOUND")
    twice = [group_pb.CommitOffset(topic=TOPIC, partition=0, next_offset=0)] * 2
    assert await refusal(groups.CommitOffsets(group_pb.CommitOffsetsRequest(group="g", offsets=twice))) == invalid()
    fencing = group_pb.CommitOffsetsRequest(group="g", fencing=group_pb.Fencing.ValueType(9))
    assert await refusal(groups.CommitOffsets(fencing)) == invalid()
    assert await refusal(groups.CommitOffsets(group_pb.CommitOffsetsRequest(group="", offsets=twice[:1]))) == invalid()
    assert await refusal(groups.ResetOffsets(group_pb.ResetOffsetsRequest(group="g"))) == invalid()
    large = group_pb.CommitOffset(topic=TOPIC, next_offset=0, metadata="x" * 5_000)
    answer = await groups.CommitOffsets(group_pb.CommitOffsetsRequest(group="g", offsets=[large]))
    assert refusal_of(answer.results[0].error) == invalid()


async def test_a_negative_grant_ends_only_its_stream(client: Client) -> None:
    await client.create_topic("granted", 1)
    async with Member.join(client, "granting", "granted") as member:
        await member.until(lambda: bool(member.owned))
        await member.grant(records=-1)
        assert await refusal(member.until(lambda: False)) == invalid()


async def test_unknown_topics_and_methods_are_said_to_be_unknown(client: Client, broker: BrokerProcess) -> None:
    missing = not_found("TOPIC_NOT_FOUND")
    topics = client.topics
    assert await refusal(topics.DescribeTopic(topic_pb.DescribeTopicRequest(name="?"))) == missing
    assert await refusal(topics.DeleteTopic(topic_pb.DeleteTopicRequest(name="../sound"))) == missing
    assert await refusal(topics.UpdateTopic(topic_pb.UpdateTopicRequest(name="?"))) == missing
    assert await refusal(topics.AddPartitions(topic_pb.AddPartitionsRequest(name="?", partition_count=2))) == missing
    assert await refusal(topics.DeleteRecords(topic_pb.DeleteRecordsRequest(topic="?"))) == missing
    metadata = await client.cluster.GetMetadata(cluster_pb.GetMetadataRequest(topics=["?", TOPIC]))
    assert [topic.name for topic in metadata.topics] == [TOPIC]
    async with grpc.aio.insecure_channel(broker.grpc) as channel:
        missing_method: Raw = channel.unary_unary("/cursus.v1.TopicService/NoSuchMethod")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await missing_method(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
