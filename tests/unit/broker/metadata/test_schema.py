from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from cursus_broker.metadata import schema
from cursus_broker.metadata.database import last_epoch, load_ledger
from cursus_broker.metadata.model import TopicPartition


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def test_a_new_database_takes_every_step_and_then_none(connection: sqlite3.Connection) -> None:
    schema.migrate(connection, "metadata.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert tables >= {"meta", "topics", "groups", "offsets", "epochs"}
    schema.migrate(connection, "metadata.db")


def test_a_step_that_fails_leaves_the_version_before_it(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema.migrate(connection, "metadata.db")
    broken = (*schema.MIGRATIONS, ("CREATE TABLE half (x)", "CREATE TABLE half (x)"))
    monkeypatch.setattr(schema, "MIGRATIONS", broken)
    monkeypatch.setattr(schema, "VERSION", len(broken))
    with pytest.raises(sqlite3.Error):
        schema.migrate(connection, "metadata.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (len(broken) - 1,)
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").fetchone() == (0,)


def test_a_database_of_the_first_version_counts_epochs_from_its_next_start_on(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(schema, "VERSION", 1)
        schema.migrate(connection, "metadata.db")
    connection.execute("INSERT INTO topics VALUES ('orders', 'id', 1, '{}', 0)")
    schema.migrate(connection, "metadata.db")
    assert last_epoch(connection) == 0
    assert connection.execute("SELECT count(*) FROM epochs").fetchone() == (0,)


def test_offsets_committed_before_there_were_epochs_are_kept(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        older.setattr(schema, "VERSION", 2)
        schema.migrate(connection, "metadata.db")
    connection.execute("INSERT INTO topics VALUES ('t', 'id', 1, '{}', 0)")
    connection.execute("INSERT INTO groups VALUES ('g', 1, '', 0)")
    connection.execute("INSERT INTO offsets VALUES ('g', 't', 0, 25, 'note', 7)")
    schema.migrate(connection, "metadata.db")
    found = connection.execute("SELECT next_offset, metadata, leader_epoch, truncated_from FROM offsets").fetchall()
    assert found == [(25, "note", None, None)]


def test_producers_saved_before_they_had_rows_are_left_to_the_headers(
    connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:3])
        older.setattr(schema, "VERSION", 3)
        schema.migrate(connection, "metadata.db")
    connection.execute("INSERT INTO topics VALUES ('t', 'id', 1, '{}', 0)")
    connection.execute("INSERT INTO producers VALUES ('t', 0, 25, ?)", (b"[]",))
    schema.migrate(connection, "metadata.db")
    assert load_ledger(connection, TopicPartition("t", 0)) is None
