from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cursus_broker.errors import (
    CursusError,
    GroupNotFound,
    InvalidRequest,
    ResourceLimit,
    ShuttingDown,
    StorageFailed,
    TopicNotFound,
)
from cursus_broker.log.epochs import Epochs, EpochStart
from cursus_broker.metadata import store as store_module
from cursus_broker.metadata.model import (
    CommittedOffset,
    LedgerChange,
    LedgerReach,
    StoredGroup,
    StoredProducer,
    StoredTopic,
    TopicPartition,
)
from cursus_broker.metadata.store import MetadataStore

ORDERS = StoredTopic("orders", uuid.UUID(int=1), 4, '{"retention_ms": 5}', 1_000)
READERS = StoredGroup("readers", 3, "modulo", 2_000)
P0 = TopicPartition("orders", 0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened = await MetadataStore.open(tmp_path / "metadata.db")
    yield opened
    await opened.close()


async def reopened(store: MetadataStore) -> MetadataStore:
    await store.close()
    return await MetadataStore.open(store.path)


async def test_what_was_written_is_there_after_opening_again(store: MetadataStore) -> None:
    await store.put_topic(ORDERS)
    await store.put_group(READERS)
    await store.commit_offsets("readers", {P0: CommittedOffset(7, "notiz ✓", 3_000, 4, 9)})
    before = await store.load()

    again = await reopened(store)
    after = await again.load()
    await again.close()

    assert (after.topics, after.groups) == ((ORDERS,), (READERS,))
    assert after.offsets == {"readers": {P0: CommittedOffset(7, "notiz ✓", 3_000, 4, 9)}}
    assert after.cluster_id == before.cluster_id
    assert (before.incarnation, after.incarnation) == (1, 2)


async def test_a_topic_written_again_keeps_its_offsets(store: MetadataStore) -> None:
    await store.put_topic(ORDERS)
    await store.put_group(READERS)
    await store.commit_offsets("readers", {P0: CommittedOffset(7)})
    await store.put_topic(StoredTopic("orders", ORDERS.id, 8, "{}", 1_000))
    await store.put_group(StoredGroup("readers", 4, "sticky", 2_000))
    snapshot = await store.load()
    assert snapshot.topics[0].partitions == 8
    assert snapshot.groups[0].generation == 4
    assert snapshot.offsets["readers"][P0].next_offset == 7


async def test_epochs_are_remembered_with_their_topic_and_replaced_as_a_whole(store: MetadataStore) -> None:
    first, later = Epochs().begin(store.next_epoch(), 0), Epochs().begin(store.next_epoch(), 0)
    await store.put_topic(ORDERS, {0: first, 1: first})
    assert (await store.load()).epochs == {P0: first, TopicPartition("orders", 1): first}
    await store.put_epochs({P0: later.begin(store.next_epoch(), 5)})
    await store.put_topic(ORDERS)
    again = await reopened(store)
    assert (await again.load()).epochs == {
        P0: Epochs((EpochStart(2, 0), EpochStart(3, 5))),
        TopicPartition("orders", 1): first,
    }
    await again.close()


async def test_no_epoch_is_given_out_twice_not_even_to_a_topic_created_anew(store: MetadataStore) -> None:
    stored = Epochs().begin(store.next_epoch(), 0)
    await store.put_topic(ORDERS, {0: stored})
    await store.delete_topic("orders")
    assert (await store.load()).epochs == {}
    again = await reopened(store)
    assert again.next_epoch() == stored.current + 1
    await again.close()


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_no_offset_outlives_its_topic_or_group(store: MetadataStore, what: str) -> None:
    await store.put_topic(ORDERS)
    await store.put_group(READERS)
    await store.commit_offsets("readers", {P0: CommittedOffset(7)})
    await (store.delete_topic("orders") if what == "topic" else store.delete_group("readers"))
    assert (await store.load()).offsets == {}


async def test_a_commit_for_what_is_gone_is_refused_and_costs_nobody_else(store: MetadataStore) -> None:
    await store.put_topic(ORDERS)
    await store.put_group(READERS)
    outcomes = await asyncio.gather(
        store.commit_offsets("readers", {P0: CommittedOffset(1), TopicPartition("gone", 0): CommittedOffset(1)}),
        store.commit_offsets("nobody", {P0: CommittedOffset(1)}),
        store.commit_offsets("readers", {TopicPartition("orders", 1): CommittedOffset(2**63)}),
        store.commit_offsets("readers", {TopicPartition("orders", 2): CommittedOffset(5)}),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [TopicNotFound, GroupNotFound, InvalidRequest, type(None)]
    assert (await store.load()).offsets == {"readers": {TopicPartition("orders", 2): CommittedOffset(5)}}


async def test_writes_that_wait_together_share_a_transaction(store: MetadataStore) -> None:
    await store.put_topic(ORDERS)
    await store.put_group(READERS)
    commits: list[str] = []

    def trace(statement: str) -> None:
        if statement == "COMMIT":
            commits.append(statement)

    on_thread = asyncio.get_running_loop().run_in_executor
    await on_thread(store._thread, store._connection.set_trace_callback, trace)
    await asyncio.gather(*(store.commit_offsets("readers", {P0: CommittedOffset(offset)}) for offset in range(500)))
    await on_thread(store._thread, store._connection.set_trace_callback, None)
    assert commits == ["COMMIT"]
    assert (await store.load()).offsets == {"readers": {P0: CommittedOffset(499)}}


async def test_the_outcome_is_told_in_order_and_to_callers_that_left(store: MetadataStore) -> None:
    await store.put_topic(ORDERS)
    await store.put_group(READERS)
    told: list[tuple[int, CursusError | None]] = []
    waits = [
        asyncio.ensure_future(
            store.commit_offsets("readers", {P0: CommittedOffset(n)}, lambda error, n=n: told.append((n, error)))  # type: ignore[misc]  # n is bound
        )
        for n in range(3)
    ]
    waits[1].cancel()
    await asyncio.wait(waits)
    assert told == [(0, None), (1, None), (2, None)]
    assert waits[1].cancelled()


async def test_the_queue_is_bounded(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_WAITING_WRITES", 2)
    accepted = [store.put_group(READERS), store.put_group(READERS)]
    with pytest.raises(ResourceLimit):
        store.put_group(READERS)
    await asyncio.gather(*accepted)
    await store.put_group(READERS)


async def test_closing_finishes_what_waits_and_refuses_the_rest(store: MetadataStore) -> None:
    accepted = asyncio.ensure_future(store.put_group(READERS))
    await store.close()
    await accepted
    with pytest.raises(ShuttingDown):
        store.put_group(READERS)
    again = await reopened(store)
    assert (await again.load()).groups == (READERS,)
    await again.close()


async def test_a_locked_database_fails_the_write_and_the_next_one_works(store: MetadataStore) -> None:
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    await asyncio.get_running_loop().run_in_executor(
        store._thread, store._connection.execute, "PRAGMA busy_timeout = 0"
    )
    with pytest.raises(StorageFailed, match=r"metadata\.db.*locked"):
        await store.put_group(READERS)
    other.execute("ROLLBACK")
    other.close()
    await store.put_group(READERS)
    assert (await store.load()).groups == (READERS,)


def saved(name: bytes, next_offset: int, *, checksum: int | None = 7) -> StoredProducer:
    return StoredProducer(name, 1, 5, checksum, next_offset, 1_000, False, b"recent", b"")


def change(*producers: StoredProducer, forgotten: Sequence[bytes] = (), upto: int = 9) -> LedgerChange:
    return LedgerChange(producers, forgotten, LedgerReach(upto, 10, is_whole=not forgotten))


async def test_a_ledger_is_what_its_changes_have_left_in_the_order_of_the_last_batches(store: MetadataStore) -> None:
    await store.put_topic(ORDERS)
    assert await store.load_ledger(P0) is None
    await store.put_ledger(P0, ORDERS.id, change(saved(b"p", 3), saved(b"q", 2), saved(b"r", 1), upto=4))
    await store.put_ledger(P0, ORDERS.id, change(saved(b"q", 9, checksum=None), forgotten=[b"r", b"unknown"]))
    await store.put_ledger(TopicPartition("orders", 1), ORDERS.id, change(saved(b"p", 1)))
    loaded = await store.load_ledger(P0)
    assert loaded is not None
    assert loaded.reach == LedgerReach(9, 10, is_whole=False)
    assert list(loaded.producers) == [saved(b"p", 3), saved(b"q", 9, checksum=None)]
    await store.drop_ledger(P0)
    assert await store.load_ledger(P0) is None
    assert await store.load_ledger(TopicPartition("orders", 1)) is not None


async def test_a_ledger_of_a_topic_that_was_deleted_meanwhile_is_not_taken_for_the_next_ones(
    store: MetadataStore,
) -> None:
    """A save that was on its way would have told the new topic of batches it never had."""
    await store.put_topic(ORDERS)
    await store.put_ledger(P0, ORDERS.id, change(saved(b"p", 3)))
    await store.delete_topic("orders")
    await store.put_ledger(P0, ORDERS.id, change(saved(b"p", 3)))
    await store.put_topic(replace(ORDERS, id=uuid.UUID(int=2)))
    await store.put_ledger(P0, ORDERS.id, change(saved(b"p", 3)))
    assert await store.load_ledger(P0) is None
