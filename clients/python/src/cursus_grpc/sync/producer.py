"""The blocking producer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self, Unpack

from cursus_grpc._attributes import NOTHING_RARE, RecordOptions, record_attributes
from cursus_grpc._batch import Delivery
from cursus_grpc._channel import parse_bootstrap
from cursus_grpc._faces import described_by
from cursus_grpc._loop_thread import LoopThread
from cursus_grpc._many import Deliveries
from cursus_grpc._producer import NOT_CLOSED, AsyncProducer, ProducerCore
from cursus_grpc._producer_settings import ProducerOptions, ProducerSettings
from cursus_grpc._serializing import Column, Key, Serializers, Value, as_bytes
from cursus_grpc.errors import BufferFull, ClientClosed
from cursus_grpc.types import Headers, ProducerStatistics, RecordMetadata

# A thread that sends without a pause leaves the interpreter to the event loop every 5 ms only, several times for each
# batch. So it waits this long, once for each batch, if the loop falls behind.
_TURN_S: Final = 0.005


@described_by(AsyncProducer)
class Producer(Generic[Value, Key]):
    """Sends records, collected into batches, with retries that neither lose, repeat nor reorder them. For any number
    of threads.

    >>> with Producer(broker.address) as producer:
    ...     delivery = producer.send("payments", b"one", key=b"customer-7")
    ...     print(delivery.result().offset)
    0
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        value_serializer: Callable[[Value], bytes | str | None] | None = None,
        key_serializer: Callable[[Key], bytes | str | None] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        """`bootstrap` names one or more brokers, `"host:port,host:port"` or a list. Nothing is connected yet.

        `value_serializer` and `key_serializer` make bytes or text of what is sent; null they are not asked for. Without
        them values and keys are bytes or text.

        Raises ValueError for addresses and options that make no sense, OSError for certificates that cannot be read.
        """
        self._closed = True  # until there is something to close
        addresses = parse_bootstrap(bootstrap)
        settings = ProducerSettings(**options)
        self._settings = settings
        self._serializers = Serializers(value_serializer, key_serializer)
        self._serializes = self._serializers.any
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
            self._loop.finish_soon(partial(self._core.close, 0.0))
            warnings.warn(NOT_CLOSED, ResourceWarning, stacklevel=2, source=self)

    def send(
        self,
        topic: str,
        value: Value | None,
        key: Key | None = None,
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
        taken, name = (self._serializers.value(value), self._serializers.key(key)) if self._serializes else (value, key)
        if name is not None and type(name) is not bytes:
            name = as_bytes("key", name)
        rare = headers, timestamp_ms, event_type, schema_version, aggregate_version, metadata
        attributes = None if rare == NOTHING_RARE else record_attributes(*rare)
        accumulator = self._accumulator
        try:
            delivery = accumulator.append(topic, taken, name, partition, attributes)
        except BufferFull as full:
            if self._settings.on_full == "raise":
                raise
            return self._loop.run(self._core.send_late(topic, taken, name, partition, attributes, full))
        if accumulator.behind:
            accumulator.caught_up.wait(_TURN_S)
        return delivery

    def send_and_wait(
        self, topic: str, value: Value | None, key: Key | None = None, **record: Unpack[RecordOptions]
    ) -> RecordMetadata:
        """Send a record and wait until it is stored: `send(…).result()`. Raises what `send` raises, and why the record
        was not stored. One record at a time is slow: `send` the next before the last is answered, or use `send_many`.
        """
        return self.send(topic, value, key, **record).result()

    def send_many(
        self,
        topic: str,
        values: Sequence[Value | None] | Column,
        keys: Sequence[Key | None] | Column | None = None,
        *,
        partition: int | None = None,
    ) -> Deliveries:
        core, accumulator = self._core, self._accumulator
        sent = list(core.portions(topic, values, keys, partition, self._serializers))
        core.require_room(sent)
        for number, portion in enumerate(sent):
            try:
                accumulator.take(topic, portion)
            except BufferFull as full:
                self._loop.run(core.take_rest(topic, sent[number:], full, some_taken=number > 0))
                break
            if accumulator.behind:
                accumulator.caught_up.wait(_TURN_S)
        return Deliveries(sent)

    def statistics(self) -> ProducerStatistics:
        if self._closed:
            raise ClientClosed("the producer is closed")
        return self._loop.make(self._accumulator.statistics)

    def flush(self, timeout_s: float | None = None) -> bool:
        return True if self._closed else self._loop.run(self._core.flush(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.run(self._core.close(self._settings.delivery_timeout_s if timeout_s is None else timeout_s))
