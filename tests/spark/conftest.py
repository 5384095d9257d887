"""One Spark session and one broker for all tests: starting either takes longer than most tests. Tests do not share
topics.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cursus_grpc import Admin, TopicConfig
from cursus_grpc.testing import Broker
from tests.harness import spark as harness


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = harness.missing()
    if reason is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    directory = tmp_path_factory.mktemp("spark")
    os.environ.update(harness.environment(directory))
    builder = SparkSession.builder.master("local[2,3]").appName("cursus-tests")
    builder = builder.config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    for name, value in harness.CONFIGURATION.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.address) as client:
        yield client


_numbers = count()

MakeTopic = Callable[..., str]


@pytest.fixture
def make_topic(admin: Admin) -> MakeTopic:
    """Makes a topic of the test's own and answers its name."""

    def make(partitions: int = 2, config: TopicConfig | None = None, prefix: str = "topic") -> str:
        name = f"{prefix}-{next(_numbers)}"
        admin.create_topic(name, partitions, config)
        return name

    return make


Read = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, broker: Broker) -> Read:
    """A batch read with these options."""

    def reader(topic: str, /, **options: object) -> DataFrame:
        given = {"bootstrap.servers": broker.address, "subscribe": topic} | options
        return spark.read.format("cursus").options(**{name: str(value) for name, value in given.items()}).load()

    return reader


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
