"""The testing kit, as its users use it."""

from __future__ import annotations

import socket
import threading

import pytest

from cursus_grpc import Admin, Consumer, Producer, errors
from cursus_grpc.testing import Broker, BrokerFailed

pytest_plugins = ["pytester"]


@pytest.fixture(params=[False, True], ids=["process", "in-process"])
def kit(request: pytest.FixtureRequest) -> Broker:
    """A broker that is not started yet, of both kinds."""
    return Broker(in_process=request.param)


def publish(broker: Broker, *values: bytes) -> list[int]:
    with Producer(broker.address) as producer:
        return [producer.send("t", value).result().offset for value in values]


def read(broker: Broker) -> list[bytes | None]:
    with Consumer(broker.address) as consumer:
        return [record.value for record in consumer.range("t", 0)]


def test_a_broker_is_there_within_the_block_and_not_after_it(kit: Broker) -> None:
    with kit as broker, Admin(broker.address, request_timeout_s=0.5) as admin:
        admin.create_topic("t", 1)
        assert publish(broker, b"x") == [0]
        data_dir = broker.data_dir
        broker.stop()
        with pytest.raises(errors.BrokerUnreachable):
            admin.list_topics()
    assert not data_dir.exists()


@pytest.mark.parametrize("end", ["kill", "stop", ""])
def test_it_keeps_address_and_data_over_restarts(kit: Broker, end: str) -> None:
    with kit as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("t", 1)
        publish(broker, b"before")
        address = broker.address
        if end:
            getattr(broker, end)()
        broker.restart()
        assert broker.address == address
        publish(broker, b"after")
        assert read(broker) == [b"before", b"after"]


def test_it_waits_for_its_address_if_somebody_else_has_got_it(kit: Broker) -> None:
    """Somebody's outgoing connection may get the port while the broker is away."""
    with kit as broker:
        host, _, port = broker.address.rpartition(":")
        broker.stop()
        with socket.create_server((host, int(port))):
            starting = threading.Thread(target=broker.start)
            starting.start()
            starting.join(0.5)
            assert starting.is_alive()
        starting.join()
        with Admin(broker.address) as admin:
            admin.create_topic("t", 1)


def test_two_brokers_do_not_know_each_other() -> None:
    with Broker(in_process=True) as one, Broker(in_process=True) as other:
        assert one.address != other.address
        one.refuse("WRITE_TIMEOUT", times=1_000)
        for broker in (one, other):
            with Admin(broker.address) as admin:
                admin.create_topic("t", 1)
        assert publish(other, b"x") == [0]
        with Producer(one.address, delivery_timeout_s=0.3) as producer:
            assert isinstance(producer.send("t", b"x").exception(), errors.DeliveryTimeout)


def test_flags_are_those_of_the_broker() -> None:
    for in_process in (False, True):
        with (
            Broker("--topics-default-partitions", "7", in_process=in_process) as broker,
            Admin(broker.address) as admin,
        ):
            assert admin.create_topic("t").partition_count == 7


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(BrokerFailed, match="topics-default-partitions"):
        Broker("--topics-default-partitions", "none").start()


def test_switches_need_a_broker_that_has_them() -> None:
    broker = Broker()
    with pytest.raises(ValueError, match="in_process=True"):
        broker.slow_disk(5)
    with pytest.raises(ValueError, match="in_process=True"):
        broker.refuse("WRITE_TIMEOUT")
    with pytest.raises(ValueError, match="in_process=True"):
        broker.power_loss()
    with pytest.raises(ValueError, match="in process can lose"):
        Broker(can_lose_power=True)
    with Broker(in_process=True) as running:
        with pytest.raises(ValueError, match="can_lose_power"):
            running.power_loss()
        with pytest.raises(ValueError, match="no broker refuses"):
            running.refuse("BAD_MOOD")


def test_the_fixtures_give_each_test_a_broker_and_a_topic_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from cursus_grpc import Admin, AsyncProducer, Consumer, Producer

        def test_one(cursus_broker, cursus_topic):
            with Producer(cursus_broker.address) as producer:
                assert producer.send(cursus_topic, b"x").result().offset == 0

        @pytest.mark.cursus_topic(partitions=3)
        def test_two(cursus_broker, cursus_topic):
            with Admin(cursus_broker.address) as admin:
                assert [topic.name for topic in admin.list_topics()] == [cursus_topic]
                assert admin.list_topics()[0].partition_count == 3

        @pytest.mark.asyncio
        async def test_three(cursus_broker, cursus_topic):
            async with AsyncProducer(cursus_broker.address, acks="all") as producer:
                await (await producer.send(cursus_topic, b"kept"))
            cursus_broker.power_loss()
            with Consumer(cursus_broker.address) as consumer:
                assert [record.value for record in consumer.range(cursus_topic, 0)] == [b"kept"]
        """
    )
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(passed=3)
    result.stderr.no_fnmatch_line("*Traceback*")
