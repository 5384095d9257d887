"""A process that is killed while it commits: what it was told is durable is there, and the file opens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cursus_broker.metadata.model import TopicPartition
from cursus_broker.metadata.store import MetadataStore

# Prints an offset only after its commit was answered; several commits are always under way when it is killed.
WRITER = """
import asyncio, sys, uuid
from pathlib import Path
from cursus_broker.metadata.model import CommittedOffset, StoredGroup, StoredTopic, TopicPartition
from cursus_broker.metadata.store import MetadataStore

async def commit_for_ever(store, partition):
    offset = 0
    while True:
        offset += 1
        await store.commit_offsets("readers", {TopicPartition("orders", partition): CommittedOffset(offset)})
        print(partition, offset, flush=True)

async def main():
    store = await MetadataStore.open(Path(sys.argv[1]))
    await store.put_topic(StoredTopic("orders", uuid.UUID(int=1), 8, "{}", 0))
    await store.put_group(StoredGroup("readers", 1, "modulo", 0))
    await asyncio.gather(*(commit_for_ever(store, partition) for partition in range(8)))

asyncio.run(main())
"""


async def test_answered_commits_survive_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    for answers in (1, 40, 333):
        acknowledged = dict.fromkeys(range(8), 0)
        with subprocess.Popen(  # noqa: ASYNC220  # the test has nothing else to do
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(answers):
                partition, offset = map(int, writer.stdout.readline().split())
                acknowledged[partition] = offset
            writer.kill()
            # A line torn by the kill acknowledges nothing.
            for line in writer.stdout.read().splitlines(keepends=True):
                if line.endswith("\n"):
                    partition, offset = map(int, line.split())
                    acknowledged[partition] = offset

        store = await MetadataStore.open(path)
        snapshot = await store.load()
        await store.close()
        stored = snapshot.offsets["readers"]
        assert all(
            stored[TopicPartition("orders", partition)].next_offset >= offset
            for partition, offset in acknowledged.items()
            if offset
        )
        path.unlink()
