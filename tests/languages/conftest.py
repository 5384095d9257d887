"""Each example is built once, and most tests share one broker. Tests do not share topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from cursus_grpc import Admin, TopicConfig
from cursus_grpc.testing import Broker
from tests.harness.languages import BUILD_DEADLINE_S, LANGUAGES, Language, Unfetched

_numbers = count()

MakeTopic = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of a language waits for its build, which may have to fetch what it needs."""
    for item in items:
        if "language" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(BUILD_DEADLINE_S + 300))


@pytest.fixture(scope="session", params=LANGUAGES, ids=[language.name for language in LANGUAGES])
def language(request: pytest.FixtureRequest) -> Language:
    """One of the examples, built. Skips the test where its tools, or a way to fetch what it depends on, are absent."""
    chosen: Language = request.param
    if (missing := chosen.missing()) is not None:
        pytest.skip(missing)
    try:
        chosen.compile()
    except Unfetched as reason:
        pytest.skip(str(reason))
    return chosen


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def make_topic(broker: Broker) -> MakeTopic:
    """Makes a topic of the test's own and answers its name."""

    def make(partitions: int = 1, config: TopicConfig | None = None) -> str:
        name = f"topic-{next(_numbers)}"
        with Admin(broker.address) as admin:
            admin.create_topic(name, partitions, config)
        return name

    return make


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """One that the test may kill."""
    with Broker(data_dir=tmp_path / "broker") as running:
        yield running
