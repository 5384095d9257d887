"""One way to drive both faces of the client, so that one suite describes what they do.

A blocking client runs its calls on a thread of its own and is awaited; an asyncio client is awaited as it is. Tests see
the same methods with the same results.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Protocol

import cursus_grpc
from cursus_grpc import RecordMetadata

Addresses = str | list[str]


class Face(Protocol):
    """How tests get clients."""

    def producer(self, address: Addresses, **options: Any) -> Any: ...

    def consumer(self, address: Addresses, **options: Any) -> Any: ...

    def admin(self, address: Addresses, **options: Any) -> Any: ...

    async def result(self, delivery: Any) -> RecordMetadata:
        """Wait for a delivery."""


class AsyncFace:
    def producer(self, address: Addresses, **options: Any) -> Any:
        return cursus_grpc.AsyncProducer(address, **options)

    def consumer(self, address: Addresses, **options: Any) -> Any:
        return _Listing(cursus_grpc.AsyncConsumer(address, **options))

    def admin(self, address: Addresses, **options: Any) -> Any:
        return cursus_grpc.AsyncAdmin(address, **options)

    async def result(self, delivery: cursus_grpc.AsyncDelivery) -> RecordMetadata:
        return await delivery


class SyncFace:
    def producer(self, address: Addresses, **options: Any) -> Any:
        return _Threaded(lambda: cursus_grpc.Producer(address, **options))

    def consumer(self, address: Addresses, **options: Any) -> Any:
        return _Threaded(lambda: cursus_grpc.Consumer(address, **options))

    def admin(self, address: Addresses, **options: Any) -> Any:
        return _Threaded(lambda: cursus_grpc.Admin(address, **options))

    async def result(self, delivery: cursus_grpc.Delivery) -> RecordMetadata:
        return await asyncio.to_thread(delivery.result)


class _Threaded:
    """A blocking client, awaited. All its calls are made on one thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._thread = ThreadPoolExecutor(1, "face")
        self._make = make
        self._client: Any = None

    async def _call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: function(*args, **options))

    async def __aenter__(self) -> Any:
        self._client = await self._call(self._make)
        await self._call(self._client.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._call(self._client.__exit__, *error)

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            return await self._call(getattr(self._client, name), *args, **options)

        return call

    async def take(self, count: int) -> list[Any]:
        """The next records, by iteration."""

        def iterate() -> list[Any]:
            found: list[Any] = []
            for record in self._client:
                found.append(record)
                if len(found) == count:
                    return found
            raise AssertionError("iteration ended")

        return list(await self._call(iterate))

    async def range(self, *args: Any) -> list[Any]:
        return list(await self._call(lambda: list(self._client.range(*args))))


class _Listing:
    """An asyncio consumer with the two methods whose results are not awaited, but iterated."""

    def __init__(self, client: cursus_grpc.AsyncConsumer) -> None:
        self._client = client

    async def __aenter__(self) -> Any:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            outcome = getattr(self._client, name)(*args, **options)
            return await outcome if inspect.isawaitable(outcome) else outcome

        return call

    async def take(self, count: int) -> list[Any]:
        """The next records, by iteration."""
        found: list[Any] = []
        async for record in self._client:
            found.append(record)
            if len(found) == count:
                return found
        raise AssertionError("iteration ended")

    async def range(self, *args: Any) -> list[Any]:
        return [record async for record in self._client.range(*args)]


@asynccontextmanager
async def publishing(face: Face, address: str, topic: str, values: list[bytes], **options: Any) -> AsyncIterator[None]:
    """Publish these values first."""
    async with face.producer(address, **options) as producer:
        for value in values:
            await producer.send(topic, value)
    yield
