"""The producer: what it may be told, and the asyncio face. `sync.py` has the blocking one, over the same core."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Generic, Literal, Self, TypedDict, Unpack

from cursus_grpc import _tls
from cursus_grpc._accumulator import Accumulator, AccumulatorSettings, Attributes, DeliveryType, as_bytes
from cursus_grpc._batch import AsyncDelivery, DeliveryCallback, finish, settled
from cursus_grpc._channel import MIB, Connections, ConnectionSettings, parse_bootstrap
from cursus_grpc._convert import require_text
from cursus_grpc._lane import MAX_IN_FLIGHT
from cursus_grpc._metadata import ClusterView
from cursus_grpc._retry import Deadline
from cursus_grpc._router import Router
from cursus_grpc._sender import Sender, SenderSettings
from cursus_grpc._wire import ACKS, CODECS
from cursus_grpc.errors import BufferFull, ClientClosed
from cursus_grpc.types import TLS, Acks, Compression, Headers


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of both producers. `ProducerSettings` has their meaning and defaults."""

    acks: Acks
    linger_ms: float
    batch_bytes: int
    batch_records: int
    compression: Compression
    buffer_bytes: int
    on_full: Literal["block", "raise"]
    max_block_s: float
    delivery_timeout_s: float
    request_timeout_s: float
    max_in_flight: int
    metadata_max_age_s: float
    on_delivery: DeliveryCallback | None
    client_id: str
    tls: TLS | None


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer works. Raises ValueError for what makes no sense."""

    acks: Acks = 1
    """When a record counts as delivered: 0 accepted, 1 written, "all" synced to disk and replicated."""
    linger_ms: float = 0.0
    """How long a batch that is not full waits for more records. 0: it leaves as soon as the stream is free."""
    batch_bytes: int = 256 * 1024
    batch_records: int = 10_000
    compression: Compression = "none"
    buffer_bytes: int = 32 * MIB
    """Encoded bytes of records that are not settled yet. When it is full, `send` does as `on_full` says."""
    on_full: Literal["block", "raise"] = "block"
    max_block_s: float = 60.0
    """How long `send` may wait for room in the buffer, if that is not longer than the delivery timeout."""
    delivery_timeout_s: float = 120.0
    """From `send` to the outcome, over all retries."""
    request_timeout_s: float = 30.0
    """How long a broker may leave a batch unanswered before its stream is given up and the batch sent again."""
    max_in_flight: int = 16
    """Unanswered batches of one partition. Order is kept whatever the number."""
    metadata_max_age_s: float = 30.0
    """How often partition counts and leaders are asked for again."""
    on_delivery: DeliveryCallback | None = None
    """Called for every record with its place or its error, on the client's own thread, which it must not block."""
    client_id: str = "cursus-python"
    tls: TLS | None = None

    def __post_init__(self) -> None:
        if self.acks not in ACKS:
            raise ValueError(f"acks is 0, 1 or 'all', not {self.acks!r}")
        if self.compression not in CODECS:
            raise ValueError(f"compression is one of {', '.join(CODECS)}, not {self.compression!r}")
        if self.on_full not in ("block", "raise"):
            raise ValueError(f"on_full is 'block' or 'raise', not {self.on_full!r}")
        if self.linger_ms < 0 or self.max_block_s < 0:
            raise ValueError("linger_ms and max_block_s must not be negative")
        if min(self.batch_bytes, self.batch_records, self.buffer_bytes) < 1:
            raise ValueError("batch_bytes, batch_records and buffer_bytes must be positive")
        if min(self.delivery_timeout_s, self.request_timeout_s, self.metadata_max_age_s) <= 0:
            raise ValueError("delivery_timeout_s, request_timeout_s and metadata_max_age_s must be positive")
        require_text("client_id", self.client_id)
        if not 1 <= self.max_in_flight <= MAX_IN_FLIGHT:
            raise ValueError(f"max_in_flight is 1 to {MAX_IN_FLIGHT}, not {self.max_in_flight}")

    @property
    def longest_block_s(self) -> float:
        """How long `send` may keep its caller."""
        return min(self.max_block_s, self.delivery_timeout_s)


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
        loop = asyncio.get_running_loop()
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
        )
        self._sender.start(self.accumulator)

    async def send_late(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | None,
        partition: int | None,
        attributes: Attributes | None,
        full: BufferFull,
    ) -> DeliveryType:
        """Take a record that `append` did not take because the buffer was `full`, as soon as there is room. Raises what
        `AsyncProducer.send` raises."""
        deadline = Deadline(self.settings.longest_block_s)
        while True:
            await self._wait_for_room(full, deadline)
            try:
                return self.accumulator.append(topic, value, key, partition, attributes)
            except BufferFull as again:
                full = again

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
            await self._sender.close()
            closed = ClientClosed("the producer was closed before the answer")
            self.accumulator.settle(self.accumulator.abandon(closed))
            await self._router.abandon(closed)
            await self._cluster.close()
            await self._connections.close()


NOTHING_RARE: Final = (None,) * 6
"""The arguments of `record_attributes` for most records, which are spared it."""


def record_attributes(
    headers: Headers | None,
    timestamp_ms: int | None,
    event_type: bytes | str | None,
    schema_version: int | None,
    aggregate_version: int | None,
    metadata: bytes | str | None,
) -> Attributes:
    """What few records have, checked. Raises TypeError, ValueError."""
    for name, number in (("schema_version", schema_version), ("aggregate_version", aggregate_version)):
        if number is not None and number < 0:
            raise ValueError(f"{name} must not be negative, but is {number}")
    return Attributes(
        timestamp_ms or 0,
        headers or (),
        as_bytes("event_type", event_type or b""),
        schema_version or 0,
        aggregate_version or 0,
        as_bytes("metadata", metadata or b""),
    )


class AsyncProducer:
    """Sends records, collected into batches, with retries that neither lose, repeat nor reorder them.

    >>> async def main() -> None:
    ...     async with AsyncProducer(broker.address) as producer:
    ...         delivery = await producer.send("orders", b"one", key=b"customer-7")
    ...         print((await delivery).offset)
    >>> asyncio.run(main())
    0
    """

    def __init__(self, bootstrap: str | Iterable[str], **options: Unpack[ProducerOptions]) -> None:
        """`bootstrap` names one or more brokers, `"host:port,host:port"` or a list. Nothing is connected yet.

        Raises ValueError for addresses and options that make no sense. Certificates are read at the first use, which
        raises OSError if it cannot be done.
        """
        self._core: ProducerCore[AsyncDelivery] | None = None
        self._bootstrap = parse_bootstrap(bootstrap)
        self._settings = ProducerSettings(**options)
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
            warnings.warn("a producer was not closed: what it had not sent yet is lost", ResourceWarning, stacklevel=2)

    def _started(self) -> ProducerCore[AsyncDelivery]:
        if self._closed:
            raise ClientClosed("the producer is closed")
        if self._core is None:
            self._core = ProducerCore(self._bootstrap, self._settings, AsyncDelivery)
        return self._core

    async def send(
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
        if key is not None and type(key) is not bytes:
            key = as_bytes("key", key)
        rare = headers, timestamp_ms, event_type, schema_version, aggregate_version, metadata
        attributes = None if rare == NOTHING_RARE else record_attributes(*rare)
        accumulator = core.accumulator
        try:
            delivery = accumulator.append(topic, value, key, partition, attributes)
        except BufferFull as full:
            if self._settings.on_full == "raise":
                raise
            return await core.send_late(topic, value, key, partition, attributes, full)
        if accumulator.behind:
            # Without this a loop around `send` would keep the event loop to itself until the buffer is full.
            await asyncio.sleep(0)
        return delivery

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
