"""The metadata store: SQLite on a thread of its own, many writes in one transaction.

Writes take effect in the order of the calls. All writes that wait when the thread comes free share one commit, and so
one disk sync; each caller's awaitable resolves after it. Cancelling a caller cancels its wait, never the write.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from cursus_broker.errors import CursusError, InvalidRequest, ResourceLimit, ShuttingDown, StorageFailed
from cursus_broker.log.epochs import Epochs
from cursus_broker.metadata import database
from cursus_broker.metadata.model import (
    CommittedOffset,
    LedgerChange,
    Snapshot,
    StoredGroup,
    StoredLedger,
    StoredTopic,
    TopicPartition,
)

MAX_WAITING_WRITES: Final = 10_000
MAX_BATCH: Final = 1_000  # bounds how long one transaction keeps the writes behind it waiting

Settled = Callable[[CursusError | None], None]
"""Called on the event loop when a write is durable (None) or refused, in the order of the writes and before their
awaitables resolve: also when the caller no longer waits."""


@dataclass(frozen=True, slots=True)
class _Write:
    apply: Callable[[sqlite3.Connection], None]
    done: asyncio.Future[None]
    settled: Settled | None

    def settle(self, error: CursusError | None) -> None:
        if self.settled is not None:
            self.settled(error)
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class MetadataStore:
    """One open metadata database. Make it with `open`, end it with `close`, both on the event loop that uses it."""

    def __init__(self, path: Path, thread: ThreadPoolExecutor, connection: sqlite3.Connection, last_epoch: int) -> None:
        self.path = path
        self._shown = Path(path.name)  # to clients, whom the directory does not concern
        self._last_epoch = last_epoch
        self._thread = thread
        self._connection = connection
        self._waiting: deque[_Write] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: Path) -> MetadataStore:
        """Open the database at `path`, or create it if there is no file.

        Raises StorageFailed, naming the file, if it is damaged, not ours or newer than this broker.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata")

        def open_database() -> tuple[sqlite3.Connection, int]:
            connection = database.open_database(path)
            with database.storage_errors(path):
                return connection, database.last_epoch(connection)

        try:
            connection, last_epoch = await asyncio.get_running_loop().run_in_executor(thread, open_database)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(path, thread, connection, last_epoch)

    async def load(self) -> Snapshot:
        """Everything that is durable now."""

        def read() -> Snapshot:
            with database.storage_errors(self._shown):
                return database.load(self._connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    def put_topic(self, topic: StoredTopic, epochs: Mapping[int, Epochs] | None = None) -> Awaitable[None]:
        """Create the topic or replace what is stored of it; its offsets stay. With it, in the same transaction, the
        epochs of partitions that are new."""
        added = {TopicPartition(topic.name, partition): begun for partition, begun in (epochs or {}).items()}

        def put(connection: sqlite3.Connection) -> None:
            database.put_topic(connection, topic)
            database.put_epochs(connection, added)

        return self._submit(put)

    def next_epoch(self) -> int:
        """A leader epoch that no partition ever had. It becomes durable with the first write that stores it, before
        which nobody may be told of it."""
        self._last_epoch += 1
        return self._last_epoch

    def put_epochs(self, epochs: Mapping[TopicPartition, Epochs]) -> Awaitable[None]:
        """Remember the epochs of these partitions, all or none, in the place of what was stored of them."""
        stored = dict(epochs)
        return self._submit(lambda connection: database.put_epochs(connection, stored))

    async def load_epochs(self, partition: TopicPartition) -> Epochs:
        """What is remembered of the partition's epochs."""

        def read() -> Epochs:
            with database.storage_errors(self._shown):
                return database.load_epochs(self._connection, partition)

        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    def delete_topic(self, name: str) -> Awaitable[None]:
        """Forget the topic and every offset committed for it. Unknown names are fine."""
        return self._submit(lambda connection: database.delete_topic(connection, name))

    def put_group(self, group: StoredGroup, settled: Settled | None = None) -> Awaitable[None]:
        return self._submit(lambda connection: database.put_group(connection, group), settled)

    def delete_group(self, name: str) -> Awaitable[None]:
        """Forget the group and its offsets. Unknown names are fine."""
        return self._submit(lambda connection: database.delete_group(connection, name))

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        settled: Settled | None = None,
    ) -> Awaitable[None]:
        """Store the offsets, all or none, whatever was there before: order is judged by `groups/offsets.py`.

        The awaitable raises GroupNotFound or TopicNotFound if one of them is not stored (any more).
        """
        stored = dict(offsets)
        return self._submit(lambda connection: database.put_offsets(connection, group, stored), settled)

    def put_ledger(self, partition: TopicPartition, topic_id: UUID, change: LedgerChange) -> Awaitable[None]:
        """Remember what is new of a partition's producers; nothing if the topic is not the stored one (any more)."""
        return self._submit(lambda connection: database.put_ledger(connection, partition, topic_id, change))

    def drop_ledger(self, partition: TopicPartition) -> Awaitable[None]:
        """Forget all that was remembered of a partition's producers."""
        return self._submit(lambda connection: database.drop_ledger(connection, partition))

    async def load_ledger(self, partition: TopicPartition) -> StoredLedger | None:
        """What was remembered last, if anything was."""

        def read() -> StoredLedger | None:
            with database.storage_errors(self._shown):
                return database.load_ledger(self._connection, partition)

        return await asyncio.get_running_loop().run_in_executor(self._thread, read)

    async def close(self) -> None:
        """Finish the writes that wait, then close the file. Later writes are refused. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            await self._writer
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=False)

    def _submit(self, apply: Callable[[sqlite3.Connection], None], settled: Settled | None = None) -> Awaitable[None]:
        """Queue a write at once; raises ShuttingDown or ResourceLimit, and then nothing was queued."""
        if self._closed:
            raise ShuttingDown
        if len(self._waiting) >= MAX_WAITING_WRITES:
            raise ResourceLimit(f"{MAX_WAITING_WRITES} metadata writes are waiting for the disk: try again later")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Write(apply, done, settled))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_waiting(), name="metadata-writer")
        return asyncio.shield(done)

    async def _write_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]
            try:
                outcomes = await loop.run_in_executor(self._thread, self._commit, [write.apply for write in batch])
            except Exception as error:  # our own mistake; nobody may wait for ever because of it
                outcomes = [StorageFailed(f"metadata database {self._shown}: {error!r}") for _ in batch]
            for write, outcome in zip(batch, outcomes, strict=True):
                write.settle(outcome)

    def _commit(self, writes: Sequence[Callable[[sqlite3.Connection], None]]) -> list[CursusError | None]:
        """One transaction on the store's thread. A refused write costs only its own caller; a failed commit, all."""
        try:
            with database.storage_errors(self._shown):
                self._connection.execute("BEGIN IMMEDIATE")
                outcomes = [self._apply(write) for write in writes]
                self._connection.execute("COMMIT")
        except StorageFailed as error:
            with suppress(sqlite3.Error):  # SQLite has often rolled back by itself
                self._connection.execute("ROLLBACK")
            return [error.again() for _ in writes]
        return outcomes

    def _apply(self, write: Callable[[sqlite3.Connection], None]) -> CursusError | None:
        self._connection.execute("SAVEPOINT one_write")
        try:
            with database.storage_errors(self._shown):
                write(self._connection)
        except (OverflowError, UnicodeError) as error:
            refused: CursusError = InvalidRequest(f"a value does not fit into the metadata database: {error}")
        except CursusError as error:
            refused = error
        else:
            self._connection.execute("RELEASE one_write")
            return None
        # A full disk makes SQLite roll everything back by itself; then the next statement fails for all of them.
        self._connection.execute("ROLLBACK TO one_write")
        self._connection.execute("RELEASE one_write")
        return refused
