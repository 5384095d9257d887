"""What the gateway counts. Names of the seeds as they are, `cursus_gateway_*` for the rest; one registry a process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.process_collector import ProcessCollector

_SIZES: Final = (1, 5, 10, 50, 100, 500, 1_000, 5_000, 10_000, 100_000)
_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class GatewayMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._commands: dict[tuple[str, str], Counter] = {}
        ProcessCollector(registry=self.registry)
        registry = self.registry
        self.connections_active = Gauge(
            "cursus_gateway_connections_active", "Connections being served.", registry=registry
        )
        self.connections = Counter("cursus_gateway_connections", "Connections accepted so far.", registry=registry)
        self.refused_handshakes = Counter(
            "cursus_tls_handshakes_refused", "TLS handshakes that failed.", registry=registry
        )
        self.frames = Counter("cursus_gateway_frames", "Frames received.", registry=registry)
        self.oversized_frames = Counter(
            "cursus_gateway_oversized_frames", "Frames refused because they are too large.", registry=registry
        )
        self.commands = Counter(
            "cursus_gateway_commands", "Commands served, by outcome.", ["command", "outcome"], registry=registry
        )
        self.errors = Counter("cursus_gateway_errors", "Errors answered, by kind.", ["kind"], registry=registry)
        self.batch_records = Histogram(
            "cursus_gateway_batch_records", "Messages in a received batch.", buckets=_SIZES, registry=registry
        )
        self.translation = Histogram(
            "cursus_gateway_translation_seconds",
            "Time to turn a batch into record sets.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.processed = Counter("messages_processed", "Messages published through the gateway.", registry=registry)
        self.latency = Histogram(
            "message_latency_seconds", "Time from a publish request to its acknowledgement.", registry=registry
        )
        self.streams = Gauge("cursus_gateway_streams_active", "Open STREAM and SUBSCRIBE pushes.", registry=registry)
        self.broker_up = Gauge("cursus_gateway_broker_up", "1 while a broker answers.", registry=registry)
        self.dropped_answers = Counter(
            "cursus_gateway_dropped_answers",
            "Acknowledgements of acks 0 dropped because the client does not read them.",
            registry=registry,
        )

        self.plain_frames = Counter(
            "cursus_gateway_plain_frames",
            "Batches and direct messages that came without gzip although it is expected (enable_gzip).",
            registry=registry,
        )

    def command(self, name: str, outcome: str) -> None:
        """`name` is a keyword of the protocol or BATCH or MESSAGE, so its values are few."""
        counter = self._commands.get((name, outcome))
        if counter is None:
            counter = self._commands[(name, outcome)] = self.commands.labels(name, outcome)
        counter.inc()

    @contextmanager
    def streaming(self) -> Iterator[None]:
        self.streams.inc()
        try:
            yield
        finally:
            self.streams.dec()

    def watch_connections(self, count: Callable[[], int]) -> None:
        self.connections_active.set_function(count)

    def published(self, records: int, started: float) -> None:
        self.processed.inc(records)
        self.latency.observe(time.perf_counter() - started)
