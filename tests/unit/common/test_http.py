"""Health and metrics as probes, scrapers and strangers meet them, over real sockets on free ports."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry, Counter

from cursus_service.http import (
    MAX_HEAD_BYTES,
    NOT_LISTENING,
    Handler,
    Health,
    HttpServer,
    Limits,
    Request,
    Response,
    health_handler,
    metrics_handler,
)

READY = Health(None, {"log": "ok"})
NOT_READY = Health(NOT_LISTENING, {"listener": "starting"})


@asynccontextmanager
async def serving(handler: Handler, limits: Limits | None = None) -> AsyncIterator[tuple[str, int]]:
    async with HttpServer(handler, limits=limits) as server:
        yield await server.start("127.0.0.1", 0)


async def exchange(address: tuple[str, int], raw: bytes) -> bytes:
    """Sends bytes, closes the sending side and returns everything that comes back."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(raw)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


async def get(address: tuple[str, int], path: str, method: str = "GET", headers: str = "") -> tuple[int, str, bytes]:
    """Status, head and body."""
    raw = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n".encode()
    head, _, body = (await exchange(address, raw)).partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), body


@pytest.mark.parametrize("path", ["/health", "/", "/anything", "/health?verbose=1"])
async def test_a_ready_service_answers_ok_byte_for_byte(path: str) -> None:
    async with serving(health_handler(lambda: READY)) as address:
        status, head, body = await get(address, path)
    assert (status, body) == (200, b"OK")
    assert "Content-Type: text/plain; charset=utf-8" in head


@pytest.mark.parametrize("path", ["/health", "/ready", "/live"])
@pytest.mark.parametrize("health", [READY, NOT_READY])
async def test_a_page_says_whose_it_is(path: str, health: Health) -> None:
    async with serving(health_handler(lambda: health, lambda: "broker id=7")) as address:
        _, head, _ = await get(address, path)
    assert "\r\nCursus-Identity: broker id=7" in head


async def test_a_service_that_is_not_ready_gives_the_seeds_reason() -> None:
    async with serving(health_handler(lambda: NOT_READY)) as address:
        assert (await get(address, "/health"))[::2] == (503, b"Broker not ready: Main listener not active")


@pytest.mark.parametrize("health", [READY, NOT_READY])
async def test_a_process_is_live_whether_ready_or_not(health: Health) -> None:
    async with serving(health_handler(lambda: health)) as address:
        assert (await get(address, "/live"))[::2] == (200, b'{"status":"live"}\n')


async def test_ready_tells_the_checks() -> None:
    async with serving(health_handler(lambda: READY)) as address:
        status, head, body = await get(address, "/ready")
        assert (status, body) == (200, b'{"status":"ready","checks":{"log":"ok"}}\n')
        assert "Content-Type: application/json" in head
    async with serving(health_handler(lambda: NOT_READY)) as address:
        expected = b'{"status":"not_ready","checks":{"listener":"starting"}}\n'
        assert (await get(address, "/ready"))[::2] == (503, expected)


async def test_head_has_the_length_and_no_body() -> None:
    async with serving(health_handler(lambda: READY)) as address:
        status, head, body = await get(address, "/health", method="HEAD")
    assert (status, body) == (200, b"")
    assert "Content-Length: 2" in head


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS"])
async def test_other_methods_learn_what_is_allowed(method: str) -> None:
    async with serving(health_handler(lambda: READY)) as address:
        status, head, _ = await get(address, "/health", method=method)
    assert status == 405
    assert "Allow: GET, HEAD" in head


async def test_one_connection_carries_many_requests_and_their_bodies_are_skipped() -> None:
    async with serving(health_handler(lambda: READY)) as address:
        with_body = b"GET /health HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"
        answer = await exchange(address, with_body * 2 + b"GET /live HTTP/1.0\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.endswith(b'{"status":"live"}\n')


def registry() -> CollectorRegistry:
    made = CollectorRegistry()
    Counter("messages_processed", "Messages.", registry=made).inc(3)
    return made


async def test_metrics_come_as_prometheus_text() -> None:
    async with serving(metrics_handler(registry())) as address:
        status, head, body = await get(address, "/metrics")
    assert status == 200
    assert b"messages_processed_total 3.0\n" in body
    assert "Content-Type: text/plain; version=" in head


@pytest.mark.parametrize(
    ("accepted", "packed"), [("gzip, deflate", True), ("gzip;q=0", False), ("br", False), ("*", True)]
)
async def test_metrics_are_packed_for_those_who_accept_it(accepted: str, packed: bool) -> None:
    async with serving(metrics_handler(registry())) as address:
        _, head, body = await get(address, "/metrics", headers=f"Accept-Encoding: {accepted}\r\n")
    assert ("Content-Encoding: gzip" in head) is packed
    assert b"messages_processed_total 3.0\n" in (gzip.decompress(body) if packed else body)


async def test_the_metrics_port_has_nothing_else() -> None:
    async with serving(metrics_handler(registry())) as address:
        assert (await get(address, "/"))[0] == 404


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /health\r\n\r\n", 400),
        (b"GET  /health HTTP/1.1\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\nHost:", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
    ],
)
async def test_a_malformed_request_is_refused_and_the_server_goes_on(raw: bytes, status: int) -> None:
    async with serving(health_handler(lambda: READY)) as address:
        answer = await exchange(address, raw)
        assert int(answer.split()[1]) == status
        assert b"Connection: close" in answer
        assert (await get(address, "/health"))[0] == 200


async def test_a_body_that_ends_early_is_not_answered_and_the_server_goes_on() -> None:
    async with serving(health_handler(lambda: READY)) as address:
        assert await exchange(address, b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhe") == b""
        assert (await get(address, "/health"))[0] == 200


async def test_a_peer_that_sends_nothing_is_hung_up_on() -> None:
    async with serving(health_handler(lambda: READY), Limits(request_s=0.01)) as address:
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read() == b""
        writer.close()


async def test_connections_beyond_the_limit_are_told_so() -> None:
    async with serving(health_handler(lambda: READY), Limits(connections=1)) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"OK\r\n")
        assert (await get(address, "/health"))[0] == 503
        writer.close()


async def test_a_handler_that_fails_is_answered_500_and_reported() -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))

    async def failing(_: Request) -> Response:
        raise LookupError("inner detail")

    async with serving(failing) as address:
        status, _, body = await get(address, "/health")
    assert (status, body) == (500, b"internal error")
    assert reported == ["inner detail"]


async def test_closing_does_not_wait_for_idle_connections() -> None:
    server = HttpServer(health_handler(lambda: READY))
    reader, writer = await asyncio.open_connection(*await server.start("127.0.0.1", 0))
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await server.close()
    assert await reader.read() == b"OK"
    writer.close()
