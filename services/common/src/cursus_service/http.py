"""Health and metrics over HTTP/1.1: two tiny servers for probes and scrapers, not a web framework.

    health    GET /live    200 always while the loop runs
              GET /ready   200 or 503 with the checks as JSON
              GET /…       200 `OK`, or 503 `Broker not ready: ` and the reason; the seeds' texts, byte for byte;
                           `OK, but ` and what is wrong, where that is no reason to stop sending requests
              each says in `Cursus-Identity` whose health it is
    metrics   GET /metrics Prometheus text, gzip for those who accept it; anything else is 404

Everything a peer can make grow is bounded: connections, the size of a request, and the time for each of its steps.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

MAX_HEAD_BYTES: Final = 16 * 1024
MAX_BODY_BYTES: Final = 64 * 1024
MAX_REQUESTS_PER_CONNECTION: Final = 1000
LISTEN_BACKLOG: Final = 128
ALLOWED_METHODS: Final = ("GET", "HEAD")
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server grants its peers."""

    connections: int = 64
    """As many again are answered 503, so that a probe learns the truth instead of hanging; more are hung up on."""
    request_s: float = 10.0
    """From the first wait for a request to its last byte; also how long a kept connection may idle."""
    response_s: float = 30.0
    """For making a response and for the peer to take it."""


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request. Bodies are read past and dropped: nothing here takes one. Header names are lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    keep_alive: bool


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Awaitable[Response]]


class _Refused(Exception):
    """A request that is not handled, mostly because it is none: answered with `status`, then hung up on."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class HttpServer:
    """Serves one handler on one address. An async context manager: leaving it closes the listener and every connection.

    A handler that raises is answered 500 and reported to the loop's exception handler; the server goes on.
    """

    def __init__(self, handler: Handler, *, limits: Limits | None = None) -> None:
        self._handler = handler
        self._limits = limits or Limits()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listens, and returns the address in use; port 0 picks a free one."""
        assert self._server is None, "started twice"
        self._server = await asyncio.start_server(
            self._accept, host, port, limit=MAX_HEAD_BYTES, backlog=LISTEN_BACKLOG
        )
        bound_host, bound_port = self._server.sockets[0].getsockname()[:2]
        return str(bound_host), int(bound_port)

    async def close(self) -> None:
        """Ends everything; idle keep-alive connections are not waited for."""
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= 2 * self._limits.connections:
            writer.transport.abort()  # Even saying no has a bound.
            return
        busy = len(self._connections) >= self._limits.connections
        task = asyncio.create_task(self._serve(reader, writer, busy=busy), name="http-connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, busy: bool) -> None:
        try:
            await self._converse(reader, writer, busy=busy)
            writer.close()
            # Counted until the peer has taken the last bytes, else one that never reads would escape the limit.
            async with asyncio.timeout(self._limits.response_s):
                await writer.wait_closed()
        except (ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            pass  # The peer left, stalled or took too long; nobody is there to be told.
        finally:
            writer.transport.abort()  # A no-op after an orderly close.

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, busy: bool) -> None:
        for _ in range(MAX_REQUESTS_PER_CONNECTION):
            try:
                async with asyncio.timeout(self._limits.request_s):
                    request = await _read_request(reader)
                if busy:
                    raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
            except _Refused as refused:
                response = Response(refused.status, str(refused).encode())
                await self._send(writer, response, head_only=False, keep_alive=False)
                await self._linger(reader, writer)
                return
            if request is None:
                return
            response = await self._respond(request)
            await self._send(writer, response, head_only=request.method == "HEAD", keep_alive=request.keep_alive)
            if not request.keep_alive:
                return

    async def _linger(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads on for a while: closing over unread bytes resets the connection, and the peer loses the answer."""
        writer.write_eof()
        unread = MAX_BODY_BYTES
        async with asyncio.timeout(self._limits.request_s):
            while unread > 0 and (chunk := await reader.read(unread)):
                unread -= len(chunk)

    async def _respond(self, request: Request) -> Response:
        if request.method not in ALLOWED_METHODS:
            allow = {"Allow": ", ".join(ALLOWED_METHODS)}
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"method not allowed", headers=allow)
        try:
            async with asyncio.timeout(self._limits.response_s):
                return await self._handler(request)
        except Exception as error:
            message = f"the HTTP handler of {request.path} failed"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"internal error")

    async def _send(
        self, writer: asyncio.StreamWriter, response: Response, *, head_only: bool, keep_alive: bool
    ) -> None:
        lines = [
            f"HTTP/1.1 {response.status.value} {response.status.phrase}",
            f"Date: {formatdate(usegmt=True)}",
            f"Content-Type: {response.content_type}",
            f"Content-Length: {len(response.body)}",
            "Cache-Control: no-store",
            f"Connection: {'keep-alive' if keep_alive else 'close'}",
            *(f"{name}: {value}" for name, value in response.headers.items()),
        ]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        writer.write(head if head_only else head + response.body)
        async with asyncio.timeout(self._limits.response_s):
            await writer.drain()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request, or None if the peer closed the connection between two of them."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise _Refused(HTTPStatus.BAD_REQUEST, "the request ends in the middle") from None
    except asyncio.LimitOverrunError:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        raise _Refused(status, f"more than {MAX_HEAD_BYTES} bytes of headers") from None
    request_line, *header_lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, version = _split_request_line(request_line)
    headers = dict(_split_header(line) for line in header_lines)
    await _skip_body(reader, headers)
    connection = headers.get("connection", "").lower()
    keep_alive = connection == "keep-alive" if version == "HTTP/1.0" else connection != "close"
    return Request(method, target.partition("?")[0], headers, keep_alive)


def _split_request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or not parts[0].isalpha() or not parts[0].isascii():
        raise _Refused(HTTPStatus.BAD_REQUEST, "malformed request line")
    method, target, version = parts
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise _Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 is spoken here")
    if not target.startswith("/") and not (target == "*" and method == "OPTIONS"):
        raise _Refused(HTTPStatus.BAD_REQUEST, "malformed request target")
    return method.upper(), target, version


def _split_header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or name != name.strip():
        raise _Refused(HTTPStatus.BAD_REQUEST, "malformed header")
    return name.lower(), value.strip()


async def _skip_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> None:
    if "transfer-encoding" in headers:
        raise _Refused(HTTPStatus.NOT_IMPLEMENTED, "chunked requests are not taken")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise _Refused(HTTPStatus.BAD_REQUEST, "malformed Content-Length")
    if len(length) > 9 or int(length) > MAX_BODY_BYTES:
        raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"bodies end at {MAX_BODY_BYTES} bytes")
    await reader.readexactly(int(length))


@dataclass(frozen=True, slots=True)
class Health:
    """What the service says about itself. `checks` are named findings for /ready; `reason` is the one sentence for
    /health, and None means ready. `trouble` is what /health says of a service that is ready and not well: it must not
    be taken out of service for it."""

    reason: str | None
    checks: Mapping[str, str] = field(default_factory=dict)
    trouble: str | None = None

    @property
    def ready(self) -> bool:
        return self.reason is None


NOT_LISTENING: Final = "Main listener not active"
"""The seeds' reason, for the time before the main port is open and after it is closed."""


IDENTITY: Final = "Cursus-Identity"


def health_handler(health: Callable[[], Health], identity: Callable[[], str] = str) -> Handler:
    """`health` is asked for every request and must answer from memory: it runs on the loop. `identity` tells one
    service from another: several may be on one host, and their pages look the same."""

    async def handle(request: Request) -> Response:
        who = {IDENTITY: name} if (name := identity()) else {}
        if request.path == "/live":
            return Response(HTTPStatus.OK, _json({"status": "live"}), JSON, who)
        found = health()
        status = HTTPStatus.OK if found.ready else HTTPStatus.SERVICE_UNAVAILABLE
        if request.path == "/ready":
            verdict = "ready" if found.ready else "not_ready"
            return Response(status, _json({"status": verdict, "checks": dict(found.checks)}), JSON, who)
        if not found.ready:
            return Response(status, f"Broker not ready: {found.reason}".encode(), headers=who)
        return Response(status, b"OK" if found.trouble is None else f"OK, but {found.trouble}".encode(), headers=who)

    return handle


def metrics_handler(registry: CollectorRegistry) -> Handler:
    """Collecting and formatting run in a thread: thousands of series take long enough to be felt on the loop. Scrapes
    take turns, so that many scrapers hold one thread and not the whole pool."""
    turn = asyncio.Lock()

    async def handle(request: Request) -> Response:
        if request.path != "/metrics":
            return Response(HTTPStatus.NOT_FOUND, b"metrics are at /metrics")
        packed = _accepts_gzip(request.headers.get("accept-encoding", ""))
        async with turn:
            body = await asyncio.to_thread(_expose, registry, packed)
        headers = {"Vary": "Accept-Encoding", **({"Content-Encoding": "gzip"} if packed else {})}
        return Response(HTTPStatus.OK, body, CONTENT_TYPE_LATEST, headers)

    return handle


def _expose(registry: CollectorRegistry, packed: bool) -> bytes:
    text = generate_latest(registry)
    return gzip.compress(text, compresslevel=3) if packed else text


def _accepts_gzip(accepted: str) -> bool:
    for item in accepted.lower().split(","):
        coding, *parameters = (part.strip() for part in item.split(";"))
        if coding in ("gzip", "*"):
            return not any(
                parameter.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for parameter in parameters
            )
    return False


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
