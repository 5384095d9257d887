"""The producer: what it may be told, and the asyncio face. `sync.py` has the blocking one, over the same core."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Generic, Self, TypeVar, Unpack

from cursus_grpc import _many, _tasks, _tls
from cursus_grpc._accumulator import (
    Accumulator,
    AccumulatorSettings,
    DeliveryType,
)
from cursus_grpc._attributes import NOTHING_RARE, Attributes, RecordOptions, record_attributes
from cursus_grpc._batch import AsyncDelivery, finish, settled
from cursus_grpc._channel import Connections, ConnectionSettings, parse_bootstrap
from cursus_grpc._convert import require_text
from cursus_grpc._many import AsyncDeliveries, Portion
from cursus_grpc._metadata import ClusterView, no_such_partition
from cursus_grpc._producer_settings import ProducerOptions, ProducerSettings
from cursus_grpc._retry import Deadline
from cursus_grpc._router import Router
from cursus_grpc._sender import Sender, SenderSettings
from cursus_grpc._serializing import Column, Key, Serializers, Value, as_bytes
from cursus_grpc._statistics import tell_now_and_then
from cursus_grpc._wire import ACKS, CODECS
from cursus_grpc.errors import BufferFull, ClientClosed
from cursus_grpc.types import Headers, ProducerStatistics, RecordMetadata

T = TypeVar("T")


class ProducerCore(Generic[DeliveryType]):
    """What both producers share. Made and used on its event loop; `accumulator` may be used from any thread."""

    def __init__(self, bootstrap: tuple[str, ...], settings: ProducerSettings, delivery: type[DeliveryType]) -> None:
        """Raises OSError for certificates that cannot be read: there is no call later on that could tell."""
        if settings.tls is not None:
            _tls.context(settings.tls)
        self.settings = settings
        self._connections = Connections(
            ConnectionSettings(bootstrap, settings.tls, settings.client_id, settings.request_timeout_s)
        )
        self._cluster = ClusterView(self._connections)
        self.loop = loop = asyncio.get_running_loop()
        self._router = Router(self._cluster, settings.metadata_max_age_s, loop)
        self._sender = Sender(
            SenderSettings(
                acks=ACKS[settings.acks],
                codec=CODECS[settings.compression],
                linger_s=settings.linger_ms / 1000,
                delivery_timeout_s=settings.delivery_timeout_s,
                request_timeout_s=settings.request_timeout_s,
                client_id=settings.client_id,
                producer_id=uuid.uuid4().bytes,
            ),
            self._connections,
            self._router,
            loop,
        )
        self.accumulator: Accumulator[DeliveryType] = Accumulator(
            AccumulatorSettings(
                batch_bytes=settings.batch_bytes,
                batch_records=settings.batch_records,
                buffer_bytes=settings.buffer_bytes,
                delivery_timeout_s=settings.delivery_timeout_s,
                max_in_flight=settings.max_in_flight,
            ),
            delivery,
            self._sender.wake,
            self._router.ask,
            settings.on_delivery,
            settings.partitioner,
        )
        self._sender.start(self.accumulator)
        self._telling: asyncio.Task[None] | None = None
        if settings.on_statistics is not None:
            telling = tell_now_and_then(
                self.accumulator.statistics, settings.on_statistics, settings.statistics_interval_s
            )
            self._telling = _tasks.start(telling, "cursus-statistics")

    async def send_late(
        self,
        topic: str,
        value: object,
        key: bytes | None,
        partition: int | None,
        attributes: Attributes | None,
        full: BufferFull,
    ) -> DeliveryType:
        """Take a record that `append` did not take because the buffer was `full`, as soon as there is room. Raises what
        `AsyncProducer.send` raises."""
        deadline = Deadline(self.settings.longest_block_s)
        return await self._when_room(
            lambda: self.accumulator.append(topic, value, key, partition, attributes), full, deadline
        )

    async def _when_room(self, take: Callable[[], T], full: BufferFull, deadline: Deadline) -> T:
        while True:
            await self._wait_for_room(full, deadline)
            try:
                return take()
            except BufferFull as again:
                full = again

    def portions(
        self, topic: str, values: object, keys: object, partition: int | None, serializers: Serializers
    ) -> Iterator[Portion]:
        """What `send_many` sends, checked. For any thread. Raises what `AsyncProducer.send_many` raises."""
        require_text("the topic's name", topic)
        if partition is not None and partition < 0:
            raise no_such_partition(topic, partition)
        most = max(1, self.settings.buffer_bytes // 4)
        for portion in _many.portions(values, keys, partition, serializers, most):
            self.accumulator.check(portion)
            self.accumulator.choose(topic, portion)
            yield portion

    def require_room(self, portions: Sequence[Portion]) -> None:
        """Raises BufferFull if they are not to be waited for."""
        if self.settings.on_full == "raise":
            self.accumulator.require_room(sum(portion.size for portion in portions))

    async def take_rest(self, topic: str, portions: Sequence[Portion], full: BufferFull, *, some_taken: bool) -> None:
        """Take portions, of which the buffer was too `full` for the first, as soon as there is room. If there is none
        in time, raises BufferFull if nothing was taken before, and else fails what is left: the caller must not
        believe that nothing was taken."""
        deadline = Deadline(self.settings.longest_block_s if self.settings.on_full == "block" else 0.0)
        for number, portion in enumerate(portions):
            try:
                await self._when_room(partial(self.accumulator.take, topic, portion), full, deadline)
            except (BufferFull, ClientClosed) as error:
                if not some_taken:
                    raise
                self.accumulator.refuse_many(portions[number:], error)
                return
            some_taken = True

    async def _wait_for_room(self, full: BufferFull, deadline: Deadline) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def there_is_some() -> None:
            finish(room)

        self.accumulator.when_room(there_is_some)
        try:
            async with asyncio.timeout(deadline.left_s()):
                await room
        except TimeoutError:
            raise full from None
        finally:
            self.accumulator.room_or_not(there_is_some)

    async def flush(self, timeout_s: float | None) -> bool:
        """Send everything now and wait until it is settled. False if that took longer than the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                # First: what goes to a batch after it was sealed would linger there.
                await self._router.caught_up()
                for batch in self.accumulator.seal_all():
                    await settled(batch)
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float | None) -> None:
        """Flush, within the timeout; then fail what is left, and let go of everything."""
        self.accumulator.close()
        try:
            await self.flush(timeout_s)
        finally:
            if self._telling is not None:
                self._telling.cancel()
            await self._sender.close()
            closed = ClientClosed("the producer was closed before the answer")
            self.accumulator.settle(self.accumulator.abandon(closed))
            await self._router.abandon(closed)
            await self._cluster.close()
            await self._connections.close()


NOT_CLOSED: Final = "a producer was not closed: what it had not sent yet is lost"


class AsyncProducer(Generic[Value, Key]):
    """Sends records, collected into batches, with retries that neither lose, repeat nor reorder them.

    >>> async def main() -> None:
    ...     async with AsyncProducer(broker.address) as producer:
    ...         delivery = await producer.send("orders", b"one", key=b"customer-7")
    ...         print((await delivery).offset)
    >>> asyncio.run(main())
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

        Raises ValueError for addresses and options that make no sense. Certificates are read at the first use, which
        raises OSError if it cannot be done.
        """
        self._core: ProducerCore[AsyncDelivery] | None = None
        self._bootstrap = parse_bootstrap(bootstrap)
        self._settings = ProducerSettings(**options)
        self._serializers = Serializers(value_serializer, key_serializer)
        self._serializes = self._serializers.any
        self._closed = False

    async def __aenter__(self) -> Self:
        self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._core is not None and not self._closed:
            _tasks.finish_soon(self._core.loop, partial(self._core.close, 0.0))
            warnings.warn(NOT_CLOSED, ResourceWarning, stacklevel=2, source=self)

    def _started(self) -> ProducerCore[AsyncDelivery]:
        if self._closed:
            raise ClientClosed("the producer is closed")
        if self._core is None:
            self._core = ProducerCore(self._bootstrap, self._settings, AsyncDelivery)
        return self._core

    async def send(
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
    ) -> AsyncDelivery:
        """Take a record; await what this returns to know where it was stored.

        A value of None is null, which is not an empty value: for a key it says that there is nothing any more. It has
        to be said, so a call without a value is a TypeError.

        The partition is the one given, else the key's, else the next in turn; the time, in milliseconds since 1970, the
        one given, else the broker's when it is stored.

        Waits for nothing but room in the buffer, for at most `max_block_s` and never longer than `delivery_timeout_s`.
        No broker need be there yet, and what it says of topic and partition is told by the delivery.

        Raises BufferFull, RecordTooLarge, PartitionNotFound for a negative one, ClientClosed, TypeError or ValueError
        for what is no record: then it was not taken.
        """
        core = self._core or self._started()
        taken, name = (self._serializers.value(value), self._serializers.key(key)) if self._serializes else (value, key)
        if name is not None and type(name) is not bytes:
            name = as_bytes("key", name)
        rare = headers, timestamp_ms, event_type, schema_version, aggregate_version, metadata
        attributes = None if rare == NOTHING_RARE else record_attributes(*rare)
        accumulator = core.accumulator
        try:
            delivery = accumulator.append(topic, taken, name, partition, attributes)
        except BufferFull as full:
            if self._settings.on_full == "raise":
                raise
            return await core.send_late(topic, taken, name, partition, attributes, full)
        if accumulator.behind:
            # Without this a loop around `send` would keep the event loop to itself until the buffer is full.
            await asyncio.sleep(0)
        return delivery

    async def send_and_wait(
        self, topic: str, value: Value | None, key: Key | None = None, **record: Unpack[RecordOptions]
    ) -> RecordMetadata:
        """Send a record and wait until it is stored: what `send` returns, awaited. Raises what `send` raises, and why
        the record was not stored. One record at a time is slow: `send` the next before the last is answered, or use
        `send_many`."""
        return await (await self.send(topic, value, key, **record))

    async def send_many(
        self,
        topic: str,
        values: Sequence[Value | None] | Column,
        keys: Sequence[Key | None] | Column | None = None,
        *,
        partition: int | None = None,
    ) -> AsyncDeliveries:
        """Take many records at once, which takes a fraction of the time of as many `send`; await what this returns to
        know where they were stored. Values and keys are lists, or columns of an Arrow library with a `to_pylist`, of
        the same length; each value and key means what it means to `send`, and the records are as much in order, and
        stored as surely once, as if they were sent one by one.

        Waits for room in the buffer as `send` does. Raises BufferFull, RecordTooLarge, PartitionNotFound for a negative
        one, PartitionerFailed, ClientClosed, TypeError or ValueError for what are no records: then none of them was
        taken. If room is missing when some are taken already, the others fail with BufferFull, which their deliveries
        tell.
        """
        core = self._core or self._started()
        sent: list[Portion] = []
        for portion in core.portions(topic, values, keys, partition, self._serializers):
            sent.append(portion)
            await asyncio.sleep(0)
        core.require_room(sent)
        for number, portion in enumerate(sent):
            try:
                core.accumulator.take(topic, portion)
            except BufferFull as full:
                await core.take_rest(topic, sent[number:], full, some_taken=number > 0)
                break
            await asyncio.sleep(0)
        return AsyncDeliveries(sent)

    async def statistics(self) -> ProducerStatistics:
        """What the producer has done, and what it holds: what `on_statistics` is called with. Raises ClientClosed."""
        return self._started().accumulator.statistics()

    async def flush(self, timeout_s: float | None = None) -> bool:
        """Send what waits and wait until all of it is settled, for better or worse. False if the timeout came first."""
        return True if self._core is None else await self._core.flush(timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush and let go of everything. After `timeout_s` (default: the delivery timeout) what is not settled fails
        with ClientClosed, or with DeliveryTimeout where it may have been stored."""
        if self._closed:
            return
        self._closed = True
        if self._core is not None:
            await self._core.close(self._settings.delivery_timeout_s if timeout_s is None else timeout_s)
