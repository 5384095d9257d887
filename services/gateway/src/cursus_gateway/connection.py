"""The transport of one connection: bytes to frames, pausing in both directions, and the times the read deadline needs.

All connections receive into one buffer, since the loop fills it and hands it over in one step; only bytes of a frame
that is not complete are kept per connection. So an idle connection costs little more than its socket.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, cast

from cursus_gateway.arrivals import LARGE_FRAME_BYTES, Arrivals
from cursus_gateway.framing import FrameReader, Parts
from cursus_gateway.session import Session

RECEIVE_BYTES: Final = 256 * 1024
# As many parts the system gathers by itself; more of them are small, and joining them is cheaper.
_GATHERED_PARTS: Final = 16


class Connection(asyncio.BufferedProtocol):
    """One accepted connection. `opened` makes its session; `closed` is called once when it is gone."""

    def __init__(
        self,
        receive_buffer: memoryview,
        arrivals: Arrivals,
        write_buffer_bytes: int,
        opened: Callable[[Connection, asyncio.Transport], Session],
        closed: Callable[[Connection], None],
    ) -> None:
        self._buffer = receive_buffer
        self._arrivals = arrivals
        self._write_buffer_bytes = write_buffer_bytes
        self._opened = opened
        self._closed = closed
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._reading = True
        self._waits_for_others = False
        self._counted = False
        self._writable: asyncio.Future[None] | None = None
        self.session: Session | None = None
        self.writing_paused = False
        self.opened_at = self.last_frame_at = time.monotonic()
        self.frame_began_at = 0.0
        self.completed_frames = False

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, but are what they promise.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=self._write_buffer_bytes)
        self.session = self._opened(self, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        assert self.session is not None
        was_inside = self._reader.inside_frame
        found, bad = self._reader.feed(self._buffer[:nbytes])
        if found:
            self.completed_frames = True
            self.last_frame_at = time.monotonic()
            self._stop_counting()
        if self._reader.inside_frame:
            if found or not was_inside:
                self.frame_began_at = time.monotonic()
            if self._reader.wanted_bytes > LARGE_FRAME_BYTES:
                self._count()
        if found:
            self.session.received(found)
        if bad is not None:
            self.session.refuse_frame(bad.size)

    def eof_received(self) -> bool:
        assert self.session is not None
        self.session.ended()
        return True  # Half open: what was received is answered before the connection is closed.

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.session is not None
        self._transport = None
        self._stop_counting()
        self.resume_writing()
        self.session.ended()
        self._closed(self)

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        if self.session is not None:
            self.session.writing_resumed()

    # What a session asks for

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def write(self, parts: Parts) -> None:
        if not self.open or self._transport is None:
            return
        if len(parts) <= _GATHERED_PARTS:
            self._transport.writelines(parts)
        else:
            self._transport.write(b"".join(parts))

    async def writable(self) -> None:
        if self.writing_paused and self.open:
            if self._writable is None:
                self._writable = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._writable)

    def set_reading(self, wanted: bool) -> None:
        self._reading = wanted
        self._apply_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Deadline

    def overdue(self, now: float, deadline_s: float, *, peer_is_modern: bool) -> bool:
        """RULE 4: stuck inside a frame; idle after a first-generation request; or silent from the start while nothing
        tells that its peer is a client of a later generation, whose producers may keep silent for hours."""
        assert self.session is not None
        if self._reader.inside_frame and not self._waits_for_others:
            return now - self.frame_began_at > deadline_s
        if not self.session.idle:
            return False
        if not self.completed_frames:
            return now - self.opened_at > deadline_s and not peer_is_modern
        return self.session.first_generation and now - self.last_frame_at > deadline_s

    # Bounds

    def _count(self) -> None:
        """What has arrived of a large frame; if that is too much with what others have, reading waits for them."""
        self._counted = True
        self._waits_for_others = not self._arrivals.arrived(self, self._reader.pending_bytes)
        if self._waits_for_others:
            self._apply_reading()

    def _stop_counting(self) -> None:
        if self._counted:
            self._counted = self._waits_for_others = False
            self._arrivals.forget(self)

    def go_on(self) -> None:
        self._waits_for_others = False
        self.frame_began_at = time.monotonic()
        self._apply_reading()

    def _apply_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._reading and not self._waits_for_others:
            if not transport.is_reading():
                transport.resume_reading()
        elif transport.is_reading():
            transport.pause_reading()
