"""Filters narrow what is fetched, never more than they may."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from cursus_grpc import TopicPartition
from cursus_spark.filters import Interval, Narrowing, narrowing


def test_filters_on_place_and_append_time_narrow() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)
    found = narrowing(
        [
            EqualTo(("topic",), "orders"),
            In(("partition",), (1, 4)),
            GreaterThanOrEqual(("offset",), 10),
            LessThan(("offset",), 20),
            GreaterThan(("append_time",), moment),
        ]
    )
    assert found.topics == frozenset({"orders"})
    assert found.partitions == Interval(1, 5)
    assert found.offsets == Interval(10, 21)  # wider by one; Spark filters again
    assert found.append_ms == Interval(least=1_767_323_045_678)
    assert found.admits(TopicPartition("orders", 4))
    assert not found.admits(TopicPartition("orders", 5))
    assert not found.admits(TopicPartition("invoices", 4))


def test_a_filter_on_the_producers_timestamp_narrows_nothing() -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    assert narrowing([GreaterThan(("timestamp",), moment), LessThanOrEqual(("timestamp",), moment)]) == Narrowing()


def test_what_is_not_understood_narrows_nothing() -> None:
    filters = [IsNotNull(("offset",)), Not(EqualTo(("partition",), 3)), EqualTo(("key",), b"k")]
    assert narrowing(filters) == Narrowing()


def test_filters_add_up() -> None:
    found = narrowing([EqualTo(("partition",), 3), LessThan(("partition",), 3), EqualTo(("topic",), "a")])
    assert not found.admits(TopicPartition("a", 5))
    assert narrowing([EqualTo(("topic",), "a"), EqualTo(("topic",), "b")]).topics == frozenset()
