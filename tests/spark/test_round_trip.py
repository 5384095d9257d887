"""A million records from a table to a topic and back."""

from __future__ import annotations

from typing import Final

import pytest
from pyspark.sql import DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody names it

from cursus_grpc.testing import Broker
from tests.spark.conftest import MakeTopic, Read

COUNT: Final = 1_000_000
TASKS: Final = 4
PARTITIONS: Final = 3
FIRST_MS: Final = 1_700_000_000_000
"""The record with number n has this time and n milliseconds: so it can be told which one it is."""

ROWS: Final = (
    "CASE WHEN id % 10 = 0 THEN NULL WHEN id % 10 = 1 THEN X'' ELSE CAST(concat('key-', id % 5000) AS BINARY)"
    " END AS key",
    "CASE WHEN id % 7 = 0 THEN NULL WHEN id % 7 = 1 THEN X'' ELSE CAST(concat(id, '-', repeat('x', id % 50)) AS BINARY)"
    " END AS value",
    "CASE WHEN id % 5 = 0 THEN array(named_struct('key', 'a', 'value', CAST(CAST(id AS STRING) AS BINARY)))"
    " WHEN id % 5 = 1 THEN array(named_struct('key', 'ü', 'value', X''),"
    " named_struct('key', 'ü', 'value', CAST(NULL AS BINARY))) END AS headers",
    f"timestamp_millis({FIRST_MS} + id) AS timestamp",
)


def fingerprint(rows: DataFrame) -> Row:
    """Of the rows as a multiset: two sums of hashes of everything in a row, whose order does not matter."""
    content = ("key IS NULL", "key", "value IS NULL", "value", "headers IS NULL", "headers", "timestamp")
    hashed = rows.selectExpr(
        f"CAST(xxhash64({', '.join(content)}) AS DECIMAL(38)) AS one",
        f"CAST(xxhash64('salt', {', '.join(content)}) AS DECIMAL(38)) AS two",
    )
    return hashed.agg(F.count("*"), F.sum("one"), F.sum("two")).collect()[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_records_come_back_as_they_were(
    broker: Broker, spark: SparkSession, make_topic: MakeTopic, read: Read
) -> None:
    topic = make_topic(PARTITIONS)
    rows = spark.range(0, COUNT, 1, TASKS).selectExpr(*ROWS)
    writer = rows.write.format("cursus").mode("append").option("bootstrap.servers", broker.address)
    writer.option("topic", topic).save()
    found = read(topic, includeHeaders=True).cache()
    try:
        assert fingerprint(found) == fingerprint(rows)
        ends = found.groupBy("partition").agg(F.count("*").alias("rows"), (F.max("offset") + 1).alias("end")).collect()
        assert {row["partition"] for row in ends} == set(range(PARTITIONS))
        assert all(row["rows"] == row["end"] for row in ends)
        assert found.where("timestampType != 0").count() == 0
        # What a task writes to a partition keeps its order there.
        numbered = found.selectExpr(
            "partition", "offset", f"unix_millis(timestamp) - {FIRST_MS} AS id", f"{COUNT // TASKS} AS share"
        ).selectExpr("partition", "offset", "id", "id DIV share AS task")
        before = F.lag("id").over(Window.partitionBy("partition", "task").orderBy("offset"))
        assert numbered.withColumn("before", before).where("before >= id").count() == 0
    finally:
        found.unpersist()


def test_the_fingerprint_tells_null_from_empty_and_one_from_two(spark: SparkSession) -> None:
    def rows(*values: str) -> DataFrame:
        return spark.sql(
            " UNION ALL ".join(
                f"SELECT CAST(NULL AS BINARY) AS key, CAST({value} AS BINARY) AS value,"
                " CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers, timestamp_millis(0) AS timestamp"
                for value in values
            )
        )

    seen = [fingerprint(rows(*values)) for values in (("NULL",), ("X''",), ("'a'",), ("'a'", "'a'"), ("'a'", "'b'"))]
    assert len(set(seen)) == len(seen)
    assert fingerprint(rows("'a'", "'b'")) == fingerprint(rows("'b'", "'a'"))
