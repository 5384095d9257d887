"""Bronze: the topic as it is, every record once."""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Records of the topic as they were stored; power loss cannot take them back any more.")
def bronze_orders() -> DataFrame:
    return (
        spark.readStream.format("cursus")
        .option("bootstrap.servers", os.environ.get("CURSUS_BROKER", "localhost:50051"))
        .option("subscribe", os.environ.get("ORDERS_TOPIC", "orders"))
        .option("startingOffsets", "earliest")
        .option("extraColumns", "append_time")
        .load()
    )
