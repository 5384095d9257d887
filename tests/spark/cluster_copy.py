"""A job for spark-submit: copies a topic as a batch and then as a stream, and leaves a note of every task.

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


def watched(notes: Path, hold_at: int) -> Change:
    """Hands values on. The first attempt at the first task of all stops at its row of this number, until somebody ends
    it. Not for Arrow: a batch that is held would hold back the ones before it, in buffers on the way."""
    rows: Counter[str] = Counter()

    def change(value: bytes) -> bytes:
        import cursus_spark

        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty("streaming.sql.batchId") or "0"
        attempt = f"{batch_id}-{context.partitionId()}-{context.attemptNumber()}"
        if attempt not in rows:
            note = {"directory": os.getcwd(), "packages": cursus_spark.__file__}
            (notes / f".{attempt}").write_text(json.dumps(note))
            (notes / f".{attempt}").rename(notes / attempt)
        rows[attempt] += 1
        if rows[attempt] == hold_at and attempt == "0-0-0":
            signal.pause()
        return value

    return change


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--broker", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--batch", required=True, help="topic to copy to as a batch")
    parser.add_argument("--stream", required=True, help="topic to copy to as a stream, as far as it goes")
    parser.add_argument("--hold-at", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True, help="notes go to batch/ and stream/ in it")
    given = parser.parse_args()

    spark = SparkSession.builder.getOrCreate()
    options = {"bootstrap.servers": given.broker, "subscribe": given.source, "startingOffsets": "earliest"}

    value = udf(watched(given.directory / "batch", given.hold_at), "binary", useArrow=False)("value").alias("value")
    rows = spark.read.format("cursus").options(**options).load().select("key", value)
    writer = rows.write.format("cursus").mode("append").option("bootstrap.servers", given.broker)
    writer.option("topic", given.batch).save()

    value = udf(watched(given.directory / "stream", given.hold_at), "binary", useArrow=False)("value").alias("value")
    stream = spark.readStream.format("cursus").options(**options).load().select("key", value)
    copied = stream.writeStream.format("cursus").option("bootstrap.servers", given.broker).option("topic", given.stream)
    copied = copied.option("checkpointLocation", str(given.directory / "checkpoint"))
    copied.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
