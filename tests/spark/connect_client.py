"""What a user of Spark Connect writes: the source is named, nothing of it is imported or registered here.

Prints what it found, as JSON."""

from __future__ import annotations

import argparse
import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--remote", required=True)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--source", required=True)
    parser.add_argument("--written", required=True, help="topic for a batch")
    parser.add_argument("--streamed", required=True, help="topic for a stream")
    parser.add_argument("--checkpoint", required=True)
    given = parser.parse_args()

    spark = SparkSession.builder.remote(given.remote).getOrCreate()
    options = {"bootstrap.servers": given.broker, "subscribe": given.source}
    rows = spark.read.format("cursus").options(**options).load()
    found: dict[str, object] = {"read": sorted(int(row["value"]) for row in rows.select("value").collect())}

    spark.sql(
        "CREATE TEMPORARY VIEW numbers USING cursus"
        f" OPTIONS (`bootstrap.servers` '{given.broker}', subscribe '{given.source}')"
    )
    (row,) = spark.sql("SELECT sum(CAST(CAST(value AS STRING) AS INT)) AS total FROM numbers").collect()
    found["total"] = row["total"]

    target = rows.select("value").write.format("cursus").mode("append")
    target.option("bootstrap.servers", given.broker).option("topic", given.written).save()

    stream = spark.readStream.format("cursus").options(**options).option("startingOffsets", "earliest").load()
    copied = stream.select("value").writeStream.format("cursus").option("bootstrap.servers", given.broker)
    copied = copied.option("topic", given.streamed).option("checkpointLocation", given.checkpoint)
    copied.trigger(availableNow=True).start().awaitTermination()

    try:
        spark.read.format("cursus").options(**options).option("minPartition", 2).load().count()
    except Exception as error:
        found["refused"] = str(error)
    found["imported"] = sorted(name for name in sys.modules if name.startswith(("cursus", "pyspark_cursus")))
    spark.stop()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
