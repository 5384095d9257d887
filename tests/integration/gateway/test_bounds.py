"""What clients can do to a gateway, and what it costs the others: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Collection
from functools import partial
from pathlib import Path

import cramjam
import psutil
import pytest
import pytest_asyncio

from cursus_proto import codecs
from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1 import records_pb2
from tests.harness.clients import Client
from tests.harness.gateway import GatewayProcess, LegacyClient, Stack, envelope, framed, read_batch, running_stack
from tests.harness.legacy_reader import Storable, storable
from tests.harness.legacy_wire import LAYOUT_D, LAYOUT_S, Message, batch_body
from tests.harness.memory import peak_of
from tests.harness.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MIB = 2**20
FUZZED_FRAMES = 100_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    # What is measured here is memory: a machine that is slow today must not decide.
    args = ("--logging-level", "error", "--upstream-request-timeout-ms", "120s")
    async with running_stack(tmp_path_factory.mktemp("bounds"), *args) as stack:
        await stack.ask("CREATE topic=orders partitions=4")
        yield stack


def resident(stack: Stack) -> int:
    return int(psutil.Process(stack.gateway.pid).memory_info().rss)


def descriptors(stack: Stack) -> int:
    return int(psutil.Process(stack.gateway.pid).num_fds())


async def test_a_thousand_idle_connections_fit_into_100_mb(stack: Stack) -> None:
    clients = await asyncio.gather(*(LegacyClient.open(stack.gateway.tcp) for _ in range(1000)))
    try:
        await asyncio.gather(*(client.ask("LIST topic=orders") for client in clients))
        assert resident(stack) < 100_000_000
    finally:
        for client in clients:
            client.abort()


async def test_a_thousand_connections_publish_and_consume_and_the_next_one_waits(stack: Stack) -> None:
    clients = [await LegacyClient.open(stack.gateway.tcp) for _ in range(1000)]
    waiting = await LegacyClient.open(stack.gateway.tcp)
    try:

        async def work(number: int, client: LegacyClient) -> None:
            message = Message(1, b"p%d" % number, payload=b"%d" % number)
            acknowledged = await client.publish(batch_body([message], partition=number % 4))
            assert acknowledged["status"] == "OK"
            await client.consume("orders", number % 4, acknowledged["last_offset"])

        await asyncio.gather(*(work(number, client) for number, client in enumerate(clients)))
        waiting.send(envelope("LIST topic=orders"))
        answer = asyncio.ensure_future(waiting.receive())
        # The others are still served while it waits; an answer would have come long before these.
        for client in clients[:50]:
            await client.ask("LIST topic=orders")
        assert not answer.done()
        clients.pop().abort()
        assert await answer == b"OK topic=orders partitions=4"
    finally:
        for client in (*clients, waiting):
            client.abort()


async def test_a_client_that_never_reads_costs_bounded_memory_and_nobody_else(stack: Stack) -> None:
    async with stack.connect() as filler:
        for _ in range(20):
            await filler.publish(batch_body([Message(payload=b"x" * 10_000)] * 100, topic="orders", partition=3))
    before = resident(stack)
    host, _, port = stack.gateway.tcp.rpartition(":")
    greedy = [socket.create_connection((host, int(port))) for _ in range(10)]
    try:
        for one in greedy:
            one.setblocking(False)
            request = framed(envelope("CONSUME topic=orders partition=3 offset=0 member=m"))
            with contextlib.suppress(BlockingIOError):
                for _ in range(1_000):
                    one.send(request)
        async with stack.connect() as client:
            for _ in range(20):
                await client.ask("LIST topic=orders")
        # Each may hold one answer of up to 16 MiB in its buffer and one on its way there.
        assert resident(stack) - before < 400 * MIB
    finally:
        for one in greedy:
            one.close()


async def test_many_large_frames_that_never_end_share_a_bounded_memory(stack: Stack) -> None:
    before = resident(stack)
    stuck = [await LegacyClient.open(stack.gateway.tcp) for _ in range(12)]
    try:
        for client in stuck:
            client.writer.write((63 * MIB).to_bytes(4, "big") + b"x" * (40 * MIB))
        async with stack.connect() as client:
            for _ in range(20):
                await client.ask("LIST topic=orders")
        assert resident(stack) - before < 400 * MIB
    finally:
        for client in stuck:
            client.abort()
    async with stack.connect() as client:  # Whoever waited for the memory gets it now.
        large = batch_body([Message(payload=b"y" * (20 * MIB))], partition=2)
        assert (await client.publish(large))["status"] == "OK"


async def test_large_frames_that_are_announced_and_not_sent_cost_nothing(stack: Stack) -> None:
    """Four of them kept everybody else's large frames out, until their deadline."""
    announced = [await LegacyClient.open(stack.gateway.tcp) for _ in range(100)]
    try:
        for client in announced:
            client.writer.write((64 * MIB).to_bytes(4, "big") + b"x")
        async with stack.connect() as client:
            large = batch_body([Message(payload=b"z" * (8 * MIB))], partition=2)
            assert (await client.publish(large))["status"] == "OK"
    finally:
        for client in announced:
            client.abort()


async def test_small_frames_that_unpack_to_much_share_a_bounded_memory(tmp_path: Path) -> None:
    """Eighteen of two kilobytes took 1.4 GB while they waited for a broker."""
    packed = bytes(cramjam.zstd.compress(batch_body([Message(payload=bytes(60 * MIB))], idempotent=True)))
    assert len(packed) < 8 * 1024
    nobody = "127.0.0.1:1"
    async with GatewayProcess.start(nobody, tmp_path, "--grace-ms", "0") as gateway:
        before = peak_of(gateway.pid)
        clients = [await LegacyClient.open(gateway.tcp) for _ in range(18)]
        try:
            for client in clients:
                client.send(packed)

            arrived: bool = await eventually(partial(has_received, gateway, 18))
            assert arrived
            async with LegacyClient.connect(gateway.tcp) as other:
                for _ in range(20):
                    assert "CREATE" in await other.ask("HELP")
            for client in clients[:2]:  # One on each stream has been on its way for as long as it may.
                answer = await client.receive()
                assert answer is not None
                assert answer.startswith(b"ERROR: broker_unavailable"), answer
        finally:
            for client in clients:
                client.abort()
        # What is being unpacked or waits for its turn, and a batch on its way to the broker on each of two streams.
        assert peak_of(gateway.pid) - before < (512 + 2 * 3 * 64) * MIB


@pytest.mark.parametrize("claimed", [1, 1_000_000])
async def test_a_stored_set_that_unpacks_to_too_much_is_said_to_whoever_reads_it(stack: Stack, claimed: int) -> None:
    """Delivering one of 3.7 kB took 3.2 GB."""
    topic = f"heavy-{claimed}"
    await stack.ask(f"CREATE topic={topic} partitions=1")
    packed = codecs.compress(records_pb2.CODEC_ZSTD, b"\n\0" * 20_000_000)
    async with Client.connect(stack.broker.grpc) as broker:
        request = publish_pb.PublishRequest(
            topic=topic,
            partition=0,
            codec=records_pb2.CODEC_ZSTD,
            compressed_records=packed,
            record_count=claimed,
            deduplication=publish_pb.DEDUPLICATION_NONE,
        )
        await broker.publishing.Publish(request)
        await broker.publish(topic, [b"behind it"], partition=0)
    before = peak_of(stack.gateway.pid)
    said = f"ERROR: batch_too_large topic={topic} partition=0 offset=0 next_offset={claimed}"
    async with stack.connect() as client:
        assert (await client.consume(topic)).decode() == said
        (behind,) = read_batch(await client.consume(topic, 0, claimed))
        assert behind["payload"] == b"behind it"
        client.send(envelope(f"STREAM topic={topic} partition=0 offset=0 group=g member=m generation=1"))
        assert await client.receive() == said.encode()
        assert await client.closed()
    assert peak_of(stack.gateway.pid) - before < 250 * MIB


async def test_connections_that_break_off_anywhere_leave_nothing_behind(stack: Stack) -> None:
    await stack.ask("LIST topic=orders")
    before = descriptors(stack)
    frame = framed(LAYOUT_S)
    for cut in range(0, len(frame), 7):
        client = await LegacyClient.open(stack.gateway.tcp)
        client.writer.write(frame[:cut])
        client.abort()
    await eventually(lambda: descriptors(stack) <= before)


def mutated(random_: random.Random, body: bytes) -> bytes:
    """The body with a structure-aware or a blind change."""
    changed = bytearray(body)
    kind = random_.randrange(6)
    if kind == 0 and changed:
        changed[random_.randrange(len(changed))] = random_.randrange(256)
    elif kind == 1:
        del changed[random_.randrange(len(changed) + 1) :]
    elif kind == 2:
        place = random_.randrange(len(changed) + 1)
        changed[place:place] = random_.randbytes(random_.randrange(1, 9))
    elif kind == 3 and len(changed) > 4:
        place = random_.randrange(len(changed) - 3)
        changed[place : place + 4] = random_.choice([b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\0\0\xff\xff"])
    elif kind == 4:
        return random_.randbytes(random_.randrange(1, 80))
    else:
        words = bytes(changed).split(b" ")
        random_.shuffle(words)
        return b" ".join(words)
    return bytes(changed)


EVENTS = batch_body(
    [Message(n, b"p", b"k", 1, b"v%d" % n, b"e", 1, 2, b"m") for n in range(1, 4)], topic="target", idempotent=True
)
SEEDS = (
    LAYOUT_S.replace(b"orders", b"target"),
    LAYOUT_D.replace(b"orders", b"target"),
    batch_body([Message(n, b"p", b"k", 1, b"v%d" % n, b"e", 1, 2, b"m") for n in range(1, 4)], topic="target"),
    EVENTS,
    gzip.compress(EVENTS, mtime=0),
    bytes(cramjam.lz4.compress(EVENTS)),
    bytes(cramjam.snappy.compress_raw(EVENTS)),
    envelope("CREATE topic=target partitions=4"),
    envelope("CONSUME topic=target partition=0 offset=0 member=m group=g"),
    envelope("PUBLISH topic=target acks=1 producerId=p seqNum=1 epoch=2 message=x"),
    envelope("PUBLISH target a message of five words"),
    b"target|bar and payload",
    envelope("FETCH_OFFSET topic=target partition=0 group=g"),
    envelope("COMMIT_OFFSET topic=target partition=0 group=g offset=0 generation=1 member=m"),
    envelope("BATCH_COMMIT topic=target group=g generation=1 member=m P0:0,1:0"),
    envelope("HEARTBEAT topic=target group=g member=m generation=1"),
    envelope("METADATA topic=target"),
    envelope("LIST_OFFSETS topic=target"),
    envelope("NEGOTIATE version=1 features=*"),
    envelope("direct message", "target"),
    b"FIND_COORDINATOR group=g",
    b"LIST topic=target",
)


async def frames_received(gateway: GatewayProcess) -> int:
    host, _, port = gateway.address("metrics").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return int(float(text.split("\ncursus_gateway_frames_total ")[1].split("\n")[0]))


async def has_received(gateway: GatewayProcess, count: int) -> bool:
    return await frames_received(gateway) >= count


async def everything_stored(client: LegacyClient, but: Collection[str]) -> Counter[Storable]:
    """Every record of every topic, with its topic and partition."""
    stored: Counter[Storable] = Counter()
    for topic in (await client.ask("LIST")).split(", "):
        if topic in but:
            continue
        count = int((await client.ask(f"LIST topic={topic}")).rpartition("=")[2])
        for partition in range(count):
            offset = 0
            while messages := read_batch(await client.consume(topic, partition, offset)):
                offset += len(messages)
                for message in messages:
                    del message["offset"]
                    stored[Storable(topic.encode(), partition=partition, **message)] += 1
    return stored


def unsent(stored: Counter[Storable], sent: Counter[Storable]) -> dict[Storable, int]:
    """What is stored and was not sent, or was not sent so often. What was no batch may also have been a text publish,
    of which only topic and payload are known."""
    left: Counter[Storable] = Counter()
    for message, times in stored.items():
        if more := times - sent[message]:
            left[Storable(message.topic, message.payload)] += max(0, more)
    return {text: times for text, times in left.items() if times > sent[text]}


@pytest.mark.slow
async def test_fuzzed_frames_crash_nothing_and_store_nothing_wrong(stack: Stack) -> None:
    """Mutations of every kind of frame, and pure garbage. Whatever is stored then was sent like this by somebody, and
    not more often; a canary topic comes through untouched."""
    await stack.ask("CREATE topic=canary partitions=1")
    async with stack.connect() as client:
        others = (await client.ask("LIST")).split(", ")  # of the tests before, and the canary
        await client.publish(batch_body([Message(1, b"c", payload=b"sings")], topic="canary"))
        canary = await client.consume("canary")
    await stack.ask("CREATE topic=target partitions=4")
    before, memory = descriptors(stack), resident(stack)
    random_ = random.Random(20_261_116)
    received = await frames_received(stack.gateway)
    sent: Counter[Storable] = Counter()

    async def storm() -> None:
        """Short bursts, because garbage ends a connection and what follows it is not looked at."""
        for _ in range(60):
            client = await LegacyClient.open(stack.gateway.tcp)
            frames = [mutated(random_, random_.choice(SEEDS)) for _ in range(random_.randrange(1, 25))]
            for frame in frames:
                sent.update(storable(frame))
            client.send(*frames)
            with contextlib.suppress(OSError):
                client.writer.write_eof()
            with contextlib.suppress(TimeoutError, OSError):
                await client.receive_all()
            client.abort()

    while await frames_received(stack.gateway) - received < FUZZED_FRAMES:
        await asyncio.gather(*(storm() for _ in range(16)))
    assert stack.gateway.running
    assert "Traceback" not in stack.gateway.log
    async with stack.connect() as client:
        assert await client.consume("canary") == canary
        stored = await everything_stored(client, but=others)
    assert stored.total() > FUZZED_FRAMES / 100  # So there is something to compare.
    assert unsent(stored, sent) == {}
    await eventually(lambda: descriptors(stack) <= before + 5)
    assert resident(stack) - memory < 200 * MIB


async def test_the_log_of_the_broker_has_no_traceback_either(stack: Stack, tmp_path: Path) -> None:
    assert "Traceback" not in stack.broker.log
