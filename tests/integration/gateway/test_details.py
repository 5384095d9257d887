"""Rules of the wire document that the checklist does not name, each with what a client would see."""

from __future__ import annotations

import asyncio
import gzip
import json
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from cursus_proto.v1 import topic_service_pb2, topic_service_pb2_grpc
from cursus_proto.v1.records_pb2 import Record
from tests.harness.clients import Client
from tests.harness.gateway import GatewayProcess, LegacyClient, Stack, created, envelope, read_batch, running_stack
from tests.harness.legacy_wire import Message, batch_body

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 2**20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory = tmp_path_factory.mktemp("details")
    async with running_stack(directory, "--groups-stream-autocommit") as stack:
        yield stack


async def trim(stack: Stack, topic: str, before: int) -> None:
    async with grpc.aio.insecure_channel(stack.broker.grpc) as channel:
        request = topic_service_pb2.DeleteRecordsRequest(topic=topic)
        request.partitions.add(partition=0, before_offset=before)
        await topic_service_pb2_grpc.TopicServiceStub(channel).DeleteRecords(request)


async def test_rule_2_answers_are_cut_at_16_mib_and_a_larger_message_goes_alone(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        for size in (6 * MIB, 6 * MIB, 6 * MIB, 20 * MIB):
            await client.publish(batch_body([Message(payload=b"x" * size)], topic=topic))
        sizes: list[list[int]] = []
        offset = 0
        while messages := read_batch(body := await client.consume(topic, offset=offset)):
            assert len(body) <= 16 * MIB or len(messages) == 1
            sizes.append([len(m["payload"]) // MIB for m in messages])
            offset += len(messages)
    assert [size for group in sizes for size in group] == [6, 6, 6, 20]


@pytest.mark.parametrize("count", [1, 100], ids=["record by record", "column by column"])
async def test_a_null_arrives_empty_and_an_empty_payload_is_stored_empty(stack: Stack, topic: str, count: int) -> None:
    async with stack.connect() as client, Client.connect(stack.broker.grpc) as modern:
        await client.publish(batch_body([Message(payload=b"", key=b"k")] * count, topic=topic))
        await modern.publish(topic, [Record(key=b"k")] * count)
        await modern.publish(topic, [Record(key=b"k", value=value) for value in (None, b"", b"v")] * count)
        found = read_batch(await client.consume(topic))
        stored = [one.record for one in await modern.read_all(topic)]
    assert [message["payload"] for message in found] == [b""] * 2 * count + [b"", b"", b"v"] * count
    assert [one.HasField("value") for one in stored] == ([True] * count + [False] * count + [False, True, True] * count)


async def test_rule_18_an_offset_beyond_the_end_is_an_empty_batch(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        assert read_batch(await client.consume(topic, offset=1_000)) == []


async def test_below_the_retained_range_the_generations_differ(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        for number in range(4):
            await client.publish(batch_body([Message(payload=b"%d" % number)], topic=topic))
        await trim(stack, topic, 2)
        assert [m["offset"] for m in read_batch(await client.consume(topic, offset=0))] == [2, 3]
        refused = await client.consume(topic, offset=0, more="isolation_level=read_uncommitted")
        assert refused == b"ERROR: OFFSET_OUT_OF_RANGE requested=0 earliest=2 latest=4"
    async with stack.connect() as client:
        client.send(envelope(f"STREAM topic={topic} partition=0 group=g offset=0"))
        body = await client.receive()
        assert body is not None
        assert [m["offset"] for m in read_batch(body)] == [2, 3]
    async with stack.connect() as client:
        client.send(envelope(f"STREAM topic={topic} partition=0 group=g offset=0 isolation_level=read_uncommitted"))
        expected = b"STREAM_CONTROL type=CLOSE reason=offset_out_of_range offset=2 requested=0 earliest=2 latest=4"
        assert await client.receive_all() == [expected]


async def test_rule_44_a_presented_offset_is_committed_where_that_is_switched_on(stack: Stack, topic: str) -> None:
    group = f"auto-{topic}"
    async with stack.connect() as client:
        await client.publish(batch_body([Message(payload=b"%d" % n) for n in range(5)], topic=topic))
    joined = await stack.ask(f"JOIN_GROUP topic={topic} group={group} member=c")
    member = joined.split()[2].partition("=")[2]
    async with stack.connect() as client:
        client.send(envelope(f"STREAM topic={topic} partition=0 group={group} member={member} generation=1 offset=3"))
        body = await client.receive()
        assert body is not None
        assert [m["offset"] for m in read_batch(body)] == [3, 4]
    async with stack.connect() as client:
        assert await client.ask(f"FETCH_OFFSET topic={topic} partition=0 group={group}") == "OK offset=3"


async def test_wildcards_read_all_matching_topics_into_one_batch(stack: Stack) -> None:
    stem = uuid.uuid4().hex[:8]
    async with stack.connect() as client:
        for name in ("a", "b"):
            await client.ask(f"CREATE topic={stem}-{name} partitions=1")
            await client.publish(batch_body([Message(payload=name.encode())], topic=f"{stem}-{name}"))
        body = await client.consume(f"{stem}-*")
        assert [m["payload"] for m in read_batch(body)] == [b"a", b"b"]
        assert body[4 : 4 + len(stem) + 2] == f"{stem}-*".encode()


async def test_a_key_value_publish_is_never_recognised_by_content_and_keeps_its_numbers(
    stack: Stack, topic: str
) -> None:
    async with stack.connect() as client:
        for _ in range(2):
            await client.ask(f"PUBLISH topic={topic} producerId=p seqNum=4 epoch=6 key=k message=same")
        first, second = read_batch(await client.consume(topic))
        assert {**first, "offset": 1} == second
        assert (first["sequence"], first["epoch"], first["key"], first["producer_id"]) == (4, 6, b"k", b"p")


async def test_an_idempotent_key_value_publish_is_stored_once(stack: Stack) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    await stack.ask(f"CREATE topic={name} partitions=4")
    publish = f"PUBLISH topic={name} producerId=p seqNum=4 epoch=6 isIdempotent=true message=once"
    assert await stack.ask(publish) == await stack.ask(publish)
    async with stack.connect() as client:
        assert sum([len(await client.payloads(name, partition)) for partition in range(4)]) == 1


async def test_rule_39_a_topic_created_idempotent_judges_batches_without_the_flag(stack: Stack) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    create = f"CREATE topic={name} partitions=1 idempotent="
    body = batch_body([Message(number, b"p", payload=b"%d" % number) for number in (1, 2)], topic=name)
    async with stack.connect() as client:
        await client.ask(create + "true")
        for packed in (body, gzip.compress(body), body):
            assert (await client.publish(packed))["last_offset"] == 1
        assert await client.payloads(name) == [b"1", b"2"]
        publish = f"PUBLISH topic={name} producerId=q seqNum=1 message=3"
        assert await client.ask(publish) == await client.ask(publish)
        assert await client.payloads(name) == [b"1", b"2", b"3"]
        # Made anew without it, the topic is believed at once: it was this gateway that made it.
        await client.ask(f"DELETE topic={name}")
        await client.ask(create + "false")
        for _ in range(2):
            await client.publish(body)
        assert await client.payloads(name) == [b"1", b"2", b"1", b"2"]


async def test_rule_39_a_java_producer_without_identity_repeats_a_body_once_on_an_idempotent_topic(
    stack: Stack,
) -> None:
    name = f"t-{uuid.uuid4().hex[:8]}"
    await stack.ask(f"CREATE topic={name} partitions=1 idempotent=true")
    body = batch_body([Message(number, payload=b"%d" % number) for number in (1, 2)], topic=name)
    async with stack.connect() as client:
        client.send(body, body)
        assert await client.receive() == await client.receive()
        assert await client.payloads(name) == [b"1", b"2"]


async def metric(stack: Stack, name: str) -> float:
    host, _, port = stack.gateway.address("metrics").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return float(text.split(f"\n{name} ")[1].split("\n")[0])


async def test_rule_43_where_gzip_is_expected_plain_messages_are_stored_and_counted(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("gzip")
    async with running_stack(directory, "--enable-gzip") as stack, stack.connect() as client:
        # Everything as gzip, commands too, as the seeds would have it: nothing to complain about.
        client.send(gzip.compress(envelope("CREATE topic=orders partitions=1")))
        assert await client.receive() == created("orders", 1).encode()
        await client.publish(gzip.compress(batch_body([Message(payload=b"packed")])))
        client.send(gzip.compress(envelope("packed too", "orders")))
        assert await client.receive() == b"OK"
        assert await client.ask("LIST") == "orders"  # Nobody compresses commands.
        assert await metric(stack, "cursus_gateway_plain_frames_total") == 0
        await client.publish(batch_body([Message(payload=b"plain")]))
        assert await client.ask("plain too", topic="orders") == "OK"
        assert await client.payloads("orders") == [b"packed", b"packed too", b"plain", b"plain too"]
        assert await metric(stack, "cursus_gateway_plain_frames_total") == 2
        assert stack.gateway.log.count("request.uncompressed") == 1


async def test_rule_29_last_offset_counts_only_what_a_partly_repeated_batch_stored(stack: Stack, topic: str) -> None:
    def numbered(first: int, stop: int) -> bytes:
        messages = [Message(number, b"p", payload=b"%d" % number) for number in range(first, stop)]
        return batch_body(messages, topic=topic, idempotent=True)

    async with stack.connect() as client:
        assert (await client.publish(numbered(1, 5)))["last_offset"] == 3
        assert (await client.publish(numbered(3, 7)))["last_offset"] == 5
        assert (await client.publish(numbered(1, 5)))["last_offset"] == 3
        assert await client.payloads(topic) == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_rule_35_rejoining_changes_nothing(stack: Stack, topic: str) -> None:
    join = f"JOIN_GROUP topic={topic} group=re-{topic} member={{}}"
    bare = str(uuid.uuid4())
    first = await stack.ask(join.format(bare))
    assert await stack.ask(join.format(bare)) == first  # Java always sends its bare UUID.
    full = first.split()[2].partition("=")[2]
    assert await stack.ask(join.format(full)) == first
    gone = await stack.ask(f"JOIN_GROUP topic={topic} group=re2-{topic} member=consumer-1a2b-0412")
    assert gone.split()[2] == "member=consumer-1a2b-0412"


async def test_default_group_serves_several_topics(stack: Stack) -> None:
    names = [f"t-{uuid.uuid4().hex[:8]}" for _ in range(2)]
    for name in names:
        await stack.ask(f"CREATE topic={name} partitions=2")
    for name in names:
        joined = await stack.ask(f"JOIN_GROUP topic={name} group=default-group member=of-{name}")
        assert joined.endswith("assignments=[0 1]")


async def test_a_hung_broker_is_answered_for_in_time_and_used_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("hung")
    async with running_stack(directory, "--upstream-request-timeout-ms", "500") as stack:
        await stack.ask("CREATE topic=orders partitions=1")
        async with stack.connect() as client:
            await client.publish(batch_body([Message(payload=b"before")]))
            stack.broker.send_signal(signal.SIGSTOP)
            try:
                client.send(batch_body([Message(payload=b"during")]), envelope("LIST topic=orders"))
                assert (await client.receive() or b"").startswith(b"ERROR: outcome_unknown class=availability")
                assert (await client.receive() or b"").startswith(b"ERROR: broker_unavailable")
            finally:
                stack.broker.send_signal(signal.SIGCONT)
            assert (await client.publish(batch_body([Message(payload=b"after")])))["status"] == "OK"
            assert (await client.payloads("orders"))[-1] == b"after"


async def test_sigterm_finishes_what_was_accepted_and_ends_streams_politely(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("stopping")
    async with running_stack(directory) as stack:
        await stack.ask("CREATE topic=orders partitions=1")
        async with stack.connect() as java, stack.connect() as producer:
            java.send(b"STREAM topic=orders partition=0 group=g offset=0 generation=0 member=x")
            await producer.publish(batch_body([Message(payload=b"seen")]))
            assert await java.receive() is not None
            producer.send(*(batch_body([Message(n, payload=b"%d" % n)]) for n in range(200)))
            answered = [await producer.receive()]
            assert await stack.gateway.terminate() == 0
            assert (await java.receive_all())[-1] == b"REBALANCE_REQUIRED reason=stopped"
            answered += await producer.receive_all()
        await stack.gateway.launch()
        async with stack.connect() as client:
            stored = await client.payloads("orders")
        acknowledged = [json.loads(one) for one in answered if one is not None]
        assert [one["last_offset"] for one in acknowledged] == list(range(1, 1 + len(acknowledged)))
        assert len(stored) >= 1 + len(acknowledged)  # An answer may be lost with its connection, a message never.


async def test_a_port_that_is_taken_is_a_clear_failure(stack: Stack, tmp_path: Path) -> None:
    _, _, port = stack.gateway.tcp.rpartition(":")
    second = GatewayProcess.start(stack.broker.grpc, tmp_path, "--port", port)
    assert await second.expect_refusal() == 1
    assert "cursus-gateway: " in second.log


async def test_bad_settings_are_a_usage_error(stack: Stack, tmp_path: Path) -> None:
    second = GatewayProcess.start(stack.broker.grpc, tmp_path, "--listen", "9001:loud")
    assert await second.expect_refusal() == 2
    assert "bare, ok, auto" in second.log


async def test_requests_of_one_connection_wait_for_each_other(stack: Stack, topic: str) -> None:
    """A CREATE between batches is served after those before it and before those behind it."""
    async with stack.connect() as client:
        client.send(
            batch_body([Message(payload=b"1")], topic=topic),
            envelope(f"CREATE topic={topic} partitions=2"),
            batch_body([Message(payload=b"2")], topic=topic, partition=1),
        )
        answers = [await client.receive() for _ in range(3)]
        assert answers[1] == created(topic, 2).encode()
        assert all(answer is not None and b'"status":"OK"' in answer for answer in (answers[0], answers[2]))


async def test_half_closed_clients_are_answered(stack: Stack, topic: str) -> None:
    client = await LegacyClient.open(stack.gateway.tcp)
    client.send(*(batch_body([Message(n, payload=b"%d" % n)], topic=topic) for n in range(20)))
    client.writer.write_eof()
    answers = await asyncio.wait_for(client.receive_all(), 30)
    assert len(answers) == 20
    client.abort()
