"""The broker's metrics. Hot paths only add to plain numbers; a scrape gathers them.

Names of the original broker are kept where it has one for the same thing.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from cursus_broker import __version__
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.log.api import Entry
from cursus_broker.observability.disks import DiskCollector
from cursus_broker.observability.lag import LagAges
from cursus_broker.topics.catalog import Catalog

# From a tenth of a millisecond, a local round trip, to ten seconds, the longest grace.
_LATENCY_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class BrokerMetrics:
    """Counts what happens. `watch` adds what can be looked up in the broker's state."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.registry = CollectorRegistry()
        self._publish_latency = Histogram(
            "message_latency_seconds",
            "Duration of publish operations, from the request to the answer.",
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._delivery_latency = Histogram(
            "cursus_delivery_latency_seconds",
            "Time from the append of a batch to its delivery to a reader that follows the log.",
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._sync_time = Histogram(
            "cursus_sync_duration_seconds",
            "Time a disk sync took. One that covers many partitions counts once.",
            buckets=_LATENCY_BUCKETS,
            registry=self.registry,
        )
        self._cleaned = Counter(
            "cursus_dedup_cleanup",
            "Contents forgotten because they fell out of the deduplication window.",
            registry=self.registry,
        )
        self._open_streams = Gauge(
            "cursus_open_streams", "Streams that are open now.", ["method"], registry=self.registry
        )
        Gauge(
            "cursus_broker_info", "Always 1; the label tells the version.", ["version"], registry=self.registry
        ).labels(__version__).set(1)
        self._started = Gauge(
            "cursus_broker_start_seconds",
            "How long the last start took, from the first port to serving, recovery included.",
            registry=self.registry,
        )
        self._connections = Gauge(
            "cursus_broker_connections", "gRPC connections that are open.", registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self.observe_publish = self._publish_latency.observe
        self.observe_sync = self._sync_time.observe
        self._duplicates: Tally[tuple[str, str]] = Tally()

    def duplicate(self, topic: str, kind: str, records: int) -> None:
        self._duplicates[(topic, kind)] += records

    def cleaned(self, entries: int) -> None:
        self._cleaned.inc(entries)

    def delivered(self, entries: Sequence[Entry]) -> None:
        """Entries on their way to a following reader. History that is read back counts too, in the last bucket."""
        self._delivery_latency.observe(max(0.0, self._clock() - entries[-1].header.append_time_ms / 1000))

    def stream_opened(self, method: str) -> None:
        self._open_streams.labels(method).inc()

    def stream_closed(self, method: str) -> None:
        self._open_streams.labels(method).dec()

    def watch(
        self, catalog: Catalog, coordinator: GroupCoordinator, open_files: Callable[[], int], ages: LagAges
    ) -> None:
        """Export the state of topics and groups from now on."""
        loop = asyncio.get_running_loop()
        self.registry.register(_StateCollector(loop, catalog, coordinator, self._duplicates, open_files, ages))

    def watch_disks(self, directories: Mapping[str, Path]) -> None:
        """Export how full the file systems of these directories are."""
        self.registry.register(DiskCollector(directories))

    def serving(self, start_seconds: float, connections: Callable[[], int]) -> None:
        """The broker is up."""
        self._started.set(start_seconds)
        self._connections.set_function(connections)


class _StateCollector(Collector):
    """Reads the broker's state when a scrape asks.

    Scrapes are formatted in a thread, but the state belongs to the event loop, so it is gathered there in one step.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        catalog: Catalog,
        coordinator: GroupCoordinator,
        duplicates: Tally[tuple[str, str]],
        open_files: Callable[[], int],
        ages: LagAges,
    ) -> None:
        self._loop = loop
        self._catalog = catalog
        self._coordinator = coordinator
        self._duplicates = duplicates
        self._open_files = open_files
        self._ages = ages

    def describe(self) -> list[Metric]:
        """Nothing in advance: registering must not gather."""
        return []

    def collect(self) -> Iterator[Metric]:
        return iter(asyncio.run_coroutine_threadsafe(self._gather(), self._loop).result())

    async def _gather(self) -> list[Metric]:
        return [*self._topics(), *self._groups()]

    def _topics(self) -> list[Metric]:
        by_partition = ("topic", "partition")
        start = GaugeMetricFamily(
            "cursus_partition_log_start_offset", "First offset that can be read.", labels=by_partition
        )
        end = GaugeMetricFamily("cursus_partition_log_end_offset", "Offset the next record gets.", labels=by_partition)
        size = GaugeMetricFamily("cursus_partition_size_bytes", "Bytes of the segments.", labels=by_partition)
        unsynced = GaugeMetricFamily(
            "cursus_partition_unsynced_bytes", "Written bytes that wait for a sync.", labels=by_partition
        )
        records = CounterMetricFamily(
            "cursus_partition_records", "Records appended since the start.", labels=by_partition
        )
        written = CounterMetricFamily(
            "cursus_partition_written_bytes", "Bytes appended since the start.", labels=by_partition
        )
        damaged = GaugeMetricFamily("cursus_damaged_partitions", "Partitions that cannot be served.", labels=("topic",))
        failed = GaugeMetricFamily(
            "cursus_failed_partitions",
            "Partitions that take no more until the broker is started again, because their disk failed.",
            labels=("topic",),
        )
        remembered = GaugeMetricFamily("cursus_dedup_entries", "Contents remembered now.", labels=("topic",))
        forgotten = CounterMetricFamily(
            "cursus_dedup_forgotten_early",
            "Contents forgotten within the deduplication window, because there were too many.",
            labels=("topic",),
        )
        producers = GaugeMetricFamily("cursus_producers", "Producers remembered now.", labels=("topic",))
        forgotten_producers = CounterMetricFamily(
            "cursus_producers_forgotten",
            "Producers forgotten since the start: idle, crowded out by others, or released by their owner.",
            labels=("topic", "cause"),
        )
        processed = sync_count = segments = partitions = 0
        sync_seconds = 0.0
        topics = self._catalog.topics()
        for topic in topics:
            healthy = topic.healthy()
            partitions += len(topic.partitions)
            if len(healthy) != len(topic.partitions):
                damaged.add_metric((topic.name,), len(topic.partitions) - len(healthy))
            if len(topic.content):
                remembered.add_metric((topic.name,), len(topic.content))
            if topic.content.forgotten_early:
                forgotten.add_metric((topic.name,), topic.content.forgotten_early)
            remembered_producers = refusing = 0
            causes: Tally[str] = Tally()
            for partition in healthy:
                remembered_producers += len(partition.producers)
                if partition.producers.forgotten:
                    causes.update(partition.producers.forgotten)
                log, labels = partition.log, (topic.name, str(partition.id))
                refusing += log.refusal is not None
                start.add_metric(labels, log.earliest_offset)
                end.add_metric(labels, log.next_offset)
                size.add_metric(labels, log.size_bytes)
                unsynced.add_metric(labels, log.unsynced_bytes)
                records.add_metric(labels, log.appended_records)
                written.add_metric(labels, log.appended_bytes)
                processed += log.appended_records
                sync_count += log.syncs
                sync_seconds += log.sync_seconds_total
                segments += log.segment_count
            if refusing:
                failed.add_metric((topic.name,), refusing)
            if remembered_producers:
                producers.add_metric((topic.name,), remembered_producers)
            for cause, count in sorted(causes.items()):
                forgotten_producers.add_metric((topic.name, cause), count)
        duplicates = CounterMetricFamily(
            "cursus_dedup_hits", "Records that were recognised as stored before.", labels=("topic", "kind")
        )
        existing = {topic.name for topic in topics}
        for name, kind in list(self._duplicates):
            if name in existing:
                duplicates.add_metric((name, kind), self._duplicates[(name, kind)])
            else:
                del self._duplicates[(name, kind)]
        return [
            CounterMetricFamily("messages_processed", "Records published since the start.", value=processed),
            start,
            end,
            size,
            unsynced,
            records,
            written,
            damaged,
            failed,
            *self._cuts(),
            remembered,
            forgotten,
            duplicates,
            producers,
            forgotten_producers,
            CounterMetricFamily("cursus_syncs", "Disk syncs of segments since the start.", value=sync_count),
            CounterMetricFamily("cursus_sync_seconds", "Time spent in disk syncs since the start.", value=sync_seconds),
            GaugeMetricFamily("cursus_storage_segments", "Segment files of all partitions.", value=segments),
            GaugeMetricFamily("cursus_storage_open_files", "Segment files that are open.", value=self._open_files()),
            GaugeMetricFamily(
                "cursus_tail_bytes", "Memory used for the newest records.", value=self._catalog.tail_bytes
            ),
            GaugeMetricFamily("cursus_broker_topics", "Topics.", value=len(topics)),
            GaugeMetricFamily("cursus_broker_partitions", "Partitions of all topics.", value=partitions),
        ]

    def _cuts(self) -> list[Metric]:
        cuts = CounterMetricFamily(
            "cursus_recovery_cuts", "Torn ends of logs that were cut off when the broker started.", labels=("topic",)
        )
        for topic, count in sorted(self._catalog.recovery_cuts.items()):
            cuts.add_metric((topic,), count)
        cut_bytes = CounterMetricFamily(
            "cursus_recovery_cut_bytes",
            "Bytes that were cut off when the broker started; they are set aside.",
            value=self._catalog.recovery_cut_bytes,
        )
        return [cuts, cut_bytes]

    def _groups(self) -> list[Metric]:
        by_group = ("group",)
        by_place = ("group", "topic", "partition")
        members = GaugeMetricFamily("cursus_consumer_group_members", "Live members.", labels=by_group)
        generation = GaugeMetricFamily("cursus_consumer_group_generation", "The group's generation.", labels=by_group)
        committed = GaugeMetricFamily(
            "cursus_consumer_group_committed_offset", "Next offset the group reads.", labels=by_place
        )
        lag = GaugeMetricFamily("cursus_consumer_group_lag", "Records the group has still to read.", labels=by_place)
        for summary in self._coordinator.list_groups():
            members.add_metric((summary.name,), summary.members)
            generation.add_metric((summary.name,), summary.generation)
            for place, view in self._coordinator.describe(summary.name).offsets.items():
                labels = (summary.name, place.topic, str(place.partition))
                lag.add_metric(labels, view.lag_records)
                if view.committed is not None:
                    committed.add_metric(labels, view.committed.next_offset)
        age = GaugeMetricFamily(
            "cursus_consumer_group_lag_seconds",
            "Age of the oldest record the group has still to read, 0 if there is none. Looked up every few seconds.",
            labels=("group", "topic"),
        )
        for (group, topic), seconds in self._ages.seconds():
            age.add_metric((group, topic), seconds)
        truncated = CounterMetricFamily(
            "cursus_consumer_group_offsets_truncated",
            "Committed offsets moved back to the end of a log that had lost what they stood for, since the start.",
            value=self._coordinator.truncated_offsets,
        )
        return [members, generation, committed, lag, age, truncated]
