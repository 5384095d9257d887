"""Accepting connections: the cap, TLS and plain text on one port, reply profiles, and the read deadline.

Connections beyond the cap are not accepted; they wait in the kernel's queue and are served when others end. The first
byte of a connection tells TLS from plain text: a TLS hello begins with 0x16, which would be a frame of 352 MiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final

import structlog

from cursus_gateway.connection import RECEIVE_BYTES, Connection
from cursus_gateway.requests import Services
from cursus_gateway.session import Session
from cursus_gateway.settings import GatewaySettings, ReplyProfile, TlsSettings
from cursus_service.tls import CertificateWatch, RefusedHandshakes, load_identity

log = structlog.get_logger(__name__)

_TLS_HELLO: Final = b"\x16"
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class Gate:
    """All listeners of a gateway and the connections they share a cap for."""

    def __init__(self, settings: GatewaySettings, services: Services) -> None:
        self._settings = settings
        self._services = services
        self._limits = settings.connections
        self._slots = asyncio.Semaphore(self._limits.limit)
        self._connections: set[Connection] = set()
        self._sessions: set[Session] = set()
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._certificates = _certificates(settings.tls)
        self._tls = None if self._certificates is None else self._certificates.context
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._lane = 0
        self._handshakes = RefusedHandshakes(services.metrics.refused_handshakes.inc)
        services.metrics.watch_connections(lambda: len(self._connections))

    async def start(self) -> Sequence[tuple[str, int]]:
        """Listens on every port and accepts from now on. Answers the addresses in use, in the order of the settings.

        Raises OSError.
        """
        addresses: list[tuple[str, int]] = []
        for listen in self._settings.listens():
            listening = _listen(self._settings.host, listen.port, self._limits.backlog)
            self._sockets.append(listening)
            addresses.append(listening.getsockname()[:2])
            self._own(self._accept(listening, listen.profile))
        self._own(self._sweep())
        if self._certificates is not None:
            self._own(self._certificates.run())
        return addresses

    async def stop(self, grace_s: float) -> None:
        """Stops accepting, ends pushes, lets accepted requests finish within the grace, and closes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(session.finish() for session in tuple(self._sessions)))
        for connection in tuple(self._connections):
            connection.close()

    def _own(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket, profile: ReplyProfile) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                # Out of descriptors, or a client that left while waiting: neither is a reason to stop.
                self._slots.release()
                log.warning("listener.accept.failed", error=str(error))
                await asyncio.sleep(0.05)
                continue
            except BaseException:
                self._slots.release()
                raise
            self._own(self._welcome(accepted, profile))

    async def _welcome(self, accepted: socket.socket, profile: ReplyProfile) -> None:
        """Makes a connection of an accepted socket. The slot is given back when that ends, or here if it fails."""
        shaking = False
        try:
            accepted.setblocking(False)
            _keep_alive(accepted)
            tls = self._tls if self._tls is not None and await self._says_tls_hello(accepted) else None
            self._services.metrics.connections.inc()
            shaking = tls is not None
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(
                    self._buffer,
                    self._services.arrivals,
                    self._limits.write_buffer_bytes,
                    lambda connection, transport: self._opened(connection, transport, profile),
                    self._closed,
                ),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=10.0 if tls else None,
            )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            if shaking:
                self._handshakes.note(_peer_of(accepted), error)
            else:
                log.debug("listener.connection.failed", error=str(error))
            accepted.close()
            self._slots.release()
        except BaseException:
            accepted.close()
            self._slots.release()
            raise

    async def _says_tls_hello(self, accepted: socket.socket) -> bool:
        """Looks at the first byte without taking it. Raises TimeoutError if none comes within the read deadline, unless
        the peer is a client of a later generation, whose producers may keep silent."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(accepted, readable.set)
        try:
            while not readable.is_set():
                try:
                    async with asyncio.timeout(self._limits.read_deadline_ms / 1000):
                        await readable.wait()
                except TimeoutError:
                    if accepted.getpeername()[0] not in self._modern_peers():
                        raise
        finally:
            loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK) == _TLS_HELLO

    def _modern_peers(self) -> set[str]:
        """Addresses with an open connection that has sent a batch or a key=value command."""
        sessions = (connection.session for connection in self._connections)
        return {session.peer for session in sessions if session is not None and session.modern}

    def _opened(self, connection: Connection, transport: asyncio.Transport, profile: ReplyProfile) -> Session:
        self._lane += 1
        peer = transport.get_extra_info("peername")
        session = Session(
            self._services,
            connection,
            peer=peer[0] if peer else "",
            lane=self._lane,
            profile=profile,
            advertised=self._advertised(transport.get_extra_info("sockname")),
        )
        self._connections.add(connection)
        self._sessions.add(session)
        return session

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._slots.release()
        session = connection.session
        assert session is not None
        if session.idle:
            self._sessions.discard(session)

    def _advertised(self, local: tuple[str, int] | None) -> str:
        host = self._settings.advertised_host or (local[0].removeprefix("::ffff:") if local else self._settings.host)
        return f"{host}:{self._settings.advertised_port or (local[1] if local else self._settings.port)}"

    async def _sweep(self) -> None:
        """Ends connections whose read deadline is over; forgets sessions that have finished."""
        deadline_s = self._limits.read_deadline_ms / 1000
        while True:
            await asyncio.sleep(min(1.0, deadline_s / 4))
            now = time.monotonic()
            modern_peers = self._modern_peers()
            for connection in tuple(self._connections):
                session = connection.session
                assert session is not None
                if connection.overdue(now, deadline_s, peer_is_modern=session.peer in modern_peers):
                    log.info("connection.overdue", peer=session.peer)
                    connection.abort()
            open_sessions = {connection.session for connection in self._connections}
            self._sessions = {s for s in self._sessions if s in open_sessions or not s.idle}


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind((host, port))
        listening.listen(backlog)
    except OSError:
        listening.close()
        raise
    return listening


def _peer_of(accepted: socket.socket) -> str:
    try:
        host, port = accepted.getpeername()[:2]
    except OSError:  # it has left, or uvloop has closed the socket with its transport
        return "unknown"
    return f"{host}:{port}"


def _keep_alive(accepted: socket.socket) -> None:
    """Dead peers are found by TCP itself: silent ones may be alive and are not disturbed."""
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _certificates(settings: TlsSettings) -> CertificateWatch | None:
    cert, key = settings.cert, settings.key
    if cert is None or key is None:
        return None
    return CertificateWatch((cert, key), lambda context: load_identity(context, cert, key))
