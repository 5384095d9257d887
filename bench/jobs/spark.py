"""What a Spark driver is asked to do. `bench/spark_driver.py` does it: this module is loaded also where there is no
Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FLOOR_SOURCE: Final = "bench-floor"
"""The name of `bench/spark_floor.py` as a source and sink."""


@dataclass(frozen=True, slots=True)
class StartSpark:
    """Start the session, with these jars beside Spark's own."""

    directory: str
    jars: list[str]


@dataclass(frozen=True, slots=True)
class Fill:
    """Store rows in a topic of ours, 500 a set, evenly in its partitions."""

    address: str
    topic: str
    kind: str
    rows: int
    partitions: int


@dataclass(frozen=True, slots=True)
class FillKafka:
    """Store rows in a topic of Kafka by Spark's own sink, in batches as large as ours."""

    address: str
    topic: str
    kind: str
    rows: int
    partitions: int


@dataclass(frozen=True, slots=True)
class Cache:
    """Have rows in Spark's memory, for later writes."""

    kind: str
    rows: int
    partitions: int


@dataclass(frozen=True, slots=True)
class SparkRead:
    """Read a source and sum up the lengths of its values."""

    source: str
    options: dict[str, str]
    kind: str
    rows: int
    """What has to be found."""
    schema: str = ""
    """Empty: as the source has it."""
    memory: bool = False
    """Whether to watch the memory of the Python workers."""


@dataclass(frozen=True, slots=True)
class SparkWrite:
    """Write cached rows to a sink."""

    sink: str
    options: dict[str, str]
    kind: str
    memory: bool = False


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """Plan a read of a topic of ours, without reading."""

    address: str
    topic: str
    partitions: int
    """What has to be found."""


@dataclass(frozen=True, slots=True)
class SparkFollow:
    """Stream a topic with the shortest trigger. Receive a record, stop, and receive `count` stamped ones."""

    source: str
    options: dict[str, str]
    checkpoint: str
    count: int


@dataclass(frozen=True, slots=True)
class Ran:
    seconds: float
    driver_cpu_seconds: float
    jvm_cpu_seconds: float
    python_cpu_seconds: float
    """Of all Python processes that Spark started."""
    worker_bytes: int
    """The most that one of them had resident, if that was watched."""
