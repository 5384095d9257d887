"""The pytest plugin: loaded by itself where `cursus-grpc` is installed, and idle until a fixture is asked for.

`cursus_broker` is a fresh broker in process, with all fault switches; `cursus_topic` the name of a topic on it that is
the test's own. `@pytest.mark.cursus_topic(partitions=4)` asks for more than one partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from cursus_grpc.testing import Broker

_NAME_CHARS: Final = 200


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cursus_topic(partitions): how many partitions the fixture's topic has")


@pytest.fixture
def cursus_broker() -> Iterator[Broker]:
    """A broker of the test's own, empty, in process."""
    # Imported here: a test run that does not use the fixture need not have the broker installed.
    from cursus_grpc.testing import Broker

    with Broker(in_process=True, can_lose_power=True) as broker:
        yield broker


@pytest.fixture
def cursus_topic(cursus_broker: Broker, request: pytest.FixtureRequest) -> str:
    """The name of a topic of the test's own, with one partition unless the marker says otherwise."""
    from cursus_grpc import Admin

    marker = request.node.get_closest_marker("cursus_topic")
    partitions: int = marker.kwargs.get("partitions", 1) if marker is not None else 1
    name = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:_NAME_CHARS]
    with Admin(cursus_broker.address) as admin:
        admin.create_topic(name, partitions)
    return name
