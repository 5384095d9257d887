"""Our histogram against prometheus_client's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import generate_latest

from cursus_broker.observability.latencies import Latencies

BOUNDS = (0.001, 0.25, 1.0, 10.0)


@given(st.lists(st.one_of(st.sampled_from((0.0, *BOUNDS)), st.floats(0, 100))))
def test_it_is_exposed_as_the_library_would_expose_it(observed: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    latencies = Latencies("taken_seconds", "What it took.", BOUNDS)
    ours.register(latencies)
    histogram = Histogram("taken_seconds", "What it took.", buckets=BOUNDS, registry=theirs)
    for seconds in observed:
        latencies.observe(seconds)
        histogram.observe(seconds)
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(ours).decode().splitlines() == expected
