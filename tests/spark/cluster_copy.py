"""A job for spark-submit: copies a topic into another, as a batch or as a stream, and leaves a note of every task.

It runs where nothing of ours is installed but what the job ships, so it imports nothing of the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

Change = Callable[[bytes], bytes]


def watched(notes: str, hold_at: int) -> Change:
    """Hands values on. The first attempt at the first task of all stops at its row of this number, until somebody ends
    it. One by one: whatever works on columns needs pandas."""
    rows: Counter[str] = Counter()

    def change(value: bytes) -> bytes:
        import cursus_spark

        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty("streaming.sql.batchId") or "0"
        attempt = f"{batch_id}-{context.partitionId()}-{context.attemptNumber()}"
        if attempt not in rows:
            note = {"directory": os.getcwd(), "packages": cursus_spark.__file__}
            Path(notes, f".{attempt}").write_text(json.dumps(note))
            Path(notes, f".{attempt}").rename(Path(notes, attempt))
        rows[attempt] += 1
        if rows[attempt] == hold_at and attempt == "0-0-0":
            signal.pause()
        return value

    return change


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--broker", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--target", required=True)
    parser.add_argument("--notes", required=True)
    parser.add_argument("--hold-at", type=int, required=True)
    parser.add_argument("--checkpoint", help="copy as a stream, as far as it goes")
    given = parser.parse_args()

    spark = SparkSession.builder.getOrCreate()
    options = {"bootstrap.servers": given.broker, "subscribe": given.source, "startingOffsets": "earliest"}
    value = udf(watched(given.notes, given.hold_at), "binary")("value").alias("value")
    if given.checkpoint is None:
        rows = spark.read.format("cursus").options(**options).load()
        writer = rows.select("key", value).write.format("cursus").mode("append")
        writer.option("bootstrap.servers", given.broker).option("topic", given.target).save()
        return
    stream = spark.readStream.format("cursus").options(**options).load()
    copied = stream.select("key", value).writeStream.format("cursus")
    copied = copied.option("bootstrap.servers", given.broker).option("topic", given.target)
    copied = copied.option("checkpointLocation", given.checkpoint)
    copied.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
