"""Files that are not what they should be."""

from __future__ import annotations

import os
import random
import sqlite3
import uuid
from pathlib import Path

import pytest

from cursus_broker.errors import StorageFailed
from cursus_broker.metadata import schema
from cursus_broker.metadata.model import CommittedOffset, StoredGroup, StoredTopic, TopicPartition
from cursus_broker.metadata.store import MetadataStore


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A closed database with enough in it to have inner pages."""
    path = tmp_path / "metadata.db"
    store = await MetadataStore.open(path)
    await store.put_topic(StoredTopic("orders", uuid.UUID(int=1), 500, "{}", 0))
    await store.put_group(StoredGroup("readers", 1, "modulo", 0))
    await store.commit_offsets(
        "readers", {TopicPartition("orders", n): CommittedOffset(n, "x" * 50) for n in range(500)}
    )
    await store.close()
    return path


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def damage(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def refused(path: Path) -> StorageFailed:
    before = content_of(path)
    with pytest.raises(StorageFailed) as refusal:
        await MetadataStore.open(path)
    assert content_of(path) == before, "a file that is refused is left as it is"
    assert "metadata.db" in str(refusal.value)
    return refusal.value


async def test_an_empty_file_is_refused(path: Path) -> None:
    damage(path, b"")
    assert "empty" in str(await refused(path))


async def test_a_file_of_something_else_is_refused(path: Path) -> None:
    damage(path, b"not a database" * 1_000)
    await refused(path)


async def test_a_truncated_file_is_refused(path: Path) -> None:
    content = content_of(path)
    damage(path, content[: len(content) // 2])
    await refused(path)


async def test_a_page_of_rubbish_is_refused(path: Path) -> None:
    content = bytearray(content_of(path))
    page = 4_096
    for start in range(page, len(content), page):
        content[start : start + page] = random.Random(start).randbytes(page)
    damage(path, bytes(content))
    await refused(path)


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 1")
    other.execute("CREATE TABLE t (x)")
    other.close()
    assert "not a broker's metadata" in str(await refused(path))


async def test_a_newer_schema_is_refused(path: Path) -> None:
    newer = sqlite3.connect(path)
    newer.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    newer.close()
    refusal = await refused(path)
    assert refusal.metadata["version"] == str(schema.VERSION + 1)
    assert "newer" in str(refusal)


async def test_a_half_made_draft_is_no_obstacle(tmp_path: Path) -> None:
    damage(tmp_path / "metadata.db.tmp", b"half a datab")
    store = await MetadataStore.open(tmp_path / "metadata.db")
    await store.close()
    assert os.listdir(tmp_path) == ["metadata.db"]


async def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="missing"):
        await MetadataStore.open(tmp_path / "missing" / "metadata.db")
