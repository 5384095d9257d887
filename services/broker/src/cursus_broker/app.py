"""The broker put together. `serve` reads from top to bottom as the life of the process."""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

import structlog

from cursus_broker import __version__
from cursus_broker.datadir import locked
from cursus_broker.errors import StorageFailed
from cursus_broker.groups.api import GroupLimits
from cursus_broker.groups.coordinator import GroupCoordinator
from cursus_broker.log.engine import SegmentEngine
from cursus_broker.log.files import Files, RealFiles
from cursus_broker.metadata.model import Snapshot
from cursus_broker.metadata.store import MetadataStore
from cursus_broker.observability.disks import DiskRoom
from cursus_broker.observability.lag import LagAges
from cursus_broker.observability.metrics import BrokerMetrics
from cursus_broker.publish.dedup import ContentLimits
from cursus_broker.publish.publisher import Admit, Publisher, PublisherSettings
from cursus_broker.publish.unpacking import InThread
from cursus_broker.rpc.cluster import ClusterServicer, Identity
from cursus_broker.rpc.consume import ConsumeServicer
from cursus_broker.rpc.groups import GroupServicer
from cursus_broker.rpc.publish import PublishServicer
from cursus_broker.rpc.server import Server, Servicers
from cursus_broker.rpc.streams import Stopping
from cursus_broker.rpc.subscribe import SubscribeServicer
from cursus_broker.rpc.topics import TopicServicer
from cursus_broker.settings import BrokerSettings, TlsSettings
from cursus_broker.topics.catalog import Catalog, CatalogSettings, refuse_lost_metadata
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.scrubber import Scrubber
from cursus_service.http import NOT_LISTENING, Health, HttpServer, health_handler, metrics_handler
from cursus_service.process import announce_ready, format_address, raise_open_file_limit, settle_memory

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Descriptors for everything but segments: connections, metadata, threads' wake-ups.
_OTHER_FILES: Final = 2_048
_LEDGER_CHECK_S: Final = 10.0
_LAG_CHECK_S: Final = 5.0
_ROOM_CHECK_S: Final = 1.0
_STARTING: Final = Health(NOT_LISTENING, {"broker": "starting"})
_STOPPING: Final = Health(NOT_LISTENING, {"broker": "stopping"})
# Appended since producers were last remembered: what a start after a crash has to read of a partition's headers.
_LEDGER_BYTES: Final = 64 * 1024 * 1024
# Producers forgotten since: a start after a crash would know them again, and others would have to make room for them.
_LEDGER_FORGOTTEN: Final = 1_000


@dataclass(frozen=True, slots=True)
class Broker:
    """The parts that live as long as the process."""

    settings: BrokerSettings
    snapshot: Snapshot
    catalog: Catalog
    coordinator: GroupCoordinator
    publisher: Publisher
    metrics: BrokerMetrics
    ages: LagAges
    scrubber: Scrubber

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: BrokerSettings, files: Files | None = None, admit: Admit | None = None
    ) -> AsyncIterator[Broker]:
        """Lock the data directory, open metadata and logs. Leaving closes them, with everything synced."""
        with locked(settings.data_dir):
            settings.segment_dir.mkdir(parents=True, exist_ok=True)
            async with AsyncExitStack() as closing:
                metrics = BrokerMetrics()
                metrics.watch_disks({"data": settings.data_dir, "logs": settings.segment_dir})
                threads = closing.enter_context(ThreadPoolExecutor(2, "unpack"))
                engine = SegmentEngine(
                    settings.segment_dir,
                    settings.log,
                    files=files or RealFiles(),
                    observe_sync=metrics.observe_sync,
                    observe_damage=metrics.damage_found,
                )
                await closing.enter_async_context(engine)
                database = settings.data_dir / "metadata.db"
                await refuse_lost_metadata(database, engine)
                store = await MetadataStore.open(database)
                closing.push_async_callback(store.close)
                catalog = Catalog(engine, store, _catalog_settings(settings))
                closing.push_async_callback(catalog.close)
                snapshot = await store.load()
                await catalog.open_all(snapshot)
                limits = GroupLimits(settings.groups.max_groups, settings.groups.max_members)
                coordinator = GroupCoordinator(store, catalog, snapshot, limits=limits)
                await coordinator.partitions_opened()
                catalog.on_change(coordinator.topic_changed)
                catalog.on_reopen(coordinator.partitions_opened)
                ages = LagAges(catalog, coordinator)
                scrubber = Scrubber(
                    catalog,
                    settings.log.scrub_bytes_per_s,
                    settings.log.scrub_interval_ms,
                    settings.data_dir / "scrub.json",
                )
                metrics.watch(catalog, coordinator, lambda: engine.open_descriptors, ages, scrubber)
                publisher = Publisher(catalog, _publisher_settings(settings), metrics, _runner(threads), admit)
                yield cls(settings, snapshot, catalog, coordinator, publisher, metrics, ages, scrubber)


async def serve(
    settings: BrokerSettings,
    stop: asyncio.Event,
    files: Files | None = None,
    *,
    admit: Admit | None = None,
    announce: Callable[..., None] = announce_ready,
) -> None:
    """Run a broker until `stop` is set: take the ports, recover, serve, drain, sync, let go.

    Whoever tests with it may put other files below it, be asked to admit every batch, and be told of its addresses
    instead of the reader of stdout. Raises StorageFailed if it cannot start.
    """
    started = time.monotonic()
    settings = _within_file_limit(settings)
    health: Callable[[], Health] = lambda: _STARTING  # noqa: E731  # replaced below
    who = "broker"
    async with HttpServer(health_handler(lambda: health(), lambda: who)) as health_server:
        health_address = await _listen(health_server, settings.host, settings.health_port)
        async with Broker.open(settings, files, admit) as broker:
            server = Server(settings.grpc, settings.publish, broker.metrics)
            grpc_port = server.bind(settings.host, settings.grpc_port, settings.tls)
            async with (
                HttpServer(metrics_handler(broker.metrics.registry)) as metrics_server,
                _background(broker, server.follow_certificates),
            ):
                metrics_address = await _listen(metrics_server, settings.host, settings.metrics_port)
                stopping = Stopping()
                identity = _identity(broker, grpc_port)
                await server.start(_servicers(broker, identity, stopping))
                who = str(identity)
                settle_memory()
                start_seconds = time.monotonic() - started
                broker.metrics.serving(start_seconds, lambda: server.connections)
                health = partial(_health, broker.metrics.room)
                announce(grpc=(settings.host, grpc_port), health=health_address, metrics=metrics_address)
                log.info(
                    "broker.listening",
                    version=__version__,
                    python=platform.python_version(),
                    data_dir=str(settings.data_dir.absolute()),
                    segment_dir=str(settings.segment_dir.absolute()),
                    tls=_tls_shown(settings.tls),
                    host=settings.host,
                    grpc_port=grpc_port,
                    topics=len(broker.snapshot.topics),
                    partitions=broker.catalog.total_partitions,
                    start_seconds=round(start_seconds, 3),
                )
                await stop.wait()
                health = lambda: _STOPPING  # noqa: E731
                log.info("broker.stopping", grace_ms=settings.grace_ms)
                stopping.begin()
                broker.catalog.end_waits()
                await server.stop(settings.grace_ms / 1000)
    log.info("broker.stopped")


def _health(room: DiskRoom) -> Health:
    """Of a broker that serves. With a full disk it is ready still: reading goes on, and so does making room."""
    disk = "full: publishes are refused until there is room" if room.is_full else "has room"
    return Health(None, {"broker": "ready", "disk": disk}, "the disk is full" if room.is_full else None)


def _tls_shown(tls: TlsSettings) -> str:
    if tls.cert is None:
        return "off"
    return "on" if tls.client_ca is None else "on, with client certificates"


async def _listen(server: HttpServer, host: str, port: int) -> tuple[str, int]:
    """Raises StorageFailed, as the gRPC server does, if the port cannot be had."""
    try:
        return await server.start(host, port)
    except OSError as error:
        raise StorageFailed(f"cannot listen on {format_address(host, port)}: {error.strerror or error}") from error


@asynccontextmanager
async def _background(
    broker: Broker, follow_certificates: Callable[[], Coroutine[None, None, None]]
) -> AsyncIterator[None]:
    """The loops beside the calls. One that dies takes the process down, loudly."""
    settings, catalog = broker.settings, broker.catalog

    async def clean_content() -> None:
        broker.metrics.cleaned(await catalog.clean_content())

    async def forget_producers() -> None:
        if forgotten := await catalog.forget_producers(settings.publish.producer_idle_ms):
            log.info("producers.forgotten", count=forgotten)

    async def save_ledgers() -> None:
        await catalog.save_ledgers(_LEDGER_BYTES, _LEDGER_FORGOTTEN)

    async with asyncio.TaskGroup() as tasks:
        loops = [
            tasks.create_task(broker.coordinator.run(), name="group-sessions"),
            tasks.create_task(follow_certificates(), name="certificates"),
            tasks.create_task(_every(settings.topics.retention_check_ms / 1000, catalog.retain), name="retention"),
            tasks.create_task(_every(settings.publish.cleanup_interval_ms / 1000, clean_content), name="dedup-cleanup"),
            tasks.create_task(_every(60.0, forget_producers), name="idle-producers"),
            tasks.create_task(_every(_LAG_CHECK_S, broker.ages.look), name="lag-ages"),
            tasks.create_task(_every(_LEDGER_CHECK_S, save_ledgers), name="ledgers"),
            tasks.create_task(_every(_ROOM_CHECK_S, broker.metrics.room.look), name="disk-room"),
            tasks.create_task(broker.scrubber.run(), name="scrubber"),
        ]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()


async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        await work()


def _within_file_limit(settings: BrokerSettings) -> BrokerSettings:
    """The settings with as many open segment files as the operating system grants beside connections and the rest."""
    wanted = settings.log.open_files + _OTHER_FILES
    granted = raise_open_file_limit(wanted)
    if granted >= wanted:
        return settings
    open_files = max(granted // 2, granted - _OTHER_FILES)
    log.warning("broker.few_files", limit=granted, wanted=wanted, open_files=open_files)
    return replace(settings, log=replace(settings.log, open_files=open_files))


def _identity(broker: Broker, grpc_port: int) -> Identity:
    settings = broker.settings
    return Identity(
        broker_id=settings.broker_id,
        cluster_id=broker.snapshot.cluster_id,
        host=settings.advertised_host or settings.host,
        port=settings.advertised_port or grpc_port,
        started_ms=time.time_ns() // 1_000_000,
    )


def _topic_defaults(settings: BrokerSettings) -> TopicConfig:
    """What holds for a topic that says nothing itself. It has no `max_value_bytes`: the largest set is the bound."""
    return TopicConfig(
        retention_ms=settings.topics.retention_ms,
        retention_bytes=settings.topics.retention_bytes,
        segment_bytes=settings.log.segment_bytes,
        segment_ms=settings.log.segment_ms,
        content_deduplication=True,
        min_value_bytes=0,
    )


def _servicers(broker: Broker, identity: Identity, stopping: Stopping) -> Servicers:
    settings, catalog, metrics = broker.settings, broker.catalog, broker.metrics
    limits, response_bytes = settings.publish, settings.consume.response_bytes
    return Servicers(
        topics=TopicServicer(catalog, _topic_defaults(settings)),
        publish=PublishServicer(
            broker.publisher,
            catalog,
            limits.window_bytes,
            limits.max_batch_bytes,
            metrics.observe_publish,
            metrics.refused,
            stopping,
        ),
        consume=ConsumeServicer(catalog, response_bytes, metrics.delivered, metrics.refused, stopping),
        subscribe=SubscribeServicer(broker.coordinator, catalog, response_bytes, metrics.delivered, stopping),
        groups=GroupServicer(broker.coordinator, catalog),
        cluster=ClusterServicer(
            catalog, identity, settings.data_dir, limits.max_batch_bytes, lambda: metrics.room.is_full
        ),
    )


def _runner(threads: ThreadPoolExecutor) -> InThread:
    """The publisher's door to threads."""
    loop = asyncio.get_running_loop()

    def run(work: Callable[[], T]) -> Awaitable[T]:
        return loop.run_in_executor(threads, work)

    return run


def _catalog_settings(settings: BrokerSettings) -> CatalogSettings:
    topics, publish, consume = settings.topics, settings.publish, settings.consume
    return CatalogSettings(
        default_partitions=topics.default_partitions,
        max_topic_partitions=topics.max_topic_partitions,
        max_partitions=topics.max_partitions,
        retention_ms=topics.retention_ms,
        retention_bytes=topics.retention_bytes,
        tail_records=consume.tail_records,
        tail_bytes=consume.tail_bytes,
        content=ContentLimits(publish.dedup_window_ms, publish.dedup_max_entries, publish.dedup_total_entries),
    )


def _publisher_settings(settings: BrokerSettings) -> PublisherSettings:
    return PublisherSettings(
        max_batch_bytes=settings.publish.max_batch_bytes,
        max_batch_records=settings.publish.max_batch_records,
        max_unpacked_bytes=settings.publish.max_unpacked_bytes,
        unpacking_bytes=settings.publish.unpacking_bytes,
        write_timeout_ms=settings.publish.write_timeout_ms,
        max_unsynced_bytes=settings.publish.buffer_bytes,
        auto_create_topics=settings.topics.auto_create,
    )
