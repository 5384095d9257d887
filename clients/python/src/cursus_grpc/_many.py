"""Many records that are sent with one call: taken apart into portions, and what became of them.

A portion is as many records as are encoded and routed in a millisecond or two. It joins batches as single records do,
but all that can be done for many of them at once is; while the topic's partitions are not known it waits in the backlog
like one record. Nothing is made for a single record of it, not even when its fate is known.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence, Sized
from functools import partial
from itertools import accumulate, islice
from types import NoneType
from typing import Any, Final, NamedTuple, cast, overload

from cursus_grpc._batch import CALLBACKS, Outcome
from cursus_grpc._partitioning import Partitioner, chosen
from cursus_grpc._serializing import Serializers
from cursus_grpc.errors import CursusError
from cursus_grpc.types import RecordMetadata
from cursus_proto.partitioner import partition_for_key, partitions_for_keys
from cursus_proto.records import Encoded, encode_many

_PORTION_RECORDS: Final = 4_000
_PORTION_BYTES: Final = 512 * 1024


class Piece(NamedTuple):
    """Records of a portion that share a fate."""

    outcome: Outcome
    first: int
    """Index of the first of them in the outcome; the others follow."""
    rows: Sequence[int]
    """Which records of the portion they are."""


class RefusedRows(Outcome):
    """Records of a portion that cannot go anywhere."""

    __slots__ = ("count", "size")

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.count = count
        self.size = size


class Portion(Outcome):
    """Some of the records, encoded. They join batches; or all of them fail, if that never happens."""

    __slots__ = ("count", "deadline", "encoded", "failure", "keys", "partitions", "pieces", "sent_at", "size")

    def __init__(self, encoded: Encoded, keys: list[bytes | None] | None, partition: int | None) -> None:
        super().__init__()
        self.encoded: Encoded | None = encoded
        self.keys = keys
        self.partitions: Sequence[int | None] | None = None if partition is None else [partition] * len(encoded.sizes)
        """Where each record has to go; None: its key, or nothing, decides."""
        self.count = len(encoded.sizes)
        self.size = sum(encoded.sizes)
        self.sent_at = 0.0
        self.deadline = 0.0
        self.failure: CursusError | None = None
        """Why no partition can be chosen for it."""
        self.pieces: list[Piece] | None = None

    def choose(self, partitioner: Partitioner, topic: str, partition_count: int) -> None:
        """Let the application choose, where no partition is named. Raises PartitionerFailed."""
        if self.partitions is None:
            keys = self.keys or [None] * self.count
            self.partitions = [chosen(partitioner, topic, key, partition_count) for key in keys]

    def highest_partition(self) -> int:
        """That is named; -1 if none is."""
        return max((partition for partition in self.partitions or () if partition is not None), default=-1)

    def targets(self, partition_count: int) -> Sequence[int | None] | None:
        """The partition of each record, None for those that may go anywhere; None if all may."""
        keys = self.keys
        if self.partitions is None:
            if keys is None:
                return None
            if None not in keys:
                return partitions_for_keys(cast("list[bytes]", keys), partition_count)
        asked = self.partitions or [None] * self.count
        return [
            partition_for_key(key, partition_count) if partition is None and key is not None else partition
            for partition, key in zip(asked, keys or [None] * self.count, strict=True)
        ]

    @property
    def gone(self) -> bool:
        """Whether it waits no longer."""
        return self.pieces is not None or self.done

    def join(self, pieces: list[Piece]) -> None:
        """Its records are in batches now, whose outcomes are theirs."""
        self.encoded = self.keys = self.partitions = None
        with CALLBACKS:
            self.pieces = pieces
            callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            callback()

    def fail(self, error: CursusError) -> None:
        self.encoded = self.keys = self.partitions = None
        super().fail(error)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call it when this waits no longer: when it failed, or joined its batches."""
        with CALLBACKS:
            if not self.gone:
                self._await(callback)
                return
        callback()

    def pending(self) -> Outcome | None:
        """What to wait for next, until all is decided."""
        if self.pieces is None:
            return None if self.done else self
        return next((piece.outcome for piece in self.pieces if not piece.outcome.done), None)

    def failures(self) -> Iterator[tuple[int, CursusError]]:
        """The rows that were not stored, by piece."""
        if self.pieces is None:
            assert self.error is not None
            yield from ((row, self.error) for row in range(self.count))
        else:
            for outcome, _, rows in self.pieces:
                if outcome.error is not None:
                    yield from ((row, outcome.error) for row in rows)

    def first_error(self) -> CursusError | None:
        return self.error or next(
            (piece.outcome.error for piece in self.pieces or () if piece.outcome.error is not None), None
        )

    def places(self) -> list[tuple[Outcome, int]]:
        """Outcome and index of every row."""
        found: list[tuple[Outcome, int]] = [(self, 0)] * self.count
        for outcome, first, rows in self.pieces or ():
            for index, row in enumerate(rows, first):
                found[row] = outcome, index
        return found

    def metadata(self, index: int) -> RecordMetadata:
        assert self.error is not None, "records that wait have no place"
        raise self.error.copy()


def portions(
    values: object, keys: object, partition: int | None, serializers: Serializers, max_bytes: int
) -> Iterator[Portion]:
    """The records in portions of at most so many bytes, unless one has more. Raises TypeError or ValueError for what is
    no record: the caller goes through all of them before it sends the first."""
    rows = _iterate("values", values)
    names = None if keys is None else _iterate("keys", keys)
    if names is not None and len(cast("Sized", keys)) != len(cast("Sized", values)):
        raise ValueError(f"there are {len(cast('Sized', values))} values and {len(cast('Sized', keys))} keys")
    while some := list(islice(rows, _PORTION_RECORDS)):
        some_values = _serialized(some, serializers.value, is_plain=serializers.of_value is None)
        some_keys = None
        if names is not None:
            some_keys = _serialized(
                list(islice(names, len(some))), serializers.key, is_plain=serializers.of_key is None
            )
        yield from _cut(encode_many(some_values, some_keys), some_keys, partition, min(_PORTION_BYTES, max_bytes))


def _iterate(what: str, column: object) -> Iterator[object]:
    if isinstance(column, (str, bytes, bytearray, memoryview)) or not isinstance(column, (Sized, Iterable)):
        raise TypeError(f"{what} must be a list, an Arrow array or the like, not {type(column).__name__}")
    if not isinstance(column, Sized):
        raise TypeError(f"{what} must have a length: make a list of them, or of some at a time")
    if hasattr(column, "to_pylist"):
        # Arrow's: to walk through one makes an object of Arrow's for each row, which takes ten times as long.
        return _iterate_arrow(column)
    if not isinstance(column, Iterable):
        raise TypeError(f"{what} must be a list, an Arrow array or the like, not {type(column).__name__}")
    return iter(column)


def _iterate_arrow(column: Any) -> Iterator[object]:
    for begin in range(0, len(column), _PORTION_RECORDS):
        yield from column[begin : begin + _PORTION_RECORDS].to_pylist()


def _serialized(
    some: list[object], serialize: Callable[[object], bytes | None], *, is_plain: bool
) -> list[bytes | None]:
    if is_plain and set(map(type, some)) <= {bytes, NoneType}:
        return cast("list[bytes | None]", some)  # as it is mostly
    return list(map(serialize, some))


def _cut(encoded: Encoded, keys: list[bytes | None] | None, partition: int | None, max_bytes: int) -> Iterator[Portion]:
    ends = encoded.ends()
    if ends[-1] <= max_bytes:
        yield Portion(encoded, keys, partition)
        return
    start = 0
    while start < len(ends):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, bisect_right(ends, before + max_bytes))
        yield Portion(encoded.part(start, stop), None if keys is None else keys[start:stop], partition)
        start = stop


class Places(Sequence[RecordMetadata]):
    """Where many records were stored, in the order they were sent in; each is made when it is looked at."""

    def __init__(self, sent: Sequence[Portion]) -> None:
        self._portions = sent
        self._ends = list(accumulate(portion.count for portion in sent))
        self._looked_at: tuple[int, list[tuple[Outcome, int]]] = (-1, [])

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> RecordMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> list[RecordMetadata]: ...
    def __getitem__(self, index: int | slice) -> RecordMetadata | list[RecordMetadata]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        row = range(len(self))[index]
        number = bisect_right(self._ends, row)
        held, places = self._looked_at
        if held != number:
            places = self._portions[number].places()
            self._looked_at = number, places
        outcome, at = places[row - (self._ends[number - 1] if number else 0)]
        return outcome.metadata(at)


class _ManyDelivered:
    """What both kinds can be asked without waiting."""

    __slots__ = ("_portions",)

    def __init__(self, sent: Sequence[Portion]) -> None:
        self._portions = sent

    def __len__(self) -> int:
        """How many records were sent."""
        return sum(portion.count for portion in self._portions)

    def done(self) -> bool:
        """Whether it is known what became of all records."""
        return all(portion.pending() is None for portion in self._portions)

    def _when_done(self, callback: Callable[[], None], number: int = 0) -> None:
        """One after the other: callbacks come from any thread, and nothing is counted."""
        while number < len(self._portions):
            pending = self._portions[number].pending()
            if pending is not None:
                pending.when_done(partial(self._when_done, callback, number))
                return
            number += 1
        callback()

    def _errors(self) -> dict[int, CursusError]:
        found: dict[int, CursusError] = {}
        before = 0
        for portion in self._portions:
            found.update((before + row, error) for row, error in portion.failures())
            before += portion.count
        return dict(sorted(found.items()))

    def _first_error(self) -> CursusError | None:
        return next((error for portion in self._portions if (error := portion.first_error()) is not None), None)

    def _places(self) -> Places:
        if (error := self._first_error()) is not None:
            raise error.copy()
        return Places(self._portions)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} records, {'done' if self.done() else 'pending'}>"


class Deliveries(_ManyDelivered):
    """The fate of the records sent with one `Producer.send_many`."""

    __slots__ = ()

    def result(self, timeout_s: float | None = None) -> Sequence[RecordMetadata]:
        """Wait for the places of all records, in order. Raises why one of them was not stored, if any was not
        (`errors` has all of those), and TimeoutError if that is not known after `timeout_s`."""
        self._wait(timeout_s)
        return self._places()

    def exception(self, timeout_s: float | None = None) -> CursusError | None:
        """Wait, and return why one of the records was not stored; None if all were. Raises TimeoutError."""
        self._wait(timeout_s)
        return self._first_error()

    def errors(self, timeout_s: float | None = None) -> dict[int, CursusError]:
        """Wait, and return why records were not stored, by their index; empty if all were. Raises TimeoutError."""
        self._wait(timeout_s)
        return self._errors()

    def _wait(self, timeout_s: float | None) -> None:
        if not self.done():
            known = threading.Event()
            self._when_done(known.set)
            if not known.wait(timeout_s):
                raise TimeoutError("the fate of some records is not known yet")


class AsyncDeliveries(_ManyDelivered):
    """The fate of the records sent with one `AsyncProducer.send_many`. Await it for the places of all of them."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Sequence[RecordMetadata]]:
        yield from self._settled().__await__()
        return self._places()

    async def exception(self) -> CursusError | None:
        """Wait, and return why one of the records was not stored; None if all were."""
        await self._settled()
        return self._first_error()

    async def errors(self) -> dict[int, CursusError]:
        """Wait, and return why records were not stored, by their index; empty if all were."""
        await self._settled()
        return self._errors()

    async def _settled(self) -> None:
        if not self.done():
            known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._when_done(lambda: None if known.done() else known.set_result(None))
            await known
