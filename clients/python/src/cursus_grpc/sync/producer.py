"""The blocking producer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self, Unpack

from cursus_grpc._accumulator import as_bytes
from cursus_grpc._batch import Delivery
from cursus_grpc._channel import parse_bootstrap
from cursus_grpc._loop_thread import LoopThread
from cursus_grpc._producer import NOTHING_RARE, ProducerCore, ProducerOptions, ProducerSettings, record_attributes
from cursus_grpc.errors import BufferFull
from cursus_grpc.types import Headers

# A thread that sends without a pause leaves the interpreter to the event loop every 5 ms only, several times for each
# batch. So it waits this long, once for each batch, if the loop falls behind.
_TURN_S: Final = 0.005


class Producer:
    """Sends records, collected into batches, with retries that neither lose, repeat nor reorder them. For any number
    of threads.

    >>> with Producer(broker.address) as producer:
    ...     delivery = producer.send("payments", b"one", key=b"customer-7")
    ...     print(delivery.result().offset)
    0
    """

    def __init__(self, bootstrap: str | Iterable[str], **options: Unpack[ProducerOptions]) -> None:
        """`bootstrap` names one or more brokers, `"host:port,host:port"` or a list. Nothing is connected yet.

        Raises ValueError for addresses and options that make no sense, OSError for certificates that cannot be read.
        """
        self._closed = True  # until there is something to close
        addresses = parse_bootstrap(bootstrap)
        settings = ProducerSettings(**options)
        self._settings = settings
        self._loop = LoopThread.shared()
        self._core = self._loop.make(lambda: ProducerCore(addresses, settings, Delivery))
        self._accumulator = self._core.accumulator
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn("a producer was not closed: what it had not sent yet is lost", ResourceWarning, stacklevel=2)

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        event_type: bytes | str | None = None,
        schema_version: int | None = None,
        aggregate_version: int | None = None,
        metadata: bytes | str | None = None,
    ) -> Delivery:
        """Take a record; the delivery's `result()` tells where it was stored.

        A value of None is null, which is not an empty value: for a key it says that there is nothing any more. It has
        to be said, so a call without a value is a TypeError.

        The partition is the one given, else the key's, else the next in turn; the time, in milliseconds since 1970, the
        one given, else the broker's when it is stored.

        Blocks for nothing but room in the buffer, for at most `max_block_s` and never longer than `delivery_timeout_s`.
        No broker need be there yet, and what it says of topic and partition is told by the delivery.

        Raises BufferFull, RecordTooLarge, PartitionNotFound for a negative one, ClientClosed, TypeError or ValueError
        for what is no record: then it was not taken.
        """
        if key is not None and type(key) is not bytes:
            key = as_bytes("key", key)
        rare = headers, timestamp_ms, event_type, schema_version, aggregate_version, metadata
        attributes = None if rare == NOTHING_RARE else record_attributes(*rare)
        accumulator = self._accumulator
        try:
            delivery = accumulator.append(topic, value, key, partition, attributes)
        except BufferFull as full:
            if self._settings.on_full == "raise":
                raise
            return self._loop.run(self._core.send_late(topic, value, key, partition, attributes, full))
        if accumulator.behind:
            accumulator.caught_up.wait(_TURN_S)
        return delivery

    def flush(self, timeout_s: float | None = None) -> bool:
        """Send what waits and wait until all of it is settled, for better or worse. False if the timeout came first."""
        return True if self._closed else self._loop.run(self._core.flush(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Flush and let go of everything. After `timeout_s` (default: the delivery timeout) what is not settled fails
        with ClientClosed, or with DeliveryTimeout where it may have been stored."""
        if self._closed:
            return
        self._closed = True
        self._loop.run(self._core.close(self._settings.delivery_timeout_s if timeout_s is None else timeout_s))
