"""Responses that are encoded once: for whom, and how much of them is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cursus_broker.app import Broker
from cursus_broker.log.api import Batch, Entry, Offset
from cursus_broker.log.entry import crc32c
from cursus_broker.rpc.shared import SharedResponses
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition


def encode(_: Partition, entries: Sequence[Entry]) -> bytes:
    return b"".join(entry.payload for entry in entries)


def append(partition: Partition, payload: bytes) -> None:
    partition.append(Batch(payload, 1, crc32c(payload)), 0)


async def test_readers_of_the_same_entries_at_the_end_share_one_response(tmp_path: Path) -> None:
    async with Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker:
        partition = (await broker.catalog.create("orders", 1, TopicConfig())).partition(0)
        append(partition, b"first")
        responses = SharedResponses(encode)
        one = responses.of(partition, await partition.read(Offset(0), 1_000))
        assert responses.of(partition, await partition.read(Offset(0), 1_000)) is one
        assert responses.encodings == 1
        append(partition, b"second")
        assert responses.of(partition, await partition.read(Offset(0), 1_000)) == b"firstsecond"
        assert responses.of(partition, await partition.read(Offset(1), 1_000)) == b"second"
        assert (responses.encodings, len(responses), responses.kept_bytes) == (3, 1, len(b"second"))


async def test_nothing_is_kept_of_history_and_of_what_is_large(tmp_path: Path) -> None:
    async with Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker:
        partition = (await broker.catalog.create("orders", 1, TopicConfig())).partition(0)
        append(partition, b"first")
        append(partition, b"x" * 100)
        responses = SharedResponses(encode, most_bytes=399)
        responses.of(partition, await partition.read(Offset(0), 1))
        responses.of(partition, await partition.read(Offset(1), 1))
        assert (len(responses), responses.kept_bytes) == (0, 0)


async def test_a_topic_created_anew_gets_no_response_of_the_old_one(tmp_path: Path) -> None:
    async with Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker:
        responses = SharedResponses(encode)
        for payload in (b"old", b"new"):
            partition = (await broker.catalog.create("orders", 1, TopicConfig())).partition(0)
            append(partition, payload)
            assert responses.of(partition, await partition.read(Offset(0), 1_000)) == payload
            await broker.catalog.delete("orders")


async def test_the_bytes_and_the_number_of_responses_are_bounded(tmp_path: Path) -> None:
    async with Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker:
        topic = await broker.catalog.create("orders", 20, TopicConfig())
        responses = SharedResponses(encode, most_bytes=1_000)
        for partition in topic.healthy():
            append(partition, b"x" * 200)
            responses.of(partition, await partition.read(Offset(0), 1_000))
            assert responses.kept_bytes <= 1_000
        assert len(responses) == 5
        few = SharedResponses(encode, most_responses=3)
        for partition in topic.healthy():
            few.of(partition, await partition.read(Offset(0), 1_000))
        assert (len(few), few.kept_bytes) == (3, 600)
