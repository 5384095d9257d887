"""A driver that copies a topic into another as a stream, until it is killed."""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--broker", "--source", "--target", "--checkpoint", "--tasks", "--most"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    rows = (
        spark.readStream.format("cursus")
        .option("bootstrap.servers", given.broker)
        .option("subscribe", given.source)
        .option("startingOffsets", "earliest")
        .option("minPartitions", given.tasks)
        .option("maxOffsetsPerTrigger", given.most)
        .load()
        .select("key", "value")
    )
    query = (
        rows.writeStream.format("cursus")
        .option("bootstrap.servers", given.broker)
        .option("topic", given.target)
        .option("checkpointLocation", given.checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
