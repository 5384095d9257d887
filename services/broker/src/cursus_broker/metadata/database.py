"""The metadata database as plain, blocking functions: open or create the file, read it whole, and one function for each
kind of write. Everything here runs on the store's thread; `store.py` is the only caller.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cursus_broker.errors import DiskFull, GroupNotFound, StorageFailed, TopicNotFound
from cursus_broker.log.epochs import Epochs, EpochStart
from cursus_broker.metadata import schema
from cursus_broker.metadata.model import (
    CommittedOffset,
    LedgerChange,
    LedgerReach,
    Snapshot,
    StoredGroup,
    StoredLedger,
    StoredProducer,
    StoredTopic,
    TopicPartition,
)

BUSY_TIMEOUT_MS: Final = 5_000  # somebody may be looking at the file with the sqlite3 shell


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Translate what SQLite and the operating system say into StorageFailed or DiskFull, naming the file."""
    try:
        yield
    except sqlite3.Error as error:
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        kind = DiskFull if is_full else StorageFailed
        raise kind(f"metadata database {path}: {error}", file=path) from error
    except OSError as error:
        raise StorageFailed(f"metadata database {path}: {error.strerror or error}", file=path) from error


def open_database(path: Path) -> sqlite3.Connection:
    """Open the database, creating it if there is no such file.

    Raises StorageFailed if the file is damaged, not ours, or newer than this broker. It is left as it is.
    """
    with storage_errors(path):
        if not path.exists():
            _create(path)
        elif path.stat().st_size == 0:
            # SQLite would take an empty file for a new database; ours are never empty, so this one lost its content.
            raise StorageFailed(f"metadata database {path} is empty: restore it from a backup", file=path)
        connection = _connect(path)
        try:
            _check(connection, path)
            schema.migrate(connection, str(path))
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA foreign_keys = ON")
            _count_incarnation(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def load(connection: sqlite3.Connection) -> Snapshot:
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
    for group, topic, partition, *committed in connection.execute(
        "SELECT group_name, topic, partition, next_offset, metadata, commit_time_ms, leader_epoch, truncated_from"
        " FROM offsets"
    ):
        offsets.setdefault(group, {})[TopicPartition(topic, partition)] = CommittedOffset(*committed)
    return Snapshot(
        cluster_id=meta["cluster_id"],
        incarnation=int(meta["incarnation"]),
        topics=tuple(
            StoredTopic(name, uuid.UUID(id_), partitions, config, created_ms)
            for name, id_, partitions, config, created_ms in connection.execute(
                "SELECT name, id, partitions, config, created_ms FROM topics ORDER BY name"
            )
        ),
        groups=tuple(
            StoredGroup(*row)
            for row in connection.execute("SELECT name, generation, strategy, created_ms FROM groups ORDER BY name")
        ),
        offsets=offsets,
        epochs=_load_epochs(connection),
    )


def last_epoch(connection: sqlite3.Connection) -> int:
    """The highest epoch that was ever stored."""
    row = connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
    if row is None:
        raise sqlite3.DatabaseError("the row 'epoch' of table meta is missing")
    return int(row[0])


def _load_epochs(connection: sqlite3.Connection) -> dict[TopicPartition, Epochs]:
    starts: dict[TopicPartition, list[EpochStart]] = {}
    for topic, partition, epoch, first_offset in connection.execute(
        "SELECT topic, partition, epoch, first_offset FROM epochs ORDER BY topic, partition, epoch"
    ):
        starts.setdefault(TopicPartition(topic, partition), []).append(EpochStart(epoch, first_offset))
    return {place: Epochs(tuple(found)) for place, found in starts.items()}


def load_epochs(connection: sqlite3.Connection, partition: TopicPartition) -> Epochs:
    rows = connection.execute(
        "SELECT epoch, first_offset FROM epochs WHERE topic = ? AND partition = ? ORDER BY epoch", partition
    )
    return Epochs(tuple(EpochStart(epoch, first_offset) for epoch, first_offset in rows))


def put_topic(connection: sqlite3.Connection, topic: StoredTopic) -> None:
    # An upsert and not REPLACE, which deletes the old row first and with it, by cascade, the topic's offsets.
    connection.execute(
        "INSERT INTO topics (name, id, partitions, config, created_ms) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET id = excluded.id, partitions = excluded.partitions,"
        " config = excluded.config, created_ms = excluded.created_ms",
        (topic.name, str(topic.id), topic.partitions, topic.config_json, topic.created_ms),
    )


def put_epochs(connection: sqlite3.Connection, epochs: Mapping[TopicPartition, Epochs]) -> None:
    """Replace the epochs of these partitions, whose topics are stored, and never give out one of them again."""
    connection.executemany("DELETE FROM epochs WHERE topic = ? AND partition = ?", epochs)
    connection.executemany(
        "INSERT INTO epochs (topic, partition, epoch, first_offset) VALUES (?, ?, ?, ?)",
        (
            (topic, partition, start.epoch, start.first_offset)
            for (topic, partition), of_partition in epochs.items()
            for start in of_partition.starts
        ),
    )
    highest = max((of_partition.current for of_partition in epochs.values()), default=0)
    if highest > last_epoch(connection):
        connection.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(highest),))


def delete_topic(connection: sqlite3.Connection, name: str) -> None:
    connection.execute("DELETE FROM topics WHERE name = ?", (name,))


def put_group(connection: sqlite3.Connection, group: StoredGroup) -> None:
    connection.execute(
        "INSERT INTO groups (name, generation, strategy, created_ms) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET generation = excluded.generation, strategy = excluded.strategy",
        (group.name, group.generation, group.strategy, group.created_ms),
    )


def delete_group(connection: sqlite3.Connection, name: str) -> None:
    connection.execute("DELETE FROM groups WHERE name = ?", (name,))


def put_offsets(connection: sqlite3.Connection, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
    # Asked first because a failed foreign key does not say which one it was.
    if connection.execute("SELECT 1 FROM groups WHERE name = ?", (group,)).fetchone() is None:
        raise GroupNotFound(group)
    for topic in {partition.topic for partition in offsets}:
        if connection.execute("SELECT 1 FROM topics WHERE name = ?", (topic,)).fetchone() is None:
            raise TopicNotFound(topic)
    connection.executemany(
        "INSERT INTO offsets (group_name, topic, partition, next_offset, metadata, commit_time_ms, leader_epoch,"
        " truncated_from) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (group_name, topic, partition) DO UPDATE SET"
        " next_offset = excluded.next_offset, metadata = excluded.metadata, commit_time_ms = excluded.commit_time_ms,"
        " leader_epoch = excluded.leader_epoch, truncated_from = excluded.truncated_from",
        (
            (
                group,
                topic,
                partition,
                committed.next_offset,
                committed.metadata,
                committed.commit_time_ms,
                committed.leader_epoch,
                committed.truncated_from,
            )
            for (topic, partition), committed in offsets.items()
        ),
    )


def put_ledger(
    connection: sqlite3.Connection, partition: TopicPartition, topic_id: uuid.UUID, change: LedgerChange
) -> None:
    reach = change.reach
    stored = connection.execute(
        "INSERT INTO ledgers (topic, partition, upto_offset, described_offset, is_whole)"
        " SELECT name, ?, ?, ?, ? FROM topics WHERE name = ? AND id = ?"
        " ON CONFLICT (topic, partition) DO UPDATE SET upto_offset = excluded.upto_offset,"
        " described_offset = excluded.described_offset, is_whole = excluded.is_whole",
        (
            partition.partition,
            reach.upto_offset,
            reach.described_offset,
            reach.is_whole,
            partition.topic,
            str(topic_id),
        ),
    ).rowcount
    if not stored:
        return  # the topic was deleted meanwhile, and this would only have been a cache of its log
    connection.executemany(
        "INSERT INTO producers (topic, partition, id, epoch, next_sequence, checksum, next_offset, last_append_ms,"
        " incomplete, recent, seen, released) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (topic, partition, id) DO"
        " UPDATE SET epoch = excluded.epoch, next_sequence = excluded.next_sequence, checksum = excluded.checksum,"
        " next_offset = excluded.next_offset, last_append_ms = excluded.last_append_ms,"
        " incomplete = excluded.incomplete, recent = excluded.recent, seen = excluded.seen,"
        " released = excluded.released",
        ((*partition, *row) for row in change.producers),
    )
    connection.executemany(
        "DELETE FROM producers WHERE topic = ? AND partition = ? AND id = ?",
        ((*partition, producer_id) for producer_id in change.forgotten),
    )


def drop_ledger(connection: sqlite3.Connection, partition: TopicPartition) -> None:
    connection.execute("DELETE FROM ledgers WHERE topic = ? AND partition = ?", partition)


def load_ledger(connection: sqlite3.Connection, partition: TopicPartition) -> StoredLedger | None:
    row = connection.execute(
        "SELECT upto_offset, described_offset, is_whole FROM ledgers WHERE topic = ? AND partition = ?", partition
    ).fetchone()
    if row is None:
        return None
    upto_offset, described_offset, is_whole = row
    producers = connection.execute(
        "SELECT id, epoch, next_sequence, checksum, next_offset, last_append_ms, incomplete, recent, seen, released"
        " FROM producers WHERE topic = ? AND partition = ? ORDER BY next_offset",
        partition,
    )
    return StoredLedger(
        LedgerReach(upto_offset, described_offset, bool(is_whole)), tuple(StoredProducer(*one) for one in producers)
    )


def _connect(path: Path) -> sqlite3.Connection:
    # Autocommit: the store begins and ends transactions itself.
    connection = sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_MS / 1000, check_same_thread=True)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    findings = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if findings != ["ok"]:
        raise StorageFailed(
            f"metadata database {path} is damaged ({'; '.join(findings)}): restore it from a backup", file=path
        )


def _create(path: Path) -> None:
    """Make the database beside its place and move it there whole, so that the name never stands for half a file."""
    draft = path.with_name(path.name + ".tmp")
    for leftover in (draft, path.with_name(draft.name + "-journal")):
        leftover.unlink(missing_ok=True)
    connection = _connect(draft)
    try:
        schema.migrate(connection, str(draft))
        connection.execute(
            "INSERT INTO meta (key, value) VALUES ('cluster_id', ?), ('incarnation', '0')", (str(uuid.uuid4()),)
        )
    finally:
        connection.close()
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _count_incarnation(connection: sqlite3.Connection) -> None:
    changed = connection.execute(
        "UPDATE meta SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT) WHERE key = 'incarnation'"
    ).rowcount
    if changed != 1:
        raise sqlite3.DatabaseError("the row 'incarnation' of table meta is missing")
