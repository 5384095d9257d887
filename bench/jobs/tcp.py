"""A connection of the TCP protocol that sends bytes as they are and looks only at the beginning of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self, cast

_LENGTH_BYTES: Final = 4
HEAD_BYTES: Final = 128
"""How much of an answer is shown: the header of a batch, or all of an acknowledgement that matters."""
_RECEIVE_BYTES: Final = 1024 * 1024

Answered = Callable[[bytes], None]
"""Told the first bytes of each answer."""


class Connection(asyncio.BufferedProtocol):
    """Frames out, the beginnings of frames in. `lost` is done when the other end closes the connection."""

    # Filled and emptied in one step of the loop, so all connections share it.
    _buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def __init__(self, answered: Answered) -> None:
        self._answered = answered
        self._head = bytearray()
        self._left = 0
        self._transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, address: str, answered: Answered) -> Self:
        host, _, port = address.rpartition(":")
        _, connection = await asyncio.get_running_loop().create_connection(lambda: cls(answered), host, int(port))
        return connection

    def send(self, frame: bytes) -> None:
        assert self._transport is not None
        self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, but are what they promise.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        position, head = 0, self._head
        while position < nbytes:
            if len(head) < _LENGTH_BYTES:
                length_end = min(position + _LENGTH_BYTES - len(head), nbytes)
                head += self._buffer[position:length_end]
                position = length_end
                if len(head) < _LENGTH_BYTES:
                    return
                self._left = int.from_bytes(head, "big")
            body_end = min(position + self._left, nbytes)
            wanted = _LENGTH_BYTES + HEAD_BYTES - len(head)
            if wanted > 0:
                head += self._buffer[position : min(position + wanted, body_end)]
            self._left -= body_end - position
            position = body_end
            if not self._left:
                shown = bytes(head[_LENGTH_BYTES:])
                head.clear()
                self._answered(shown)
