"""Both faces, and a broker process that the tests of a module share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from cursus_grpc import Admin
from cursus_grpc.testing import Broker
from tests.integration.client.faces import AsyncFace, Face, SyncFace

_numbers = itertools.count()


@pytest.fixture(params=[AsyncFace(), SyncFace()], ids=["async", "sync"])
def face(request: pytest.FixtureRequest) -> Face:
    chosen: Face = request.param
    return chosen


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[Admin]:
    with Admin(broker.address) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name of the test's own, for topics and groups."""
    return re.sub(r"[^a-z_]", "-", request.node.name)[:100] + f"-{next(_numbers)}"


@pytest.fixture
def topic(admin: Admin, name: str) -> str:
    """A topic with two partitions."""
    admin.create_topic(name, 2)
    return name
