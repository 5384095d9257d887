"""The gateway put together. `serve` reads from top to bottom as the life of the process."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from cursus_gateway import __version__
from cursus_gateway.arrivals import Arrivals
from cursus_gateway.consuming import Consuming
from cursus_gateway.idempotence import IdempotentTopics
from cursus_gateway.listener import Gate
from cursus_gateway.membership import Membership
from cursus_gateway.metrics import GatewayMetrics
from cursus_gateway.peers import Peers
from cursus_gateway.publishing import Publishing
from cursus_gateway.requests import Services
from cursus_gateway.settings import GatewaySettings
from cursus_gateway.streaming import Streaming
from cursus_gateway.translate import Translator
from cursus_gateway.unpacking import Unpacking
from cursus_gateway.upstream import Upstream
from cursus_service.http import NOT_LISTENING, Health, HttpServer, health_handler, metrics_handler
from cursus_service.process import announce_ready, raise_open_file_limit, settle_memory

log = structlog.get_logger(__name__)

_OTHER_FILES = 256


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Runs a gateway until `stop` is set: take the ports, serve, finish what was accepted, let go.

    It starts without a broker too: /health then says so, and requests are answered with errors until there is one.
    Raises OSError if a port cannot be had.
    """
    wanted_files = settings.connections.limit + _OTHER_FILES
    if (files := raise_open_file_limit(wanted_files)) < wanted_files:
        log.warning("gateway.file_limit.low", limit=files, wanted=wanted_files)
    listening = False
    upstream = Upstream(settings.broker, settings.upstream)

    def health() -> Health:
        if not listening:
            return Health(NOT_LISTENING, {"gateway": "not listening"})
        return Health(upstream.failure, {"gateway": "ready", "broker": upstream.failure or "ready"})

    metrics = GatewayMetrics()
    metrics.broker_up.set_function(lambda: float(upstream.failure is None))
    async with (
        HttpServer(health_handler(health, lambda: "gateway")) as health_server,
        HttpServer(metrics_handler(metrics.registry)) as metrics_server,
        _watched(upstream),
    ):
        health_address = await health_server.start(settings.host, settings.health_port)
        metrics_address = await metrics_server.start(settings.host, settings.metrics_port)
        services = _services(settings, upstream, metrics)
        gate = Gate(settings, services)
        addresses = await gate.start()
        listening = True
        settle_memory()
        tcp = {"tcp" if number == 0 else f"tcp{number + 1}": address for number, address in enumerate(addresses)}
        announce_ready(stream=None, **tcp, health=health_address, metrics=metrics_address)
        log.info(
            "gateway.listening",
            version=__version__,
            python=platform.python_version(),
            host=settings.host,
            ports=[port for _, port in addresses],
            tls="off" if settings.tls.cert is None else "on, beside plain text",
            broker=settings.broker,
        )
        await stop.wait()
        listening = False
        log.info("gateway.stopping", grace_ms=settings.grace_ms)
        await gate.stop(settings.grace_ms / 1000)
        await services.publishing.close()
    log.info("gateway.stopped")


def _services(settings: GatewaySettings, upstream: Upstream, metrics: GatewayMetrics) -> Services:
    peers = Peers()
    idempotent_topics = IdempotentTopics(upstream)
    publishing = Publishing(upstream, idempotent_topics, settings.topics, metrics)
    membership = Membership(upstream, settings.groups)
    unpacking = Unpacking(settings.unpacking)
    consuming = Consuming(upstream, membership, unpacking, settings.groups)
    return Services(
        upstream=upstream,
        translator=Translator(upstream, publishing, idempotent_topics, membership, consuming, peers),
        publishing=publishing,
        idempotent_topics=idempotent_topics,
        consuming=consuming,
        streaming=Streaming(upstream, membership, consuming, unpacking, settings.groups, metrics),
        peers=peers,
        metrics=metrics,
        arrivals=Arrivals(settings.connections.large_frame_bytes),
        unpacking=unpacking,
        unanswered_bytes=settings.connections.unanswered_bytes,
        expects_gzip=settings.enable_gzip,
    )


@asynccontextmanager
async def _watched(upstream: Upstream) -> AsyncIterator[None]:
    """The upstream with its health watched. A watch that dies takes the process down, loudly."""
    try:
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(upstream.watch(), name="upstream-health")
            yield
            watch.cancel()
    finally:
        await upstream.close()
