"""The conformance checklist of the wire document (appendix C), a test a line, with the byte sequences its clients send.

Line 9, the third generation, runs in test_legacy_sdk.py with the published client, and line 8 replays appendix A.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import ssl
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import cramjam
import psutil
import pytest
import pytest_asyncio

from tests.harness.certificates import Authority
from tests.harness.gateway import LegacyClient, Stack, created, envelope, read_batch, running_stack
from tests.harness.legacy_wire import LAYOUT_D, LAYOUT_S, Message, batch_body
from tests.harness.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

READ_DEADLINE_MS = 700


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory = tmp_path_factory.mktemp("conformance")
    pair = Authority(directory / "ca").server()
    args = ("--connections-read-deadline-ms", str(READ_DEADLINE_MS), "--listen", "0:bare", "--listen", "0:ok")
    tls = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    async with running_stack(directory, *args, *tls) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def topic(stack: Stack) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert await stack.ask(f"CREATE topic={name} partitions=2", topic="admin") == created(name, 2)
    return name


def java_batch(topic: str, first: int, count: int, acks: str = "1", idempotent: bool = False) -> bytes:
    """As J2 sends it: no producer id, epoch 0, sequences per partition from 1."""
    messages = [Message(sequence=n, payload=b"m%d" % n, key=b"k") for n in range(first, first + count)]
    return batch_body(messages, topic=topic, acks=acks, idempotent=idempotent)


def python_batch(topic: str, first: int, count: int, acks: str = "1") -> bytes:
    """As P2 sends it: the epoch is the clock's and rises within a producer and even a batch."""
    return batch_body(
        [Message(n, b"py-1", epoch=1_700_000_000 + n // 3, payload=b"p%d" % n) for n in range(first, first + count)],
        topic=topic,
        acks=acks,
        idempotent=True,
    )


@pytest.mark.parametrize("acks", ["1", "0", "-1", "all"])
async def test_c1_java_producer_stores_every_message_once_and_is_acknowledged(
    stack: Stack, topic: str, acks: str
) -> None:
    async with stack.connect() as client:
        listing = await client.ask(f"LIST topic={topic}", raw=True)
        assert re.search(r"partitions=(\d+)", listing)
        for first in (1, 11, 21):
            acknowledged = await client.publish(java_batch(topic, first, 10, acks))
            assert acknowledged["status"] == "OK"
            assert (acknowledged["seq_start"], acknowledged["seq_end"]) == (first, first + 9)
            assert (acknowledged["last_offset"], acknowledged["producer_id"]) == (first + 8, "")
        assert await client.payloads(topic) == [b"m%d" % n for n in range(1, 31)]


async def test_c2_java_producer_idle_beyond_the_read_deadline_still_sends(stack: Stack, topic: str) -> None:
    async with stack.connect() as silent, stack.connect() as client:
        await client.publish(java_batch(topic, 1, 1))
        await asyncio.sleep(3 * READ_DEADLINE_MS / 1000)
        assert (await client.publish(java_batch(topic, 2, 1)))["status"] == "OK"
        assert (await silent.publish(java_batch(topic, 3, 1)))["status"] == "OK"
        assert await client.payloads(topic) == [b"m1", b"m2", b"m3"]


async def test_c3_java_consumer_streams_survives_silence_and_learns_of_the_end(stack: Stack, topic: str) -> None:
    member = str(uuid.uuid4())
    joined = await stack.ask(f"JOIN_GROUP topic={topic} group=j3-{topic} member={member}")
    match = re.fullmatch(r"OK\s+generation=(\d+)\s+member=(\S+)(?:\s+assignments=\[([\d\s]*)\])?", joined)
    assert match is not None
    assert match[3] == "0 1"
    stream = (
        f"STREAM topic={topic} partition=0 group=j3-{topic} offset=0 generation={match[1]} member={match[2]}".encode()
    )
    async with stack.connect() as client, stack.connect() as producer:
        client.send(stream)
        await producer.publish(java_batch(topic, 1, 3))
        first = await client.receive()
        assert first is not None
        assert [m["payload"] for m in read_batch(first)] == [b"m1", b"m2", b"m3"]
        keepalive = await client.receive()
        assert keepalive is not None
        assert read_batch(keepalive) == []  # An empty batch: a zero-length frame would make it stumble.
        client.send(stream)  # J2 repeats STREAM on the same connection; nothing is sent twice.
        await producer.publish(java_batch(topic, 4, 1))
        again = await client.receive()
        assert again is not None
        assert [m["offset"] for m in read_batch(again)] == [3]
        # Another member takes partition 0 or 1 away: the open stream is told in the only words J2 heeds.
        await stack.ask(f"JOIN_GROUP topic={topic} group=j3-{topic} member=consumer-x")
        ending = await client.receive()
        while ending is not None and not ending.startswith(b"REBALANCE_REQUIRED"):
            ending = await client.receive()
        assert ending is not None
        assert await client.closed()


@pytest.mark.parametrize("java", [True, False])
async def test_c3_a_stream_survives_30_s_of_silence_by_keepalives_and_then_delivers(
    tmp_path_factory: pytest.TempPathFactory, java: bool
) -> None:
    """Thirty seconds are eight keepalives of four seconds each; here an interval is shorter, not their number."""
    directory = tmp_path_factory.mktemp("silence")
    async with running_stack(directory, "--groups-stream-keepalive-ms", "50") as stack, stack.connect() as client:
        await stack.ask("CREATE topic=orders partitions=1")
        text = b"STREAM topic=orders partition=0 group=g offset=0"
        client.send(text if java else envelope(text))
        keepalives = [await client.receive() for _ in range(8)]
        # An empty batch for Java, which stumbles over empty frames; for the others a frame without a body.
        assert keepalives == [batch_body([]) if java else b""] * 8
        async with stack.connect() as producer:
            await producer.publish(java_batch("orders", 1, 3))
        data = await client.receive()
        while data == keepalives[0]:
            data = await client.receive()
        assert data is not None
        assert [message["payload"] for message in read_batch(data)] == [b"m1", b"m2", b"m3"]
        assert await client.receive() == keepalives[0]  # And it stays open.


async def test_c4_two_java_members_settle_and_stop_rejoining(stack: Stack, topic: str) -> None:
    group = f"j4-{topic}"
    members: dict[str, tuple[int, str, list[str]]] = {}

    async def join(member: str) -> None:
        answer = await stack.ask(f"JOIN_GROUP topic={topic} group={group} member={member}")
        match = re.fullmatch(r"OK generation=(\d+) member=(\S+) assignments=\[([\d ]*)\]", answer)
        assert match is not None, answer
        members[member] = (int(match[1]), match[2], match[3].split())

    async def polls_cleanly(member: str) -> bool:
        generation, full_id, partitions = members[member]
        for partition in partitions:
            async with stack.connect() as client:
                more = f"group={group} generation={generation}"
                text = f"CONSUME topic={topic} partition={partition} offset=0 {more} member={full_id}"
                client.send(envelope(text))
                body = await client.receive()
                assert body is not None
                if body.startswith(b"REBALANCE_REQUIRED"):
                    return False
                read_batch(body)
        return True

    one, two = str(uuid.uuid4()), str(uuid.uuid4())
    await join(one)
    await join(two)
    joins = 0
    for _ in range(10):
        settled = True
        for member in (one, two):
            if not await polls_cleanly(member):
                settled = False
                joins += 1
                await join(member)
        if settled:
            break
    assert joins == 1
    assert sorted(members[one][2] + members[two][2]) == ["0", "1"]
    assert members[one][0] == members[two][0] == 2


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
async def test_c5_python_producer_stores_every_message_once(stack: Stack, topic: str, acks: str) -> None:
    async with stack.connect() as client:
        for first in (1, 8, 8, 15):  # One batch is sent again, as after a lost answer.
            acknowledged = await client.publish(python_batch(topic, first, 7, acks))
            assert acknowledged["status"] == "OK"
            assert acknowledged["producer_id"] == "py-1"
            assert acknowledged["producer_epoch"] == 1_700_000_000 + (first + 6) // 3
        messages = read_batch(await client.consume(topic))
        assert [m["payload"] for m in messages] == [b"p%d" % n for n in range(1, 22)]
        assert [m["sequence"] for m in messages] == list(range(1, 22))
        assert [m["epoch"] for m in messages] == [1_700_000_000 + n // 3 for n in range(1, 22)]


async def test_c6_python_consumer_receives_everything_once_in_order_in_both_modes(stack: Stack, topic: str) -> None:
    async with stack.connect() as producer:
        await producer.publish(python_batch(topic, 1, 10))
    polled: list[bytes] = []
    while len(polled) < 10:
        async with stack.connect() as client:
            more = f"CONSUME topic={topic} partition=0 offset={len(polled)} member=c group=g generation=0 batch=4"
            client.send(envelope(more))
            body = await client.receive()
            assert body is not None
            polled += [m["payload"] for m in read_batch(body)]
    streamed: list[bytes] = []
    while len(streamed) < 10:  # P2 reads one frame of each stream, then comes back with the next offset.
        async with stack.connect() as client:
            offset = f" offset={len(streamed)}" if streamed else ""
            client.send(envelope(f"STREAM topic={topic} partition=0 group=g6-{topic}{offset} batch=4"))
            body = await client.receive()
            assert body is not None
            streamed += [m["payload"] for m in read_batch(body)]
    assert polled == streamed == [b"p%d" % n for n in range(1, 11)]


async def test_c7_python_consumer_starts_at_the_committed_offset(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        await client.publish(python_batch(topic, 1, 10))
    assert await stack.ask(f"COMMIT_OFFSET topic={topic} partition=0 group=g7-{topic} offset=6") == "OK"
    async with stack.connect() as client:
        client.send(envelope(f"STREAM topic={topic} partition=0 group=g7-{topic}"))
        body = await client.receive()
        assert body is not None
        assert [m["offset"] for m in read_batch(body)] == [6, 7, 8, 9]


async def test_c8_the_go_sessions_of_appendix_a(stack: Stack, topic: str) -> None:
    group = f"g8-{topic}"
    assert (await stack.ask(f"CREATE topic={topic} partitions=1", topic="admin")).startswith("OK ")
    assert (await stack.ask(f"METADATA topic={topic}")).startswith(f"OK topic={topic} partitions=2 leaders=")
    producer_id = str(uuid.uuid4()).encode()
    async with stack.connect() as client:
        batch = batch_body([Message(1, producer_id, epoch=1_790_000_000_000_000_000, payload=b"go")], topic=topic)
        acknowledged = await client.publish(batch)
        assert acknowledged["producer_epoch"] == 1_790_000_000_000_000_000
    coordinator = await stack.ask(f"FIND_COORDINATOR group={group}")
    assert all("=" in token for token in coordinator.split()[1:])
    joined = (await stack.ask(f"JOIN_GROUP topic={topic} group={group} member=consumer-1a2b3c4d")).split()
    fields = dict(token.split("=", 1) for token in joined[1:3])
    async with stack.connect() as client:
        more = f"group={group} generation={fields['generation']}"
        client.send(envelope(f"CONSUME topic={topic} partition=0 offset=0 {more} member={fields['member']}"))
        body = await client.receive()
        assert body is not None
        assert len(read_batch(body)) == 1
        committed = f"BATCH_COMMIT topic={topic} {more} member={fields['member']} 0:1"
        assert await client.ask(committed) == "OK batched=1"
    assert await stack.ask(f"FETCH_OFFSET topic={topic} partition=0 group={group}") == "OK offset=1"


async def test_c9_fetch_offset_has_the_form_each_listener_is_for(stack: Stack, topic: str) -> None:
    """The reply profiles, and the second attempt of RULE 22 on the port for everybody."""
    ask = f"FETCH_OFFSET topic={topic} partition=0 group=g9-{topic}"
    async with stack.connect("tcp2") as bare, stack.connect("tcp3") as ok:
        assert await bare.ask(ask) == await bare.ask(ask) == "0"
        assert await ok.ask(ask) == await ok.ask(ask) == "OK offset=0"
    assert await stack.ask(ask) == "OK offset=0"
    assert await stack.ask(ask) == "0"  # It asked again without having used the answer.
    await stack.ask(f"COMMIT_OFFSET topic={topic} partition=0 group=g9-{topic} offset=0")
    assert await stack.ask(ask) == "0"


async def test_c10_both_layouts_decode_to_the_same_records(stack: Stack) -> None:
    await stack.ask("CREATE orders 4")
    async with stack.connect() as client:
        await client.publish(LAYOUT_S)
        await client.publish(LAYOUT_D)
        first, second = read_batch(await client.consume("orders", 3))
        assert {**first, "offset": 1} == second
        assert (first["producer_id"], first["key"], first["payload"], first["sequence"]) == (b"p1", b"k1", b"hello", 1)


def xerial(plain: bytes) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(plain))
    return b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01" + len(block).to_bytes(4, "big") + block


@pytest.mark.parametrize(
    "compress",
    [
        gzip.compress,
        lambda plain: bytes(cramjam.lz4.compress(plain)),
        lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
        xerial,
        lambda plain: bytes(cramjam.zstd.compress(plain)),
    ],
    ids=["gzip", "lz4 frame", "raw snappy", "xerial snappy", "zstd"],
)
async def test_c11_compressed_batches_and_a_plain_create_share_a_connection(
    stack: Stack, topic: str, compress: Callable[[bytes], bytes]
) -> None:
    async with stack.connect() as client:
        assert (await client.publish(compress(java_batch(topic, 1, 50))))["status"] == "OK"
        assert (await client.ask(f"CREATE topic={topic} partitions=2")).startswith("OK ")
        assert (await client.publish(compress(java_batch(topic, 51, 20_000))))["status"] == "OK"
        assert len(await client.payloads(topic)) == 20_050


async def test_c12_the_first_generation_publishes_and_consumes(stack: Stack) -> None:
    name = f"first-{uuid.uuid4().hex[:8]}"
    assert await stack.ask("hello there", topic=name) == "OK"  # Creates the topic with 4 partitions.
    assert await stack.ask(f"LIST topic={name}") == f"OK topic={name} partitions=4"
    assert await stack.ask(f"PUBLISH {name} second message", topic=name) == f"📤 Published to '{name}'"
    found: list[bytes] = []
    for partition in range(4):
        async with stack.connect() as client:
            client.send(envelope(f"CONSUME {name} {partition} 0", name))
            found += await client.receive_all()
    assert sorted(found) == [b"hello there", b"second message"]


async def test_c12_a_positional_consume_ends_at_8192_messages(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        await client.publish(java_batch(topic, 1, 9_000))
    async with stack.connect() as client:
        client.send(envelope(f"CONSUME {topic} 0 500"))
        assert await client.receive_all() == [b"m%d" % n for n in range(501, 501 + 8192)]
    async with stack.connect() as client:  # The connection's group was moved to where that ended.
        client.send(envelope(f"CONSUME {topic} 0 -1"))
        assert await client.receive_all() == [b"m%d" % n for n in range(501 + 8192, 9_001)]
    async with stack.connect() as client:
        client.send(envelope(f"CONSUME {topic} 7 0"))
        assert await client.receive_all() == [b"ERROR: partition_not_found partition=7"]


async def test_c13_pipelined_batches_are_answered_in_request_order(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        client.send(
            *(java_batch(topic, 1 + 10 * n, 10) for n in range(50)),
            batch_body([Message(payload=b"x")], topic=topic, partition=9),
            envelope("LIST topic=" + topic),
            java_batch(topic, 501, 10),
        )
        for n in range(50):
            answer = await client.receive()
            assert answer is not None
            assert json.loads(answer)["seq_start"] == 1 + 10 * n
        refused = await client.receive()
        assert refused == b"ERROR: partition_not_found class=validation retryable=false partition=9"
        assert await client.receive() == f"OK topic={topic} partitions=2".encode()
        last = await client.receive()
        assert last is not None
        assert json.loads(last)["last_offset"] == 509
        assert await client.payloads(topic) == [b"m%d" % n for n in range(1, 511)]


async def test_c14_a_client_that_never_reads_its_acks_0_answers_is_served_on(tmp_path: Path) -> None:
    topic = "unread"
    batch = java_batch(topic, 1, 200, acks="0")
    # With its own deadlines: a slow machine may take longer over a batch than those of the other tests.
    async with running_stack(tmp_path) as stack, stack.connect() as client, stack.connect() as other:
        await stack.ask(f"CREATE topic={topic} partitions=1")
        process = psutil.Process(stack.gateway.pid)
        client.writer.transport.pause_reading()
        before = process.memory_info().rss
        for _ in range(100):
            client.send(*[batch] * 20)
            await client.writer.drain()
        await other.publish(java_batch(topic, 1, 1, acks="1"))
        assert process.memory_info().rss - before < 100 * 2**20

        async def everything_is_stored() -> bool:
            offsets = await other.ask(f"LIST_OFFSETS topic={topic} partition=0")
            return f":latest={100 * 20 * 200 + 1}:" in offsets

        stored: bool = await eventually(everything_is_stored)
        assert stored


@pytest.mark.parametrize(
    ("garbage", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"ERROR: frame_too_large size=1195725856 max=67108864"),
        (b"\xff\xff\xff\xff", b"ERROR: frame_too_large size=4294967295 max=67108864"),
        (b"\x04\x00\x00\x01rest", b"ERROR: frame_too_large size=67108865 max=67108864"),
        (b"\0\0\0\x04\xff\xff\xff\xff", b'ERROR: decode_failed reason="not a command, envelope or batch"'),
    ],
)
async def test_c15_garbage_is_answered_and_the_connection_closed(stack: Stack, garbage: bytes, answer: bytes) -> None:
    async with stack.connect() as client:
        client.writer.write(garbage)
        assert await client.receive_all() == [answer]


async def test_c15_an_empty_frame_is_ignored_and_a_truncated_one_ends_quietly(stack: Stack) -> None:
    async with stack.connect() as client:
        client.writer.write(b"\0\0\0\0")
        assert await client.ask("LIST topic=nope") == "ERROR: topic_not_found topic=nope"
        client.writer.write(b"\0\0\0\x10abc")
        client.writer.write_eof()
        assert await client.receive_all() == []


async def test_c15_connections_of_the_first_generation_and_those_stuck_in_a_frame_meet_the_deadline(
    stack: Stack,
) -> None:
    async with stack.connect() as idle, stack.connect() as stuck:
        await idle.ask("LIST")
        stuck.writer.write(b"\0\0\0\x10abc")
        assert await idle.closed()
        assert await stuck.closed()


async def test_c16_equal_direct_messages_are_stored_once_and_equal_batches_twice(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        assert await client.ask("same payload", topic=topic) == "OK"
        assert await client.ask("same payload", topic=topic) == "OK"
        assert await client.ask(f"PUBLISH {topic} same payload") == f"📤 Published to '{topic}'"
        one = await client.payloads(topic, 0) + await client.payloads(topic, 1)
        assert one == [b"same payload"]
        start = len(await client.payloads(topic, 0))
        for _ in range(2):
            await client.publish(java_batch(topic, 1, 1))
        assert (await client.payloads(topic, 0))[start:] == [b"m1", b"m1"]


async def test_c16_a_java_retry_on_the_same_connection_is_stored_once(stack: Stack, topic: str) -> None:
    """RULE 39: without a producer id, the connection and the identical body are the identity."""
    async with stack.connect() as client:
        body = java_batch(topic, 1, 5, idempotent=True)
        first, again = await client.publish(body), await client.publish(body)
        assert first == again
        assert len(await client.payloads(topic)) == 5
    async with stack.connect() as client:
        await client.publish(body)
        assert len(await client.payloads(topic)) == 10


async def test_c17_leaving_and_closing_at_once_leaves(stack: Stack, topic: str) -> None:
    group = f"g17-{topic}"
    joined = await stack.ask(f"JOIN_GROUP topic={topic} group={group} member=c")
    member = joined.split()[2].partition("=")[2]
    client = await LegacyClient.open(stack.gateway.tcp)
    client.send(envelope(f"LEAVE_GROUP topic={topic} group={group} member={member}"))
    await client.writer.drain()
    client.writer.close()

    async def is_gone() -> bool:
        return bool(json.loads(await stack.ask(f"GROUP_STATUS group={group}"))["member_count"] == 0)

    gone: bool = await eventually(is_gone)
    assert gone


async def test_c18_payloads_that_are_not_utf8_are_delivered_unchanged(stack: Stack, topic: str) -> None:
    payload = bytes(range(256))
    async with stack.connect() as client:
        await client.publish(batch_body([Message(1, b"p", payload=payload)], topic=topic))
        assert await client.payloads(topic) == [payload]


async def test_every_field_of_a_message_survives(stack: Stack, topic: str) -> None:
    message = Message(7, b"p\xff", b"k\0", -3, b"v" * 300, b"Created\xfe", 2**32 - 1, 2**64 - 1, b"{}\x80")
    other = Message(2**64 - 1, b"q", payload=b"", epoch=2**63 - 1)
    async with stack.connect() as client:
        acknowledged = await client.publish(batch_body([message, other, message], topic=topic))
        assert acknowledged["last_offset"] == 2
        found = read_batch(await client.consume(topic))
    expected: list[dict[str, Any]] = [
        {name: getattr(m, name) for name in m.__dataclass_fields__} | {"offset": offset}
        for offset, m in enumerate((message, other, message))
    ]
    assert found == expected


async def test_tls_and_plain_text_share_the_port(stack: Stack) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with LegacyClient.connect(stack.gateway.tcp, context) as encrypted, stack.connect() as plain:
        assert (await encrypted.ask("HELP")).startswith("Available commands:")
        assert (await plain.ask("HELP")).startswith("Available commands:")


async def test_an_old_epoch_is_refused_in_json(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        await client.publish(batch_body([Message(5, b"p", epoch=9, payload=b"x")], topic=topic, idempotent=True))
        fenced = await client.publish(
            batch_body([Message(6, b"p", epoch=8, payload=b"y")], topic=topic, idempotent=True)
        )
        assert fenced["status"] == "ERROR"
        assert fenced["error"] == "stale_producer_epoch producer=p current=9 got=8"
