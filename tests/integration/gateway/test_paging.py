"""A client that pages through a partition, CONSUME after CONSUME, over batches of one size and of many."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.harness.gateway import LegacyClient, Stack, read_batch, running_stack
from tests.harness.legacy_wire import Message, batch_body

pytestmark = pytest.mark.asyncio(loop_scope="module")

BATCHES, RECORDS = 100, 500


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("paging")) as stack:
        yield stack


def payload(number: int) -> bytes:
    """Of one size in most batches."""
    return b"%08d" % number + b"x" * (number // RECORDS % 7 == 3 and number % 3)


async def fill(client: LegacyClient, topic: str, first: int = 0, batches: int = BATCHES) -> None:
    for start in range(first, first + batches * RECORDS, RECORDS):
        messages = [Message(number + 1, b"p", payload=payload(number)) for number in range(start, start + RECORDS)]
        await client.publish(batch_body(messages, topic=topic))


@pytest.mark.parametrize("limit", [8192, 3000, 777])
async def test_every_record_comes_once_in_order(stack: Stack, topic: str, limit: int) -> None:
    async with stack.connect() as client:
        await fill(client, topic)
        offset = 0
        while messages := read_batch(await client.consume(topic, offset=offset, more=f"batch={limit}")):
            assert len(messages) <= limit
            expected = range(offset, offset + len(messages))
            assert [m["offset"] for m in messages] == list(expected)
            assert [m["payload"] for m in messages] == list(map(payload, expected))
            offset += len(messages)
        assert offset == BATCHES * RECORDS


async def test_what_is_published_at_the_end_is_seen_at_once(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        await fill(client, topic)
        offset = len(await client.payloads(topic))
        for _ in range(3):
            await fill(client, topic, offset, batches=1)
            assert len(read_batch(await client.consume(topic, offset=offset))) == RECORDS
            offset += RECORDS


async def test_a_topic_made_anew_has_nothing_of_the_old_one(stack: Stack, topic: str) -> None:
    async with stack.connect() as client:
        await fill(client, topic)
        offset = 0
        for _ in range(3):
            offset += len(read_batch(await client.consume(topic, offset=offset)))
        await client.ask(f"DELETE topic={topic}")
        await client.ask(f"CREATE topic={topic} partitions=1")
        assert read_batch(await client.consume(topic, offset=offset)) == []
        await client.publish(batch_body([Message(payload=b"new")], topic=topic))
        assert await client.payloads(topic) == [b"new"]


async def test_readers_side_by_side_get_the_same(stack: Stack, topic: str) -> None:
    async with stack.connect() as client, stack.connect() as other:
        await fill(client, topic)
        offset = 0
        while messages := read_batch(await client.consume(topic, offset=offset)):
            assert read_batch(await other.consume(topic, offset=offset)) == messages
            offset += len(messages)
        assert offset == BATCHES * RECORDS
