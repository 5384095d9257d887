"""What a task tells the driver of a write, and why a write is refused. Apart from what writes rows, which the driver
need not load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import WriterCommitMessage

from cursus_grpc import TopicPartition
from cursus_spark.identity import Identity

HOW_TO_REPEAT: Final = (
    "The write was repeated and has other rows, in another order, or in other tasks than before. Make the plan"
    " deterministic: sort within partitions by a unique column before writing, leave out random and time functions,"
    " and keep the number of tasks while a batch is unfinished."
)
HOW_TO_GO_ON: Final = (
    "To go on at the price of records stored twice, start once with the option `delivery` = atLeastOnce."
)


class NotRepeatable(RuntimeError):
    """What is stored of a write is not what it would store now."""


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """What a task has stored, for the driver."""

    identity: Identity
    task: int
    rows: Mapping[TopicPartition, int]
    skipped: bool = False
    """Whether the batch was finished before, and so nothing was written."""
