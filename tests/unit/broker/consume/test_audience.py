"""The readers at the end of a log: who gets what in one step, and who has to go on alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cursus_broker.consume.audience import SERVED_TOGETHER, Seat
from cursus_broker.consume.credit import Credit
from cursus_broker.consume.tail import Tail, TailBudget
from cursus_broker.errors import TopicNotFound
from cursus_broker.log.api import Entry, EntryHeader, Offset


def make_tail(budget_bytes: int = 1_000_000) -> Tail:
    return Tail(TailBudget(budget_bytes), 1_000_000, Offset(0))


def append(tail: Tail, size: int = 10, records: int = 1) -> None:
    tail.push(Entry(EntryHeader(tail.next_offset, records, 0, size, 0, 1, 0, b"", 0, -1), b"x" * size))


class Taking:
    """Takes messages, as many at once as it has room for."""

    def __init__(self, room: int = 1_000_000) -> None:
        self.room = room
        self.messages: list[bytes] = []

    def encode(self, entries: Sequence[Entry]) -> bytes:
        return b" ".join(b"%d" % entry.header.base_offset for entry in entries)

    def write_now(self, message: bytes) -> bool:
        if len(self.messages) >= self.room:
            return False
        self.messages.append(message)
        return True

    async def write(self, message: bytes) -> None:
        self.messages.append(message)


def seat(
    tail: Tail,
    sink: Taking,
    *,
    credit: Credit | None = None,
    end: int | None = None,
    max_bytes: int = 1_000,
    delivered: list[int] | None = None,
) -> asyncio.Task[Offset]:
    counted: list[int] = [] if delivered is None else delivered
    one = Seat(
        tail.next_offset,
        None if end is None else Offset(end),
        credit or Credit(),
        max_bytes,
        lambda entries: counted.append(len(entries)),
        sink,
    )
    return asyncio.create_task(tail.audience.attend(one))


async def turns(count: int = 4) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_batch_is_encoded_once_for_all_readers_and_all_get_the_same_bytes() -> None:
    tail, sinks, delivered = make_tail(), [Taking() for _ in range(50)], list[int]()
    readers = [seat(tail, sink, delivered=delivered) for sink in sinks]
    await turns()
    for _ in range(3):
        append(tail)
        await turns()
    assert all(sink.messages == [b"0", b"1", b"2"] for sink in sinks)
    assert all(sink.messages[0] is sinks[0].messages[0] for sink in sinks)
    assert tail.audience.encodings == 3
    assert delivered == [1] * 150
    assert not any(reader.done() for reader in readers)
    await leave(readers)
    assert not len(tail.audience)
    assert not len(tail.bell)


async def leave(readers: Sequence[asyncio.Task[Offset]]) -> None:
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)


async def test_what_is_appended_together_goes_out_together() -> None:
    tail, sink = make_tail(), Taking()
    reader = seat(tail, sink)
    await turns()
    for _ in range(5):
        append(tail)
    await turns()
    assert sink.messages == [b"0 1 2 3 4"]
    await leave([reader])


async def test_a_large_audience_is_served_in_slices_with_the_turns_of_others_between_them() -> None:
    tail, sinks = make_tail(), [Taking() for _ in range(3 * SERVED_TOGETHER)]
    readers = [seat(tail, sink) for sink in sinks]
    await turns()
    append(tail)
    served = []
    for _ in range(4):
        await asyncio.sleep(0)
        served.append(sum(len(sink.messages) for sink in sinks))
    assert all(later - earlier <= SERVED_TOGETHER for earlier, later in zip([0, *served], served, strict=False))
    assert served[-1] == len(sinks)
    await leave(readers)


async def test_what_is_appended_while_an_audience_is_being_served_reaches_all_of_it_in_order() -> None:
    tail, sinks = make_tail(), [Taking() for _ in range(2 * SERVED_TOGETHER + 1)]
    readers = [seat(tail, sink) for sink in sinks]
    await turns()
    append(tail)
    await asyncio.sleep(0)
    append(tail)
    await turns(12)
    assert all(b" ".join(sink.messages) == b"0 1" for sink in sinks)
    await leave(readers)


async def test_a_reader_whose_window_is_full_goes_on_alone_and_the_others_do_not_wait() -> None:
    tail, full, free = make_tail(), Taking(room=1), Taking()
    slow, quick = seat(tail, full), seat(tail, free)
    await turns()
    append(tail)
    await turns()
    append(tail)
    assert await slow == 1
    assert free.messages == [b"0", b"1"]
    assert not quick.done()
    await leave([quick])


@pytest.mark.parametrize(("records", "size"), [(2, 0), (0, 20)])
async def test_credit_is_spent_and_a_reader_without_it_goes_on_alone(records: int, size: int) -> None:
    tail, sink, credit = make_tail(), Taking(), Credit()
    credit.grant(records, size)
    reader = seat(tail, sink, credit=credit)
    await turns()
    for _ in range(3):
        append(tail)
        await turns()
    assert await reader == 2
    assert sink.messages == [b"0", b"1"]
    assert not credit.is_available()


async def test_more_than_the_credit_or_a_response_allows_is_left_to_the_reader() -> None:
    tail, poor, narrow, credit = make_tail(), Taking(), Taking(), Credit()
    credit.grant(1, 0)
    wide = seat(tail, Taking())
    readers = [seat(tail, poor, credit=credit), seat(tail, narrow, max_bytes=15)]
    await turns()
    append(tail)
    append(tail)
    assert [await reader for reader in readers] == [0, 0]
    assert not poor.messages
    assert not narrow.messages
    assert credit.is_available()
    await leave([wide])


async def test_one_batch_is_sent_even_if_it_is_larger_than_a_response() -> None:
    tail, sink = make_tail(), Taking()
    reader = seat(tail, sink, max_bytes=5)
    await turns()
    append(tail)
    await turns()
    append(tail)
    await turns()
    assert sink.messages == [b"0", b"1"]
    await leave([reader])


async def test_a_reader_with_an_end_gets_up_to_it_and_no_further() -> None:
    tail, exact, within = make_tail(), Taking(), Taking()
    readers = [seat(tail, exact, end=2), seat(tail, within, end=1)]
    await turns()
    append(tail, records=2)
    assert [await reader for reader in readers] == [2, 0]
    assert exact.messages == [b"0"]
    assert not within.messages


async def test_what_the_tail_has_forgotten_is_left_to_the_reader() -> None:
    tail, sink = make_tail(budget_bytes=10), Taking()
    reader = seat(tail, sink)
    await turns()
    append(tail)
    append(tail)
    assert await reader == 0
    assert not sink.messages


async def test_closing_ends_the_audience_and_refuses_a_new_one() -> None:
    tail, sink = make_tail(), Taking()
    reader = seat(tail, sink)
    await turns()
    tail.close(TopicNotFound("orders"))
    assert await reader == 0
    with pytest.raises(TopicNotFound):
        await seat(tail, sink)
    assert not len(tail.bell)


async def test_a_reader_that_fails_fails_alone() -> None:
    class Broken(Taking):
        def write_now(self, message: bytes) -> bool:
            raise RuntimeError("broken")

    tail, sink = make_tail(), Taking()
    broken, whole = seat(tail, Broken()), seat(tail, sink)
    await turns()
    append(tail)
    with pytest.raises(RuntimeError, match="broken"):
        await broken
    append(tail)
    await turns()
    assert sink.messages == [b"0", b"1"]
    await leave([whole])
