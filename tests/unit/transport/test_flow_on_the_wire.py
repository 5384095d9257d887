"""Flow control of a server's connection in both directions: what is sent, what is held back, and when it goes on."""

from __future__ import annotations

import asyncio

import grpc

from cursus_transport.server import Call
from tests.harness.http2 import (
    DATA,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    Peer,
    call,
    data,
    message,
    settings,
    window_update,
)
from tests.harness.transport import ROOMY, Talk, serving
from tests.harness.waiting import DEADLINE_S

WINDOW = 65_535


def saying(size: int) -> Talk:
    async def say(call: Call) -> None:
        await call.write(b"x" * size)

    return say


async def received(peer: Peer, *streams: int) -> list[int]:
    """How much data is on its way on each stream, if the other end sends all it may."""
    peer.aside.clear()
    await peer.settled()
    return [sum(len(one.body) for one in peer.aside if (one.kind, one.stream) == (DATA, id_)) for id_ in streams]


async def test_no_more_is_sent_than_a_streams_window_allows() -> None:
    async with serving(saying(200_000)) as served, Peer.connect(served.port) as peer:
        await peer.greet(settings(initial_window=1000))
        await peer.send(call(1))
        assert await received(peer, 1) == [1000]
        await peer.send(window_update(1, 1))
        assert await received(peer, 1) == [1]
        await peer.send(window_update(0, 1_000_000), window_update(1, 100_000))
        assert await received(peer, 1) == [100_000]
        await peer.send(window_update(1, 200_000))
        answer = await peer.answer()
        assert (len(answer.data), answer.status) == (200_005 - 101_001, 0)


async def test_no_more_is_sent_than_the_connections_window_allows() -> None:
    async with serving(saying(50_000)) as served, served.connect() as peer:
        await peer.send(call(1), call(3))
        assert sum(await received(peer, 1, 3)) == WINDOW
        await peer.send(window_update(0, 10))
        assert sum(await received(peer, 1, 3)) == 10
        await peer.send(window_update(1, 1000), window_update(3, 1000))
        assert sum(await received(peer, 1, 3)) == 0
        await peer.send(window_update(0, 100_000))
        assert sum(await received(peer, 1, 3)) == 2 * 50_005 - WINDOW - 10
        assert [one.stream for one in peer.aside if one.kind == HEADERS and one.flags & END_STREAM] == [3]


async def test_the_head_of_a_message_may_be_all_that_fits() -> None:
    async with serving(saying(3)) as served, Peer.connect(served.port) as peer:
        await peer.greet(settings(initial_window=0))
        await peer.send(call(1))
        assert await received(peer, 1) == [0]
        for _ in range(7):
            await peer.send(window_update(1, 1))
            assert await received(peer, 1) == [1]
        await peer.send(window_update(1, 1))
        assert (await peer.answer()).data == b"x"


async def test_headers_and_statuses_need_no_window() -> None:
    async with serving() as served, Peer.connect(served.port) as peer:
        await peer.greet(settings(initial_window=0))
        await peer.send(call(1), data(1, b"", end=True))
        assert (await peer.answer()).status == 0


async def test_a_larger_initial_window_lets_a_stream_go_on() -> None:
    async with serving(saying(60_000)) as served, Peer.connect(served.port) as peer:
        await peer.greet(settings(initial_window=100))
        await peer.send(call(1))
        assert await received(peer, 1) == [100]
        await peer.send(settings(initial_window=30_000))
        assert await received(peer, 1) == [29_900]
        await peer.send(settings(initial_window=65_000))
        assert (await peer.answer()).status == 0


async def test_a_smaller_initial_window_is_a_debt_of_the_streams_there_are() -> None:
    async with serving(saying(1000)) as served, Peer.connect(served.port) as peer:
        await peer.greet(settings(initial_window=100))
        await peer.send(call(1))
        assert await received(peer, 1) == [100]
        await peer.send(settings(initial_window=40))
        await peer.send(window_update(1, 60))
        assert await received(peer, 1) == [0]
        await peer.send(window_update(1, 5), call(3))
        assert await received(peer, 1, 3) == [5, 40]
        await peer.send(settings(initial_window=2000))
        assert await received(peer, 1, 3) == [900, 965]


async def test_a_unary_answer_waits_for_the_window_too() -> None:
    async with serving() as served, Peer.connect(served.port) as peer:
        await peer.greet(settings(initial_window=10))
        await peer.send(call(1, "/test.Wire/Answer"), data(1, message(b"x" * 20), end=True))
        assert await received(peer, 1) == [10]
        await peer.send(window_update(1, 15))
        answer = await peer.answer()
        assert (len(answer.data), answer.status) == (15, 0)


async def test_frames_are_as_large_as_the_peer_allows_and_no_larger() -> None:
    async with serving(saying(60_000)) as served, served.connect() as peer:
        await peer.send(call(1))
        await peer.answer()
        await peer.send(window_update(0, WINDOW), settings(max_frame=20_000), call(3))
        peer.max_frame = 20_000
        sizes: list[int] = []
        while not (found := await peer.receive()).flags & END_STREAM or found.kind == 4:
            sizes += [len(found.body)] if found.kind == DATA else []
    assert sizes == [20_000, 20_000, 20_000, 5]


async def test_a_call_that_waits_for_a_window_can_be_reset() -> None:
    async with serving(saying(100_000)) as served, served.connect() as peer:
        await peer.send(call(1))
        assert await received(peer, 1) == [WINDOW]
        await peer.send("000004 03 00 00000001 00000008", window_update(0, 1_000_000), window_update(1, 1_000_000))
        assert await received(peer, 1) == [0]
        assert not served.server.tasks


async def test_a_client_that_waits_for_others_does_not_stop_them() -> None:
    """One stream has no window, the connection has."""
    async with serving(saying(1000)) as served, Peer.connect(served.port) as peer:
        await peer.greet(settings(initial_window=0))
        await peer.send(call(1), call(3), window_update(3, 2000))
        assert (await peer.answer(3)).status == 0
        assert await received(peer, 1) == [0]


# What the client sends


async def test_a_stream_that_nobody_reads_gets_no_new_window_until_it_is_read() -> None:
    go_on = asyncio.Event()

    async def read_later(call: Call) -> None:
        await go_on.wait()
        while await call.read() is not grpc.aio.EOF:
            pass

    async with serving(read_later) as served, served.connect() as peer, asyncio.timeout(DEADLINE_S):
        window = 1024 * 1024
        piece = message(bytes(16_384 - 5))
        await peer.send(call(1))
        for _ in range(window // len(piece)):
            await peer.send(data(1, piece))
        await peer.settled()
        assert [one for one in peer.aside if one.kind == WINDOW_UPDATE] == []
        go_on.set()
        credit = await peer.wait_for(WINDOW_UPDATE, 1)
        assert credit.number == window
        # As much again, now that there is a window for it.
        for _ in range(window // len(piece)):
            await peer.send(data(1, piece))
        await peer.send(data(1, b"", end=True))
        assert (await peer.answer()).status == 0


async def test_a_client_that_sends_more_than_the_window_is_refused() -> None:
    async def never_read(_: Call) -> None:
        await asyncio.Event().wait()

    async with serving(never_read) as served, served.connect() as peer:
        await peer.send(call(1))
        for _ in range(64):
            await peer.send(data(1, message(bytes(16_384 - 5))))
        await peer.settled()
        assert peer.aside == []
        await peer.send(data(1, b"\x00"))
        answer = await peer.answer()
        assert answer.reset is not None or answer.status != 0
        await peer.settled()


async def test_padding_counts_against_the_window_and_is_given_back() -> None:
    """Otherwise a stream of padded frames would stand still some time."""
    count = 1024 * 1024 // 0x108
    padded = "000108 00 08 00000001 ff 00 00000003 616263" + "00" * 255
    async with serving(limits=ROOMY) as served, served.connect() as peer:
        await peer.send(call(1))
        for _ in range(count):
            await peer.send(padded)
        await peer.settled()
        credited = [one.number for one in peer.aside if (one.kind, one.stream) == (WINDOW_UPDATE, 1)]
        assert 512 * 1024 <= sum(credited) <= count * 0x108


async def test_a_message_larger_than_the_window_gets_through() -> None:
    """It cannot be read before it is whole, so what has come of it makes room for the rest."""
    size = 5 * 1024 * 1024
    sent, window = 0, 1024 * 1024
    packed = message(bytes(size))
    async with serving(limits=ROOMY) as served, served.connect() as peer:
        await peer.send(window_update(0, 2**30), settings(initial_window=2**30), call(1, "/test.Wire/Answer"))
        while sent < len(packed):
            if window == 0:
                window += (await peer.wait_for(WINDOW_UPDATE, 1)).number
            taken = min(window, 16_384, len(packed) - sent)
            await peer.send(data(1, packed[sent : sent + taken], end=sent + taken == len(packed)))
            sent, window = sent + taken, window - taken
        answer = await peer.answer()
    assert (len(answer.data), answer.status) == (len(packed), 0)


async def test_a_call_that_is_over_leaves_no_debt_in_the_connections_window() -> None:
    """What still comes on its stream is thrown away, but it was paid for with the connection's window."""

    async def leave(_: Call) -> None:
        return

    async with serving(leave) as served, served.connect() as peer:
        await peer.send(call(1))
        await peer.answer()
        assert (await peer.expect(RST_STREAM, 1)).number == 0
        # More than a stream's window, in all: it is the connection's that counts now.
        for _ in range(80):
            await peer.send(data(1, bytes(16_384)))
        await peer.send(call(3))
        assert (await peer.answer(3)).status == 0
        assert not [one for one in peer.aside if one.kind == RST_STREAM and one.stream == 1]
