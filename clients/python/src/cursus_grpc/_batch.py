"""A batch of records on its way, and the deliveries that look at it.

A record's future costs two slots: the batch and the record's index in it. Everything else is shared by the batch and
resolved once, by the event loop; a waiter is made only for a delivery that somebody waits for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from typing import Any, Final

from cursus_grpc.errors import CursusError
from cursus_grpc.types import RecordMetadata, TopicPartition

# Guards the callbacks of all outcomes: taken once when one is decided and once by whoever waits for it.
CALLBACKS: Final = threading.Lock()


class Outcome:
    """Whether what was sent was stored: decided once, and told to whoever waits for it."""

    __slots__ = ("_callbacks", "done", "error")
    count: int
    """How many records share it."""

    def __init__(self) -> None:
        self.done = False
        self.error: CursusError | None = None
        self._callbacks: list[Callable[[], None]] | None = None  # made for the first who waits

    def fail(self, error: CursusError) -> None:
        """It will not be acknowledged. Runs the callbacks."""
        self.error = error
        self._settle()

    def _settle(self) -> None:
        with CALLBACKS:
            assert not self.done, "an outcome is decided once"
            self.done = True
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call it once the outcome is decided, on the event loop's thread; at once, and here, if it is already."""
        with CALLBACKS:
            if not self.done:
                self._await(callback)
                return
        callback()

    def _await(self, callback: Callable[[], None]) -> None:
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def metadata(self, index: int) -> RecordMetadata:
        """Where record `index` lies. Raises the error if there is one."""
        raise NotImplementedError


class Batch(Outcome):
    """Records of one partition, collected, sent and settled together.

    While it is open the accumulator fills it; afterwards it belongs to its lane, which gives it its sequence.
    """

    __slots__ = (
        "append_time_ms",
        "base_offset",
        "count",
        "created_at",
        "deadline",
        "epoch",
        "first_sequence",
        "last_failure",
        "maybe_stored",
        "on_wire",
        "packed",
        "parts",
        "place",
        "settled",
        "size",
    )

    def __init__(self, place: TopicPartition, created_at: float, deadline: float) -> None:
        super().__init__()
        self.place = place
        self.created_at = created_at
        self.deadline = deadline
        self.parts: list[bytes] = []
        self.count = 0
        self.size = 0
        self.packed: PackedSet | None = None
        self.epoch = 0
        self.first_sequence = -1
        self.on_wire = False
        self.maybe_stored = False
        self.last_failure: CursusError | None = None
        self.settled = False  # its lane has decided; `done` follows when the application is told
        self.base_offset = -1
        self.append_time_ms = 0

    def stored(self, base_offset: int, append_time_ms: int) -> None:
        """The broker has acknowledged it. Runs the callbacks."""
        self.base_offset = base_offset
        self.append_time_ms = append_time_ms
        self._settle()

    def metadata(self, index: int) -> RecordMetadata:
        if self.error is not None:
            raise self.error.copy()
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(*self.place, offset, self.append_time_ms)


async def settled(outcome: Outcome) -> None:
    """Wait until it is decided, for better or worse."""
    if not outcome.done:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        outcome.when_done(lambda: finish(waiter))
        await waiter


def finish(waiter: asyncio.Future[None]) -> None:
    """Wake whoever waits for it; fine if that one has been cancelled."""
    if not waiter.done():
        waiter.set_result(None)


class PackedSet:
    """A batch's record set as it goes over the wire, again and again the same bytes."""

    __slots__ = ("codec", "count", "crc32c", "payload")

    def __init__(self, payload: bytes, codec: int, count: int, crc32c: int) -> None:
        self.payload = payload
        self.codec = codec
        self.count = count
        self.crc32c = crc32c


class Delivered:
    """What both kinds of delivery can be asked without waiting."""

    # Without an `__init__`: to call one for every record would be a tenth of the time it takes to send it.
    __slots__ = ("_batch", "_index")
    _batch: Outcome
    """Its batch; before the topic's partitions are known, the waiting record itself."""
    _index: int

    def done(self) -> bool:
        """Whether it is known what became of the record."""
        return self._batch.done

    def __repr__(self) -> str:
        batch = self._batch
        state = "pending" if not batch.done else repr(batch.error) if batch.error else f"{batch.metadata(self._index)}"
        return f"<{type(self).__name__} {state}>"


class Delivery(Delivered):
    """The fate of a record sent with `Producer.send`: its place in the log, or why it has none.

    Like `concurrent.futures.Future`, without `cancel`: a record that was taken is delivered or fails.
    """

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for the record's place. Raises the reason if it was not stored, TimeoutError if it is not known yet
        after `timeout_s`; without one, the producer's delivery timeout bounds the wait."""
        self._wait(timeout_s)
        return self._batch.metadata(self._index)

    def exception(self, timeout_s: float | None = None) -> CursusError | None:
        """Wait, and answer why the record was not stored; None if it was. Raises TimeoutError."""
        self._wait(timeout_s)
        return self._batch.error

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call it once the fate is known, on the client's own thread, which it must not block; at once if it is."""
        self._batch.when_done(lambda: _guarded(callback, self))

    def _wait(self, timeout_s: float | None) -> None:
        if self._batch.done:
            return
        known = threading.Event()
        self._batch.when_done(known.set)
        if not known.wait(timeout_s):
            raise TimeoutError("the record's fate is not known yet")


class AsyncDelivery(Delivered):
    """The fate of a record sent with `AsyncProducer.send`. Await it, or look at it like at an `asyncio.Future`."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.done:
            yield from settled(self._batch).__await__()
        return self._batch.metadata(self._index)

    def result(self) -> RecordMetadata:
        """The record's place. Raises the reason if it was not stored, InvalidStateError if it is not known yet."""
        if not self._batch.done:
            raise asyncio.InvalidStateError("the record's fate is not known yet")
        return self._batch.metadata(self._index)

    def exception(self) -> CursusError | None:
        """Why the record was not stored; None if it was. Raises InvalidStateError if it is not known yet."""
        if not self._batch.done:
            raise asyncio.InvalidStateError("the record's fate is not known yet")
        return self._batch.error

    def add_done_callback(self, callback: Callable[[AsyncDelivery], object]) -> None:
        """Call it once the fate is known; at once if it is."""
        self._batch.when_done(lambda: _guarded(callback, self))


DeliveryCallback = Callable[[RecordMetadata | None, CursusError | None], object]
"""Told of every record: its place, or why it has none."""


def report(callback: DeliveryCallback, outcome: Outcome) -> None:
    """Tell of every record that shares a decided outcome."""
    for index in range(outcome.count):
        try:
            if outcome.error is None:
                callback(outcome.metadata(index), None)
            else:
                callback(None, outcome.error)
        except Exception as error:
            _blame(callback, error)


def _guarded(callback: Callable[[Any], object], delivery: Delivered) -> None:
    try:
        callback(delivery)
    except Exception as error:
        _blame(callback, error)


def _blame(callback: object, error: Exception) -> None:
    """A callback that fails is the application's bug: reported as asyncio reports one, and nobody else suffers."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_exception_handler({"message": f"delivery callback {callback!r} failed", "exception": error})
