"""When things go wrong: the right exception, nothing silently lost, and closing never hangs."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cursus_grpc import TLS, Admin, AsyncProducer, errors
from cursus_grpc.testing import Broker
from tests.harness.certificates import Authority
from tests.harness.waiting import eventually
from tests.integration.client.faces import Face

SHORT_S = 0.3
# Far above what any of these takes; what must not happen is waiting for ever.
NEVER_S = 60.0


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that nobody listens on, and nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A broker that the test may maltreat, with the topic `t`."""
    with Broker(in_process=True) as running:
        with Admin(running.address) as admin:
            admin.create_topic("t", 1)
        yield running


async def fate(face: Face, delivery: Any) -> errors.CursusError | None:
    try:
        await face.result(delivery)
    except errors.CursusError as error:
        return error
    return None


# The broker is away


@pytest.mark.parametrize("on_full", ["block", "raise"])
async def test_send_returns_although_nobody_is_there_and_the_delivery_says_why_it_failed(
    face: Face, nobody: str, on_full: str
) -> None:
    told: list[Any] = []
    options = {"delivery_timeout_s": 2.0, "max_block_s": NEVER_S, "on_full": on_full}
    async with face.producer(nobody, on_delivery=lambda *one: told.append(one), **options) as producer:
        began = time.monotonic()
        deliveries = [await producer.send("t", b"x", partition=number) for number in range(3)]
        assert not any(delivery.done() for delivery in deliveries)
        for delivery in deliveries:
            error = await fate(face, delivery)
            assert isinstance(error, errors.DeliveryTimeout)
            assert not error.maybe_stored
            assert f"no broker answers at {nobody}: Connection refused" in str(error)
            assert isinstance(error.__cause__, errors.BrokerUnreachable)
        assert time.monotonic() - began < NEVER_S
    assert [place for place, _ in told] == [None] * 3


async def test_without_a_broker_the_buffer_alone_says_how_much_is_taken(face: Face, nobody: str) -> None:
    async with face.producer(nobody, buffer_bytes=1_000, on_full="raise") as producer:
        for _ in range(10):
            await producer.send("t", b"x" * 96)  # 100 bytes encoded
        with pytest.raises(errors.BufferFull):
            await producer.send("t", b"x")
        await producer.close(timeout_s=0.0)


async def test_send_waits_for_room_no_longer_than_a_record_may_take(face: Face, nobody: str) -> None:
    options = {"buffer_bytes": 1_000, "max_block_s": 10 * NEVER_S, "delivery_timeout_s": SHORT_S}
    async with face.producer(nobody, **options) as producer:
        for _ in range(10):
            await producer.send("t", b"x" * 96)
        began = time.monotonic()
        # It is taken when the others have failed, if that comes first.
        with contextlib.suppress(errors.BufferFull):
            await producer.send("t", b"x" * 900)
        assert time.monotonic() - began < NEVER_S


async def test_send_that_waits_for_room_can_be_cancelled(nobody: str) -> None:
    async with AsyncProducer(nobody, buffer_bytes=1_000) as producer:
        await producer.send("t", b"x" * 900)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await producer.send("t", b"x" * 900)
        await producer.close(timeout_s=0.0)


async def test_closing_fails_what_waited_for_a_broker(face: Face, nobody: str) -> None:
    async with face.producer(nobody) as producer:
        deliveries = [await producer.send("t", b"x") for _ in range(3)]
        assert not await producer.flush(SHORT_S)
        await producer.close(timeout_s=SHORT_S)
    for delivery in deliveries:
        assert isinstance(await fate(face, delivery), errors.ClientClosed)


async def test_asking_nobody_is_told_within_the_time_given(face: Face, nobody: str) -> None:
    async with face.admin(nobody, request_timeout_s=SHORT_S) as admin:
        with pytest.raises(errors.BrokerUnreachable, match="Connection refused"):
            await admin.list_topics()


async def test_connecting_tells_at_once_why_it_failed(face: Face, nobody: str, own_broker: Broker) -> None:
    async with face.admin(f"{nobody},nobody.invalid:1", request_timeout_s=NEVER_S) as admin:
        began = time.monotonic()
        with pytest.raises(errors.BrokerUnreachable, match=r"at nobody\.invalid:1: ") as caught:
            await admin.connect(NEVER_S)
        assert time.monotonic() - began < NEVER_S
        assert f"at {nobody}: Connection refused" in str(caught.value)
    async with face.admin(f"{nobody},{own_broker.address}") as admin:
        await admin.connect()


@pytest.mark.parametrize("group", ["g", None])
async def test_reading_from_nobody_is_told_once_and_closing_does_not_hang(
    face: Face, nobody: str, group: str | None
) -> None:
    async with face.consumer(nobody, group=group, request_timeout_s=SHORT_S, auto_commit=False) as consumer:
        if group:
            await consumer.subscribe(["t"])
        else:
            await consumer.assign({("t", 0): 0})
        with pytest.raises(errors.BrokerUnreachable):
            await consumer.poll(NEVER_S)


async def test_the_second_address_serves_while_the_first_is_away(face: Face, nobody: str, own_broker: Broker) -> None:
    addresses = [nobody, own_broker.address]
    async with face.producer(addresses) as producer:
        assert (await face.result(await producer.send("t", b"x"))).offset == 0
    async with face.admin(",".join(addresses)) as admin:
        assert [topic.name for topic in await admin.list_topics()] == ["t"]
    async with face.consumer(addresses, group="g", topics=["t"]) as consumer:
        assert (await consumer.poll(NEVER_S)).value == b"x"


async def test_a_broker_that_comes_late_is_waited_for_and_gets_the_records_in_order(
    face: Face, own_broker: Broker
) -> None:
    await asyncio.to_thread(own_broker.stop)
    # Lingering for ever: what waited for its partitions is flushed as everything else is.
    async with face.producer(own_broker.address, batch_records=7, linger_ms=600_000) as producer:
        deliveries = [await producer.send("t", b"%d" % number, b"key") for number in range(1_500)]
        flushing = asyncio.ensure_future(producer.flush(NEVER_S)) if isinstance(producer, AsyncProducer) else None
        await asyncio.to_thread(own_broker.restart)
        assert await (flushing or producer.flush(NEVER_S))
        assert [(await face.result(delivery)).offset for delivery in deliveries] == list(range(1_500))
    assert [int(value) for value in await values(face, own_broker)] == list(range(1_500))


async def test_records_taken_before_the_broker_went_away_time_out_as_not_stored(face: Face, own_broker: Broker) -> None:
    async with face.producer(own_broker.address, delivery_timeout_s=1.0) as producer:
        await face.result(await producer.send("t", b"stored"))
        await asyncio.to_thread(own_broker.kill)
        deliveries = [await producer.send("t", b"%d" % number) for number in range(3)]
        for delivery in deliveries:
            error = await fate(face, delivery)
            assert isinstance(error, errors.DeliveryTimeout)
            assert isinstance(error.__cause__, errors.BrokerUnreachable | None)
        await asyncio.to_thread(own_broker.restart)

        async def goes_on() -> bool:
            return await fate(face, await producer.send("t", b"after")) is None

        # What timed out left no gap behind that would stop the producer.
        gone_on: bool = await eventually(goes_on)
        assert gone_on
    found = await values(face, own_broker)
    assert found[0] == b"stored"
    assert found[-1] == b"after"
    for number, delivery in enumerate(deliveries):
        error = await fate(face, delivery)
        assert isinstance(error, errors.DeliveryTimeout)
        assert error.maybe_stored or b"%d" % number not in found


async def test_closing_ends_in_time_and_tells_what_became_of_everything(face: Face, own_broker: Broker) -> None:
    deliveries: list[Any] = []
    async with face.producer(own_broker.address) as producer:
        await face.result(await producer.send("t", b"x"))
        await asyncio.to_thread(own_broker.kill)
        deliveries += [await producer.send("t", b"lost") for _ in range(3)]
        began = time.monotonic()
        await producer.close(timeout_s=SHORT_S)
        assert time.monotonic() - began < NEVER_S
    for delivery in deliveries:
        assert delivery.done()
        assert isinstance(await fate(face, delivery), errors.ClientClosed | errors.DeliveryTimeout)
    with pytest.raises(errors.ClientClosed):
        await producer.send("t", b"x")


async def values(face: Face, broker: Broker) -> list[bytes]:
    async with face.consumer(broker.address) as consumer:
        return [record.value for record in await consumer.range("t", 0)]


# The broker refuses


@pytest.mark.parametrize("reason", ["WRITE_TIMEOUT", "SHUTTING_DOWN", "STORAGE_FAILED", "NOT_LEADER", "SEQUENCE_GAP"])
async def test_what_passes_is_waited_out_without_loss_repetition_or_disorder(
    face: Face, own_broker: Broker, reason: str
) -> None:
    async with face.producer(own_broker.address, batch_records=3, max_in_flight=4) as producer:
        await face.result(await producer.send("t", b"0"))
        for round_ in range(4):
            own_broker.refuse(reason, times=round_ + 1)
            for number in range(20):
                await producer.send("t", b"%d" % (1 + round_ * 20 + number))
        assert await producer.flush(NEVER_S)
    assert [int(value) for value in await values(face, own_broker)] == list(range(81))


async def test_a_final_refusal_costs_the_batch_it_is_for(face: Face, own_broker: Broker) -> None:
    async with face.producer(own_broker.address, batch_records=1, max_in_flight=4) as producer:
        await face.result(await producer.send("t", b"first"))
        own_broker.refuse("INVALID_REQUEST")
        deliveries = [await producer.send("t", b"%d" % number) for number in range(30)]
        fates = [await fate(face, delivery) for delivery in deliveries]
    refused = [number for number, error in enumerate(fates) if error is not None]
    assert len(refused) == 1
    assert isinstance(fates[refused[0]], errors.InvalidRequest)
    kept = [b"%d" % number for number in range(30) if number not in refused]
    assert await values(face, own_broker) == [b"first", *kept]


async def test_an_unknown_topic_is_told_by_the_delivery_and_by_poll_until_it_is_created(
    face: Face, own_broker: Broker
) -> None:
    async with face.producer(own_broker.address) as producer:
        error = await fate(face, await producer.send("nope", b"x"))
        assert isinstance(error, errors.TopicNotFound)
        assert "'nope'" in str(error)
        async with face.admin(own_broker.address) as admin:
            await admin.create_topic("nope", 1)
        assert await fate(face, await producer.send("nope", b"x")) is None
        async with face.admin(own_broker.address) as admin:
            await admin.delete_topic("nope")
    async with face.consumer(own_broker.address) as consumer:
        await consumer.assign([("nope", 0)])
        with pytest.raises(errors.TopicNotFound):
            await consumer.poll(NEVER_S)


async def test_a_topic_that_is_deleted_fails_what_waits_for_it(face: Face, own_broker: Broker) -> None:
    async with face.producer(own_broker.address) as producer, face.admin(own_broker.address) as admin:
        await face.result(await producer.send("t", b"x"))
        await admin.delete_topic("t")
        assert isinstance(await fate(face, await producer.send("t", b"x")), errors.TopicNotFound)


async def test_a_record_too_large_for_the_broker_is_refused_at_once_and_alone(face: Face) -> None:
    with Broker("--publish-max-batch-bytes", "10KiB", in_process=True) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("t", 1)
        async with face.producer(broker.address) as producer:
            # How much that is has to be asked for, too.
            assert isinstance(await fate(face, await producer.send("t", b"x" * 11_000)), errors.RecordTooLarge)
            await producer.send("t", b"x" * 9_000)
            with pytest.raises(errors.RecordTooLarge, match="at most 10240"):
                await producer.send("t", b"x" * 11_000)
            deliveries = [await producer.send("t", b"x" * 4_000) for _ in range(20)]
            assert [await fate(face, delivery) for delivery in deliveries] == [None] * 20


# The buffer is full


async def test_a_full_buffer_is_an_error_where_that_is_wanted(face: Face, own_broker: Broker) -> None:
    async with face.producer(own_broker.address, buffer_bytes=5_000, on_full="raise") as producer:
        await face.result(await producer.send("t", b"x"))
        await asyncio.to_thread(own_broker.kill)
        taken = [await producer.send("t", b"x" * 500) for _ in range(9)]
        with pytest.raises(errors.BufferFull):
            await producer.send("t", b"x" * 500)
        await asyncio.to_thread(own_broker.restart)
        assert await producer.flush(NEVER_S)
        assert [await fate(face, delivery) for delivery in taken] == [None] * len(taken)
    assert len(await values(face, own_broker)) == 1 + len(taken)


async def test_a_full_buffer_makes_send_wait_and_then_give_up(face: Face, own_broker: Broker) -> None:
    async with face.producer(own_broker.address, buffer_bytes=5_000, max_block_s=SHORT_S) as producer:
        await face.result(await producer.send("t", b"x"))
        await asyncio.to_thread(own_broker.kill)
        for _ in range(9):
            await producer.send("t", b"x" * 500)
        with pytest.raises(errors.BufferFull):
            await producer.send("t", b"x" * 500)
        await producer.close(timeout_s=0.0)


async def test_a_small_buffer_only_slows_a_producer_down(face: Face, own_broker: Broker) -> None:
    async with face.producer(own_broker.address, buffer_bytes=2_000, batch_bytes=500) as producer:
        for number in range(500):
            await producer.send("t", b"%d" % number)
    assert [int(value) for value in await values(face, own_broker)] == list(range(500))


# Power and disk


async def test_acks_all_waits_for_a_slow_disk_and_survives_power_loss(face: Face) -> None:
    with Broker("--log-linger-ms", "600000", in_process=True, can_lose_power=True) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("t", 1)
        async with (
            face.producer(broker.address, acks="all") as durable,
            face.producer(broker.address, acks=1) as quick,
        ):
            broker.slow_disk(200)
            began = time.monotonic()
            await face.result(await durable.send("t", b"durable"))
            assert time.monotonic() - began >= 0.2
            broker.slow_disk(0)
            await face.result(await quick.send("t", b"quick"))
            await asyncio.to_thread(broker.power_loss, 3)
            # What acks 1 promised is gone, and both producers go on.
            for producer in (quick, durable):
                assert await fate(face, await producer.send("t", b"after")) is None
        found = await values(face, broker)
    assert found[0] == b"durable"
    assert found[-2:] == [b"after", b"after"]


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls_broker(authority: Authority) -> Iterator[Broker]:
    server = authority.server()
    flags = ["--tls-cert", str(server.certificate), "--tls-key", str(server.key)]
    with Broker(*flags, "--tls-client-ca", str(authority.certificate)) as broker:
        yield broker


async def test_mutual_tls_serves_all_clients(face: Face, authority: Authority, tls_broker: Broker, name: str) -> None:
    client = authority.client()
    tls = TLS(ca=str(authority.certificate), cert=client.certificate.read_bytes(), key=client.key.read_bytes())
    async with face.admin(tls_broker.address, tls=tls) as admin:
        await admin.create_topic(name, 1)
    async with face.producer(tls_broker.address, tls=tls) as producer:
        await face.result(await producer.send(name, b"secret"))
    async with face.consumer(tls_broker.address, tls=tls, group=name, topics=[name]) as consumer:
        assert (await consumer.poll(NEVER_S)).value == b"secret"


async def test_wrong_tls_is_told_as_what_it_is(
    face: Face, authority: Authority, tls_broker: Broker, own_broker: Broker, tmp_path: Path
) -> None:
    ca = authority.certificate.read_bytes()
    stranger = Authority(tmp_path, "stranger")
    stranger_client = stranger.client("stranger-client")
    cases: list[tuple[str, TLS | None, str]] = [
        (tls_broker.address, None, "speaks TLS"),
        (tls_broker.address, TLS(ca=stranger.certificate.read_bytes()), "not trusted"),
        (tls_broker.address, TLS(ca=ca), "client's certificate"),
        (
            tls_broker.address,
            TLS(ca=ca, cert=stranger_client.certificate.read_bytes(), key=stranger_client.key.read_bytes()),
            "client's certificate",
        ),
        (own_broker.address, TLS(ca=ca), "does not speak TLS"),
    ]
    for address, tls, why in cases:
        async with face.producer(address, tls=tls) as producer:
            error = await fate(face, await producer.send("t", b"x"))
            assert isinstance(error, errors.TlsFailed)
            assert why in str(error)
        async with face.consumer(address, tls=tls, group="g", topics=["t"]) as consumer:
            with pytest.raises(errors.TlsFailed, match=why):
                await consumer.poll(NEVER_S)
        async with face.admin(address, tls=tls) as admin:
            with pytest.raises(errors.TlsFailed, match=why):
                await admin.list_topics()


async def test_certificates_that_are_not_there_are_told_before_anything_is_sent(face: Face, nobody: str) -> None:
    with pytest.raises(FileNotFoundError):
        await face.producer(nobody, tls=TLS(ca="missing.pem")).__aenter__()
