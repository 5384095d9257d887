# %% [markdown]
# # Orders with Spark
#
# A shop's orders in a topic: produced with the Python client, read as a table, followed as a stream, rolled up by event
# time, and written back to a topic that every other client can read. Run it cell by cell, or as a script.

# %%
import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

from cursus_grpc import Admin, Consumer, Producer

broker = os.environ.get("CURSUS_BROKER", "localhost:50051")
run = datetime.now(UTC).strftime("%H%M%S%f")
orders, revenue = f"orders-{run}", f"revenue-{run}"
scratch = Path(tempfile.mkdtemp(prefix="orders-"))

# %% [markdown]
# ## Produce
#
# A thousand orders over ten minutes of event time. Orders of one customer have one key, so they share a partition and
# keep their order.

# %%
noon = int(datetime(2026, 5, 1, 12, tzinfo=UTC).timestamp() * 1_000)
with Admin(broker) as admin:
    admin.create_topic(orders, 4)
    admin.create_topic(revenue, 1)

with Producer(broker, acks="all") as producer:
    for number in range(1_000):
        order = {"shop": ("north", "south", "west")[number % 3], "amount": number % 50 + 0.5}
        producer.send(orders, json.dumps(order), key=f"customer-{number % 40}", timestamp_ms=noon + number * 600)
print(f"produced 1,000 orders to {orders}")

# %% [markdown]
# ## Read as a table

# %%
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = (
    SparkSession.builder.master("local[2]")
    .appName("orders")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")

table = spark.read.format("cursus").option("bootstrap.servers", broker).option("subscribe", orders).load()
table.createOrReplaceTempView("orders")
spark.sql("""
    SELECT partition, count(*) AS orders, min(timestamp) AS first, max(timestamp) AS last
    FROM orders GROUP BY partition ORDER BY partition
""").show(truncate=False)

# %% [markdown]
# ## Stream
#
# The same records as they come. Each trigger takes at most 300; `availableNow` ends when all that is there was read.
# The lag of the stream shows in `cursus group describe`, under the group's name.

# %%
stream = (
    spark.readStream.format("cursus")
    .option("bootstrap.servers", broker)
    .option("subscribe", orders)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "300")
    .option("groupId", f"example-{run}")
    .load()
)
fields = fn.from_json(fn.col("value").cast("string"), "shop STRING, amount DOUBLE")
parsed = stream.select("timestamp", fields.alias("order")).select("timestamp", "order.*")

# %% [markdown]
# ## Roll up, and write back
#
# Revenue per shop and minute. A minute is written when the watermark, two minutes behind the latest order, has passed
# its end: each result once, whatever fails and is done again. The last minutes wait for orders that come after them.

# %%
per_minute = (
    parsed.withWatermark("timestamp", "2 minutes")
    .groupBy(fn.window("timestamp", "1 minute"), "shop")
    .agg(fn.count("*").alias("orders"), fn.sum("amount").alias("revenue"))
)
results = per_minute.select(
    fn.concat_ws("@", "shop", fn.date_format("window.start", "HH:mm")).alias("key"),
    fn.to_json(fn.struct("shop", fn.col("window.start").alias("minute"), "orders", "revenue")).alias("value"),
)
query = (
    results.writeStream.format("cursus")
    .option("bootstrap.servers", broker)
    .option("topic", revenue)
    .option("checkpointLocation", str(scratch / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(f"{len([one for one in query.recentProgress if one['numInputRows']])} micro-batches with orders")

# %% [markdown]
# ## What others see
#
# The results are ordinary records.

# %%
with Admin(broker) as admin:
    count = sum(one.next_offset for one in admin.describe_topic(revenue).partitions)
with Consumer(broker) as consumer:
    found = [json.loads(record.value or b"") for record in consumer.range(revenue, 0, 0, count)]
for one in found[:3]:
    print(one)
counted, earned = sum(one["orders"] for one in found), sum(one["revenue"] for one in found)
print(f"{len(found)} results, {counted} orders, revenue {earned}")

# %%
spark.stop()
