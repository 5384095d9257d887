"""The tables of the metadata database and the numbered steps that lead to them.

A step, once released, is never edited: a database on some disk has already taken it. `PRAGMA user_version` counts the
steps a database has taken; `PRAGMA application_id` tells ours from any other SQLite file.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from cursus_broker.errors import StorageFailed

APPLICATION_ID: Final = 0x43555253  # "CURS", shown by `file metadata.db`

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID",
        """CREATE TABLE topics (
            name        TEXT PRIMARY KEY,
            id          TEXT NOT NULL UNIQUE,
            partitions  INTEGER NOT NULL CHECK (partitions > 0),
            config      TEXT NOT NULL,
            created_ms  INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE groups (
            name        TEXT PRIMARY KEY,
            generation  INTEGER NOT NULL CHECK (generation >= 0),
            strategy    TEXT NOT NULL,
            created_ms  INTEGER NOT NULL
        ) STRICT, WITHOUT ROWID""",
        # The cascades are the promise that no offset outlives its topic or group, not even one whose commit raced
        # with the deletion: a topic created anew under the same name starts without history.
        """CREATE TABLE offsets (
            group_name      TEXT NOT NULL REFERENCES groups (name) ON DELETE CASCADE,
            topic           TEXT NOT NULL REFERENCES topics (name) ON DELETE CASCADE,
            partition       INTEGER NOT NULL CHECK (partition >= 0),
            next_offset     INTEGER NOT NULL CHECK (next_offset >= 0),
            metadata        TEXT NOT NULL,
            commit_time_ms  INTEGER NOT NULL,
            PRIMARY KEY (group_name, topic, partition)
        ) STRICT, WITHOUT ROWID""",
        "CREATE INDEX offsets_by_topic ON offsets (topic)",  # the cascade of a topic would scan the table without it
        # A cache: what a partition knew of its producers when its log ended at `upto_offset`. The rest, or all of it
        # where there is no row, is read from the batch headers of the log.
        """CREATE TABLE producers (
            topic        TEXT NOT NULL REFERENCES topics (name) ON DELETE CASCADE,
            partition    INTEGER NOT NULL CHECK (partition >= 0),
            upto_offset  INTEGER NOT NULL CHECK (upto_offset >= 0),
            ledger       BLOB NOT NULL,
            PRIMARY KEY (topic, partition)
        ) STRICT, WITHOUT ROWID""",
    ),
    (
        # The highest leader epoch ever stored, also for topics that are deleted: no number is given out twice.
        "INSERT INTO meta (key, value) VALUES ('epoch', '0')",
        # Since which offset a partition has been in which leader epoch; see `log/epochs.py`.
        """CREATE TABLE epochs (
            topic         TEXT NOT NULL REFERENCES topics (name) ON DELETE CASCADE,
            partition     INTEGER NOT NULL CHECK (partition >= 0),
            epoch         INTEGER NOT NULL CHECK (epoch > 0),
            first_offset  INTEGER NOT NULL CHECK (first_offset >= 0),
            PRIMARY KEY (topic, partition, epoch)
        ) STRICT, WITHOUT ROWID""",
    ),
    (
        # Null for what was committed before there were epochs.
        "ALTER TABLE offsets ADD COLUMN leader_epoch INTEGER",
        # What was committed before the log was cut below it; null while nothing like that happened.
        "ALTER TABLE offsets ADD COLUMN truncated_from INTEGER",
    ),
    (
        # What was in it is read from the batch headers once more.
        "DROP TABLE producers",
        # How far a partition's memory of its producers goes. All batches below `upto_offset` are in it, of single
        # producers also later ones, none at or above `described_offset`; those behind it are read from the batch
        # headers of the log. `is_whole` is 0 once a producer was forgotten.
        """CREATE TABLE ledgers (
            topic             TEXT NOT NULL REFERENCES topics (name) ON DELETE CASCADE,
            partition         INTEGER NOT NULL CHECK (partition >= 0),
            upto_offset       INTEGER NOT NULL CHECK (upto_offset >= 0),
            described_offset  INTEGER NOT NULL CHECK (described_offset >= upto_offset),
            is_whole          INTEGER NOT NULL,
            PRIMARY KEY (topic, partition)
        ) STRICT, WITHOUT ROWID""",
        # With a rowid: rows of two or three kilobytes would spill out of the pages of a table without.
        """CREATE TABLE producers (
            topic           TEXT NOT NULL,
            partition       INTEGER NOT NULL,
            id              BLOB NOT NULL,
            epoch           INTEGER NOT NULL,
            next_sequence   INTEGER NOT NULL,
            checksum        INTEGER,
            next_offset     INTEGER NOT NULL,
            last_append_ms  INTEGER NOT NULL,
            incomplete      INTEGER NOT NULL,
            recent          BLOB NOT NULL,
            seen            BLOB NOT NULL,
            UNIQUE (topic, partition, id),
            FOREIGN KEY (topic, partition) REFERENCES ledgers (topic, partition) ON DELETE CASCADE
        ) STRICT""",
    ),
    (
        # 1: the producer is done, and nobody may send in its name up to this epoch. Nothing else is known of it.
        "ALTER TABLE producers ADD COLUMN released INTEGER NOT NULL DEFAULT 0",
    ),
)

VERSION: Final = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection, file: str) -> None:
    """Bring the database to `VERSION`, each step in its own transaction. The connection is in autocommit mode.

    Raises StorageFailed for a database that is not ours or was written by a newer broker.
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != APPLICATION_ID and (version, application_id) != (0, 0):
        raise StorageFailed(f"{file} is an SQLite database, but not a broker's metadata", file=file)
    if version > VERSION:
        raise StorageFailed(
            f"{file} has schema version {version}, this broker knows up to {VERSION}: run the newer broker",
            file=file,
            version=version,
            supported=VERSION,
        )
    for number in range(version, VERSION):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in MIGRATIONS[number]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number + 1}")
        except sqlite3.Error:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
