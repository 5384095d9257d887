"""Accepting TLS connections one by one, so that a handshake that is refused is known with its peer: an event loop that
accepts by itself drops it without a word."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

_log = logging.getLogger("cursus_transport")

_HANDSHAKE_S: Final = 10.0
_HANDSHAKES_AT_ONCE: Final = 1024
"""Further connections wait in the kernel's queue."""

_AFTER_FAILURE_S: Final = 0.05

Refused = Callable[[str, Exception], None]
"""Told of the peer and of what was wrong with its handshake."""


def ignore(_peer: str, _error: Exception) -> None:
    """For servers whose refused handshakes nobody counts."""


class TlsListener:
    """Accepts on one socket until it is closed, and makes connections of those whose handshake succeeds."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        refused: Refused,
    ) -> None:
        self._listening = listening
        self._context = context
        self._make = make
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(_HANDSHAKES_AT_ONCE)
        self._shaking: set[asyncio.Task[None]] = set()
        listening.setblocking(False)
        self._accepting = self._loop.create_task(self._accept(), name="tls-accept")

    def close(self) -> None:
        for task in (self._accepting, *self._shaking):
            task.cancel()

    async def _accept(self) -> None:
        while True:
            await self._slots.acquire()
            try:
                accepted, address = await self._loop.sock_accept(self._listening)
            except OSError as error:
                # Out of descriptors, or a client that left while it waited: neither is a reason to stop.
                self._slots.release()
                _log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(_AFTER_FAILURE_S)
                continue
            task = self._loop.create_task(self._shake(accepted, address), name="tls-handshake")
            self._shaking.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._shaking.discard(task)
        self._slots.release()

    async def _shake(self, accepted: socket.socket, address: tuple[str, int]) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._make, accepted, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_S
            )
        except (OSError, asyncio.IncompleteReadError) as error:  # ssl.SSLError and TimeoutError are OSErrors
            accepted.close()
            self._refused(f"{address[0]}:{address[1]}", error)
        except BaseException:
            accepted.close()
            raise
