"""Under which identity a write stores its rows, so that the broker recognises what is written again.

A producer is a task of a write; in each partition of a topic it numbers its records from 0, again in each epoch. Of a
stream the epoch is that of the micro-batch, so that a zombie of an older one is fenced and a partition remembers one
producer a task, not one a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from pyspark import TaskContext

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Identity:
    """One write, the same for all its tasks and for all attempts at it."""

    name: str
    epoch: int
    version: int | None
    """The micro-batch or version, by which a finished write is known again; None: it is never repeated."""
    attempt: str
    """Differs between attempts: made in the driver."""
    alone: bool = False
    """Whether repetitions are recognised within this attempt only."""

    @property
    def seed(self) -> int:
        """Where the turns of rows without a key begin."""
        return crc32(f"{self.name}/{self.epoch}".encode())

    def producer_id(self, task: int) -> bytes:
        """Each partition has its own memory of producers, so its name need not be part of this."""
        attempt = f"/{self.attempt}" if self.alone else ""
        return f"spark/{self.name}{attempt}/{task}".encode()


def of_batch(attempt: str) -> Identity:
    """A batch write. Never by the properties of a stream, which jobs inside `foreachBatch` inherit: two writes in one
    of them would be taken for one."""
    return Identity(f"batch/{attempt}", 0, None, attempt)


def of_transaction(app_id: str, version: int, attempt: str) -> Identity:
    return Identity(f"txn/{app_id}", version + 1, version, attempt)


def of_micro_batch(context: TaskContext, attempt: str) -> Identity:
    """What the task belongs to. Raises RuntimeError where Spark does not tell."""
    query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query_id is None or batch_id is None:
        raise RuntimeError("Spark does not tell this task its query and micro-batch: continuous mode is not supported")
    return Identity(f"stream/{query_id}", int(batch_id) + 1, int(batch_id), attempt)
