"""Records go in and come out again as they were, also compressed ones, over TLS and where a broker refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from cursus_grpc import TLS, Admin, Producer, TopicConfig
from cursus_grpc.testing import Broker
from cursus_proto.partitioner import partition_for_key
from tests.harness.certificates import Authority
from tests.harness.languages import ROOT, Language, running
from tests.languages.conftest import MakeTopic
from tests.languages.stored import Line, acknowledged, covered, printed, stored

VECTORS = ROOT / "proto" / "testdata" / "routing.json"


async def publish(language: Language, address: str, topic: str, lines: list[str], *flags: str) -> list[str]:
    """Publishes lines and answers what was told of the batches."""
    async with running(language, "publish", "--broker", address, "--topic", topic, *flags) as example:
        await example.write(lines)
        example.end_input()
        assert await example.wait() == 0, example.tail()
        assert example.stderr[-1] == f"published {len(lines)} records"
        return example.stdout


async def follow(language: Language, address: str, topic: str, count: int, *flags: str) -> list[Line]:
    arguments = ("follow", "--broker", address, "--topic", topic, "--count", str(count), *flags)
    async with running(language, *arguments) as example:
        assert await example.wait() == 0, example.tail()
        return printed(example.stdout)


async def test_records_come_out_as_they_went_in(language: Language, broker: Broker, make_topic: MakeTopic) -> None:
    topic = make_topic(3)
    keyed = [f"customer-{number % 17}\torder {number}" for number in range(400)]
    odd = ['Grüße\t顧客 <b>&</b> "7"', "\tan empty key", "an empty value\t", "a\tb\tc", "", "no key"]
    told = await publish(language, broker.address, topic, keyed + odd, "--batch", "20")
    found = await stored(broker.address, topic, 3)

    assert covered(acknowledged(told)) == [(line.partition, line.offset) for line in found]
    with_key = [line for line in found if line.key is not None]
    assert [line for line in with_key if line.partition != partition_for_key((line.key or "").encode(), 3)] == []
    for customer in range(17):
        in_order = [line.value for line in found if line.key == f"customer-{customer}"]
        assert in_order == [f"order {number}" for number in range(400) if number % 17 == customer]
    rest = {(line.key, line.value) for line in found if not (line.key or "").startswith("customer")}
    assert rest == {
        ("Grüße", '顧客 <b>&</b> "7"'),
        ("", "an empty key"),
        ("an empty value", ""),
        ("a", "b\tc"),
        (None, ""),
        (None, "no key"),
    }

    followed = await follow(language, broker.address, topic, len(found))
    assert sorted(followed) == found
    for partition in range(3):
        offsets = [line.offset for line in followed if line.partition == partition]
        assert offsets == sorted(offsets)


async def test_records_without_key_fill_one_partition_a_batch(
    language: Language, broker: Broker, make_topic: MakeTopic
) -> None:
    topic = make_topic(4)
    told = acknowledged(await publish(language, broker.address, topic, [f"{n}" for n in range(80)], "--batch", "10"))
    assert [batch.records for batch in told] == [10] * 8
    assert {batch.partition for batch in told} == {0, 1, 2, 3}


async def test_nothing_to_publish_is_done_at_once(language: Language, broker: Broker, make_topic: MakeTopic) -> None:
    assert await publish(language, broker.address, make_topic(), []) == []


async def test_following_from_the_end_shows_only_what_comes(
    language: Language, broker: Broker, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    with Producer(broker.address) as producer:
        for number in range(10):
            producer.send(topic, f"old {number}", partition=number % 2)
        producer.flush()
        arguments = ("follow", "--broker", broker.address, "--topic", topic, "--from", "latest", "--count", "2")
        async with running(language, *arguments) as example:
            await example.shows(lambda it: f"following {topic} from [5,5]" in it.stderr)
            for partition in range(2):
                producer.send(topic, None, key="gone", partition=partition).result()
            assert await example.wait() == 0, example.tail()
    assert sorted(printed(example.stdout)) == [Line(0, 5, "gone", None), Line(1, 5, "gone", None)]


async def test_a_stopped_follower_ends_in_good_order(language: Language, broker: Broker, make_topic: MakeTopic) -> None:
    topic = make_topic()
    async with running(language, "follow", "--broker", broker.address, "--topic", topic) as example:
        await example.shows(lambda it: it.stderr != [])
        example.terminate()
        assert await example.wait() == 0, example.tail()


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "snappy"])
async def test_compressed_records_are_read_or_refused_by_name(
    language: Language, broker: Broker, make_topic: MakeTopic, codec: Literal["gzip", "zstd", "lz4", "snappy"]
) -> None:
    topic = make_topic()
    with Producer(broker.address, compression=codec, linger_ms=50) as producer:
        deliveries = [producer.send(topic, f"tea for {number} " * 20) for number in range(100)]
        producer.flush()
        assert all(delivery.exception() is None for delivery in deliveries)
    arguments = ("follow", "--broker", broker.address, "--topic", topic, "--count", "100")
    async with running(language, *arguments) as example:
        status = await example.wait()
    if codec in language.codecs:
        assert status == 0, example.tail()
        assert printed(example.stdout) == [Line(0, n, None, f"tea for {n} " * 20) for n in range(100)]
    else:
        assert status == 1
        assert example.stderr[-1].startswith("error: UNKNOWN_CODEC: ")


async def test_a_large_record_goes_through(language: Language, broker: Broker, make_topic: MakeTopic) -> None:
    """gRPC libraries refuse messages of more than 4 MiB unless they are told not to."""
    topic = make_topic()
    value = "x" * 6_000_000
    async with running(language, "publish", "--broker", broker.address, "--topic", topic) as example:
        await example.write([value])
        example.end_input()
        assert await example.wait() == 0, example.tail()
    assert await follow(language, broker.address, topic, 1) == [Line(0, 0, None, value)]


async def test_tls_with_a_client_certificate(language: Language, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    server, client = authority.server(), authority.client()
    flags = ("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
    trusted = ("--tls-ca", str(authority.certificate))
    certified = ("--tls-cert", str(client.certificate), "--tls-key", str(client.key))
    with Broker(*flags, "--tls-client-ca", str(authority.certificate), data_dir=tmp_path / "broker") as broker:
        tls = TLS(ca=str(authority.certificate), cert=str(client.certificate), key=str(client.key))
        with Admin(broker.address, tls=tls) as admin:
            admin.create_topic("secrets", 2)
        await publish(language, broker.address, "secrets", ["a\t1", "b\t2"], *trusted, *certified)
        found = await follow(language, broker.address, "secrets", 2, *trusted, *certified)
        assert {(line.key, line.value) for line in found} == {("a", "1"), ("b", "2")}
        for unsuitable in (trusted, ("--tls-ca", str(stranger.certificate), *certified), ()):
            arguments = ("follow", "--broker", broker.address, "--topic", "secrets", "--timeout", "1", *unsuitable)
            async with running(language, *arguments) as example:
                assert await example.wait() == 1, example.tail()
            assert example.stderr[-1].startswith("error: UNAVAILABLE: ")
            assert example.stdout == []


@pytest.mark.parametrize("command", ["publish", "follow", "member"])
async def test_an_unknown_topic_is_an_error_at_once_and_not_created(
    language: Language, broker: Broker, command: str
) -> None:
    group = ("--group", "g") if command == "member" else ()
    arguments = (command, "--broker", broker.address, "--topic", "no-such-topic", *group)
    async with running(language, *arguments) as example:
        if command == "publish":
            example.end_input()
        assert await example.wait() == 1, example.tail()
    assert example.stdout == []
    assert example.stderr == ["error: TOPIC_NOT_FOUND: topic 'no-such-topic' does not exist"]
    with Admin(broker.address) as admin:
        assert "no-such-topic" not in [topic.name for topic in admin.list_topics()]


async def test_a_refusal_in_the_stream_is_told_by_its_reason(
    language: Language, broker: Broker, make_topic: MakeTopic
) -> None:
    topic = make_topic(1, TopicConfig(max_value_bytes=10))
    async with running(language, "publish", "--broker", broker.address, "--topic", topic, "--batch", "1") as example:
        await example.write(["short", "much too long for this topic", "short again"])
        example.end_input()
        assert await example.wait() == 1, example.tail()
    assert example.stderr[-1].startswith("error: RECORD_TOO_LARGE: ")
    assert [line.value for line in await stored(broker.address, topic, 1)][:1] == ["short"]


async def test_a_broker_that_is_not_there_is_named_when_time_is_up(language: Language) -> None:
    with Broker() as broker:
        address = broker.address
    arguments = ("publish", "--broker", address, "--topic", "t", "--timeout", "0.5")
    async with running(language, *arguments) as example:
        assert await example.wait() == 1, example.tail()
    assert example.stderr[-1].startswith("error: UNAVAILABLE: ")


async def test_a_later_run_of_the_same_name_shuts_an_earlier_one_out(
    language: Language, broker: Broker, make_topic: MakeTopic
) -> None:
    topic = make_topic(2)
    named = ("publish", "--broker", broker.address, "--topic", topic, "--producer-id", "shop", "--batch", "1")
    async with running(language, *named) as earlier:
        await earlier.write(["a\t1", "b\t1"])
        await earlier.prints(2)
        async with running(language, *named) as later:
            await later.write(["a\t2", "b\t2"])
            later.end_input()
            assert await later.wait() == 0, later.tail()
        await earlier.write(["a\t3"])
        assert await earlier.wait() == 1, earlier.tail()
        assert earlier.stderr[-1].startswith("error: PRODUCER_FENCED: ")
    assert sorted(line.value or "" for line in await stored(broker.address, topic, 2)) == ["1", "1", "2", "2"]


@pytest.mark.parametrize("arguments", [(), ("dance",), ("publish",), ("follow", "--topic", "t", "--colour", "red")])
async def test_a_wrong_command_line_has_a_status_of_its_own(language: Language, arguments: tuple[str, ...]) -> None:
    async with running(language, *arguments) as example:
        assert await example.wait() == 2, example.tail()
    assert example.stderr != []


async def test_keys_are_routed_as_everywhere(language: Language) -> None:
    async with running(language, "route", "--vectors", str(VECTORS)) as example:
        assert await example.wait() == 0, example.tail()
    count = len(json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"])
    assert example.stdout == [f"{count} vectors ok"]


async def test_a_wrong_vector_is_found(language: Language, tmp_path: Path) -> None:
    """Otherwise the test above would say nothing."""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    vectors["vectors"][9]["partition"] += 1
    (tmp_path / "wrong.json").write_text(json.dumps(vectors), encoding="utf-8")
    async with running(language, "route", "--vectors", str(tmp_path / "wrong.json")) as example:
        assert await example.wait() == 1, example.tail()
    assert example.stdout == []
    assert len(example.stderr) == 1
