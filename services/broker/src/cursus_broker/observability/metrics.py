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

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from cursus_broker import __version__
from cursus_broker.errors import CursusError, DiskFull, PartitionDamaged
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.log.api import Entry
from cursus_broker.log.damage import Finder
from cursus_broker.observability.disks import DiskCollector, DiskRoom
from cursus_broker.observability.lag import LagAges
from cursus_broker.observability.latencies import Latencies
from cursus_broker.topics.catalog import Catalog
from cursus_broker.topics.scrubber import Scrubber

_log = structlog.get_logger(__name__)

# From a tenth of a millisecond, a local round trip, to ten seconds, the longest grace.
_LATENCY_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class BrokerMetrics:
    """Counts what happens. `watch` adds what can be looked up in the broker's state."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.room = DiskRoom()
        self.registry = CollectorRegistry()
        self._publish_latency = Latencies(
            "message_latency_seconds",
            "Duration of publish operations, from the request to the answer.",
            _LATENCY_BUCKETS,
        )
        self.registry.register(self._publish_latency)
        self._delivery_latency = Latencies(
            "cursus_delivery_latency_seconds",
            "Time from the append of a batch to its delivery to a reader that follows the log.",
            _LATENCY_BUCKETS,
        )
        self.registry.register(self._delivery_latency)
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
        self._handshakes = Counter(
            "cursus_tls_handshakes_refused", "TLS handshakes that failed.", registry=self.registry
        )
        self._scrub_damage = Counter(
            "cursus_damage_found",
            "Damaged places met in logs that are served, by who met them.",
            ["finder"],
            registry=self.registry,
        )
        for finder in ("reader", "scrub"):
            self._scrub_damage.labels(finder)
        self.handshake_refused = self._handshakes.inc
        self._calls: Tally[tuple[str, str]] = Tally()
        self._errors: Tally[str] = Tally()
        self.observe_publish = self._publish_latency.observe
        self.observe_sync = self._sync_time.observe
        self._duplicates: Tally[tuple[str, str]] = Tally()

    def duplicate(self, topic: str, kind: str, records: int) -> None:
        self._duplicates[(topic, kind)] += records

    def cleaned(self, entries: int) -> None:
        self._cleaned.inc(entries)

    def delivered(self, entries: Sequence[Entry]) -> None:
        """Entries on their way to a reader that keeps up."""
        self._delivery_latency.observe(max(0.0, self._clock() - entries[-1].header.append_time_ms / 1000))

    def call_ended(self, method: str, status: str) -> None:
        self._calls[(method, status)] += 1

    def refused(self, error: CursusError) -> None:
        """A request, or one of many in it, was refused."""
        self._errors[error.reason] += 1
        if isinstance(error, DiskFull):
            self.room.refused()

    def damage_found(self, directory: str, partition: int, damage: PartitionDamaged, finder: Finder) -> None:
        """A reader or the scrubber met a damaged place that nobody had met before."""
        self._scrub_damage.labels(finder).inc()
        _log.error("partition.damaged", topic=directory, partition=partition, found_by=finder, **damage.metadata)

    def stream_opened(self, method: str) -> None:
        self._open_streams.labels(method).inc()

    def stream_closed(self, method: str) -> None:
        self._open_streams.labels(method).dec()

    def watch(
        self,
        catalog: Catalog,
        coordinator: GroupCoordinator,
        open_files: Callable[[], int],
        ages: LagAges,
        scrubber: Scrubber,
    ) -> None:
        """Export the state of topics and groups from now on."""
        loop = asyncio.get_running_loop()
        self.registry.register(_StateCollector(loop, catalog, coordinator, self._duplicates, open_files, ages))
        self.registry.register(_WorkCollector(self._calls, self._errors, scrubber, self.room))

    def watch_disks(self, directories: Mapping[str, Path]) -> None:
        """Export how full the file systems of these directories are."""
        self.room.watch(directories.values())
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
        read_records = CounterMetricFamily(
            "cursus_topic_read_records", "Records handed to readers since the start.", labels=("topic",)
        )
        read_bytes = CounterMetricFamily(
            "cursus_topic_read_bytes", "Bytes of record sets handed to readers since the start.", labels=("topic",)
        )
        damaged = GaugeMetricFamily(
            "cursus_damaged_partitions",
            "Partitions that cannot be served, or in which a reader or the scrubber met damage.",
            labels=("topic",),
        )
        failed = GaugeMetricFamily(
            "cursus_failed_partitions",
            "Partitions that take no more until they are opened anew, because their disk failed.",
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
            bad = len(topic.partitions) - len(healthy)
            topic_records = topic_bytes = 0
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
                bad += log.damage is not None
                topic_records += partition.read_records
                topic_bytes += partition.read_bytes
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
            read_records.add_metric((topic.name,), topic_records)
            read_bytes.add_metric((topic.name,), topic_bytes)
            if bad:
                damaged.add_metric((topic.name,), bad)
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
            read_records,
            read_bytes,
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
        cut_records = CounterMetricFamily(
            "cursus_recovery_cut_records",
            "Records that were cut off when the broker started, as far as their headers could be read.",
            labels=("topic",),
        )
        for topic, count in sorted(self._catalog.recovery_cut_records.items()):
            cut_records.add_metric((topic,), count)
        return [cuts, cut_bytes, cut_records]

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


class _WorkCollector(Collector):
    """What was asked of the broker, and what it does beside: numbers that one step of the loop writes and any thread
    may read."""

    def __init__(self, calls: Tally[tuple[str, str]], errors: Tally[str], scrubber: Scrubber, room: DiskRoom) -> None:
        self._calls = calls
        self._errors = errors
        self._scrubber = scrubber
        self._room = room

    def describe(self) -> list[Metric]:
        """Nothing in advance."""
        return []

    def collect(self) -> Iterator[Metric]:
        calls = CounterMetricFamily(
            "cursus_grpc_calls", "Calls that have ended, by method and gRPC status.", labels=("method", "status")
        )
        for key, count in sorted(self._calls.copy().items()):
            calls.add_metric(key, count)
        yield calls
        errors = CounterMetricFamily(
            "cursus_errors",
            "Refusals by their reason: calls, and batches and partitions within streams and fetches.",
            labels=("reason",),
        )
        for reason, count in sorted(self._errors.copy().items()):
            errors.add_metric((reason,), count)
        yield errors
        scrubber = self._scrubber
        yield CounterMetricFamily(
            "cursus_scrub_verified_bytes", "Bytes of sealed segments verified.", value=scrubber.verified_bytes
        )
        yield CounterMetricFamily("cursus_scrub_rounds", "Rounds over all segments that ended.", value=scrubber.rounds)
        yield GaugeMetricFamily(
            "cursus_scrub_round_began_seconds",
            "When the present or last round began, in seconds since 1970; 0 before the first.",
            value=scrubber.progress.began_ms / 1000,
        )
        yield GaugeMetricFamily(
            "cursus_scrub_round_progress",
            "Share of the present round that is done, from 0 to 1; 1 between two rounds.",
            value=scrubber.share_done,
        )
        yield GaugeMetricFamily(
            "cursus_disk_full",
            "1 while publishes are refused because there is no room on the disk.",
            value=int(self._room.is_full),
        )
