from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from cursus_broker.metadata import schema


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def test_a_new_database_takes_every_step_and_then_none(connection: sqlite3.Connection) -> None:
    schema.migrate(connection, "metadata.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert tables >= {"meta", "topics", "groups", "offsets"}
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
