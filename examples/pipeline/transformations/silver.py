"""Silver: orders with types. What is no order is kept apart, not dropped."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

spark = SparkSession.active()

ORDER = "item STRING, quantity INT, price DECIMAL(10, 2)"


def parsed() -> DataFrame:
    text = col("value").cast("string")
    return spark.readStream.table("bronze_orders").select(
        "partition",
        "offset",
        col("timestamp").alias("ordered_at"),
        col("key").cast("string").alias("customer"),
        text.alias("text"),
        from_json(text, ORDER).alias("an_order"),
    )


@dp.table(comment="Orders, a row each.")
def silver_orders() -> DataFrame:
    whole = parsed().where("an_order.item IS NOT NULL AND an_order.quantity > 0 AND an_order.price IS NOT NULL")
    return whole.select("partition", "offset", "ordered_at", "customer", "an_order.*")


@dp.table(comment="Records that are no orders, to be looked at.")
def silver_rejected() -> DataFrame:
    whole = "an_order.item IS NOT NULL AND an_order.quantity > 0 AND an_order.price IS NOT NULL"
    return parsed().where(f"NOT coalesce({whole}, false)").select("partition", "offset", "customer", "text")
