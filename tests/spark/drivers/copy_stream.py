"""A driver that copies a topic into another as a stream, until it is killed or, with `--once`, all that is there is
copied.

Tasks leave a file `TASK.ATTEMPT` in `--seen` when they begin. With `--hold-after` a task stops behind so many rows for
as long as its way is blocked: by the file `blocked` there, or, with `--until-copied`, until another attempt at it has
begun.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

from tests.harness import waiting
from tests.harness.waiting import eventually

HELD_AT_MOST_S: Final = 600.0

# Executors have no checkout to import it from.
cloudpickle.register_pickle_by_value(waiting)  # type: ignore[no-untyped-call]  # pyspark's copy has no types


class Held:
    """The rows of a task, with a stop among them."""

    def __init__(self, seen: Path, after: int, until_copied: bool) -> None:
        self._seen = seen
        self._after = after
        self._until_copied = until_copied

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        (self._seen / f"{task}.{attempt}").touch()
        rows = 0
        for batch in batches:
            before, rows = rows, rows + batch.num_rows
            yield batch
            if before < self._after <= rows:
                asyncio.run(eventually(lambda: self._is_free(task, attempt), HELD_AT_MOST_S))

    def _is_free(self, task: int, attempt: int) -> bool:
        if self._until_copied:
            return task != 0 or attempt != 0 or (self._seen / "0.1").exists()
        return not (self._seen / "blocked").exists()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--broker", "--source", "--target", "--checkpoint", "--tasks"):
        parser.add_argument(name, required=True)
    parser.add_argument("--most")
    parser.add_argument("--delivery", default="exactlyOnce")
    parser.add_argument("--seen", type=Path)
    parser.add_argument("--hold-after", type=int, default=0)
    parser.add_argument("--until-copied", action="store_true")
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    reader = (
        spark.readStream.format("cursus")
        .option("bootstrap.servers", given.broker)
        .option("subscribe", given.source)
        .option("startingOffsets", "earliest")
        .option("minPartitions", given.tasks)
    )
    if given.most is not None:
        reader = reader.option("maxOffsetsPerTrigger", given.most)
    rows = reader.load().select("key", "value")
    if given.seen is not None:
        held = Held(given.seen, given.hold_after, given.until_copied)
        rows = rows.mapInArrow(held, "key binary, value binary")
    writer = (
        rows.writeStream.format("cursus")
        .option("bootstrap.servers", given.broker)
        .option("topic", given.target)
        .option("delivery", given.delivery)
        .option("checkpointLocation", given.checkpoint)
    )
    if given.once:
        writer = writer.trigger(availableNow=True)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
