"""A server's connection, byte by byte: greetings, pings, and the forms that a call's headers and data may come in."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hpack import Encoder

from cursus_transport.server import Call
from tests.harness.http2 import (
    ACK,
    BEGIN_TALK,
    CANCEL,
    DATA,
    END_STREAM,
    NO_ERROR,
    NO_SETTINGS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    SETTINGS_ACK,
    TALK,
    WINDOW_UPDATE,
    Frame,
    Peer,
    call,
    data,
    frame,
    message,
)
from tests.harness.transport import serving
from tests.harness.waiting import DEADLINE_S

SAY_HI = "000007 00 01 00000001 00 00000002 6869"
"""The message "hi" on stream 1, and the end of the client's side."""


async def test_a_greeting_may_come_byte_by_byte() -> None:
    async with serving() as served, Peer.connect(served.port) as peer:
        for byte in bytes.fromhex(PREFACE + NO_SETTINGS + BEGIN_TALK + SAY_HI):
            await peer.send(bytes((byte,)))
        answer = await peer.answer()
    assert (answer.status, answer.messages) == (0, [b"hi"])


async def test_the_server_speaks_first_and_says_what_it_allows() -> None:
    async with serving() as served, Peer.connect(served.port) as peer:
        own = await peer.expect(SETTINGS)
        increment = (await peer.expect(WINDOW_UPDATE)).number
    values = {int.from_bytes(own.body[at : at + 2]): int.from_bytes(own.body[at + 2 : at + 6]) for at in (0, 6, 12, 18)}
    assert own.flags == 0
    assert values[1] == 0, "a table for headers"
    assert values[4] >= 65_535, "a window smaller than the default one"
    assert 16_384 <= values[5] <= 16_777_215
    assert 0 < increment <= 2**31 - 1 - 65_535


async def test_settings_are_acknowledged_each_time_and_an_acknowledgement_is_not() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(
            SETTINGS_ACK, "000006 04 00 00000000 0003 00000064", "00000c 04 00 00000000 00ff 00000001 0008 00000000"
        )
        assert await peer.expect(SETTINGS) == Frame(SETTINGS, ACK, 0, b"")
        assert await peer.expect(SETTINGS) == Frame(SETTINGS, ACK, 0, b"")
        await peer.settled()
        assert peer.aside == []


async def test_a_ping_comes_back_as_it_was_and_its_answer_is_not_answered() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send("000008 06 01 00000000 0000000000000000", "000008 06 00 00000000 00ff10fe20fd30fc")
        assert await peer.expect(PING) == Frame(PING, ACK, 0, bytes.fromhex("00ff10fe20fd30fc"))


async def test_frames_of_unknown_kinds_and_priorities_are_passed_over() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(
            "000003 fa ff 00000000 414243",
            BEGIN_TALK,
            "000005 02 00 00000001 00000000 10",
            "000001 0c 00 00000001 58",
            SAY_HI,
        )
        assert (await peer.answer()).messages == [b"hi"]


async def test_the_reserved_bit_of_a_stream_is_ignored() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send("000026 01 04 80000001", TALK, "000007 00 01 80000001 00 00000002 6869")
        answer = await peer.answer(stream=1)
    assert answer.messages == [b"hi"]


HEADERS_FORMS = {
    "as they are": "000026 01 04 00000001" + TALK,
    "with padding": "00002a 01 0c 00000001 03" + TALK + "000000",
    "with padding of no length": "000027 01 0c 00000001 00" + TALK,
    "with a priority": "00002b 01 24 00000001 80000000 ff" + TALK,
    "with both": "00002d 01 2c 00000001 01 00000000 10" + TALK + "ff",
    "in three frames": "000002 01 00 00000001 8386"
    "000011 09 00 00000001 040f2f746573742e576972652f54616c6b"
    "000013 09 04 00000001 0f10106170706c69636174696f6e2f67727063",
    "with the end in a frame of nothing": "000026 01 00 00000001" + TALK + "000000 09 04 00000001",
    "with padding, a priority and a continuation": "000009 01 28 00000001 01 00000000 10 8386 00"
    "000024 09 04 00000001" + TALK[5:],
}


@pytest.mark.parametrize("begin", HEADERS_FORMS.values(), ids=HEADERS_FORMS.keys())
async def test_headers_may_come(begin: str) -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(begin, SAY_HI)
        answer = await peer.answer()
    assert (answer.headers[":status"], answer.headers["content-type"]) == ("200", "application/grpc")
    assert (answer.status, answer.messages) == (0, [b"hi"])


DATA_FORMS = {
    "as it is": SAY_HI,
    "with padding": "00000b 00 09 00000001 03 00 00000002 6869 000000",
    "with padding of no length": "000008 00 09 00000001 00 00 00000002 6869",
    "with the end in a frame of nothing": "000007 00 00 00000001 00 00000002 6869 000000 00 01 00000001",
    "with the end in a frame of padding": "000007 00 00 00000001 00 00000002 6869 000004 00 09 00000001 03 000000",
    "after frames of nothing": "000000 00 00 00000001 000001 00 08 00000001 00" + SAY_HI,
    "cut within its head": "000002 00 00 00000001 0000 000005 00 01 00000001 000002 6869",
    "cut behind its head": "000005 00 00 00000001 0000000002 000002 00 01 00000001 6869",
    "cut within its text": "000006 00 00 00000001 000000000268 000001 00 01 00000001 69",
    "cut within its text, padded": "000009 00 08 00000001 02 000000000268 0000 000003 00 09 00000001 01 69 00",
    "ended by headers": "000007 00 00 00000001 00 00000002 6869 000004 01 05 00000001 00 0178 00",
}


@pytest.mark.parametrize("sent", DATA_FORMS.values(), ids=DATA_FORMS.keys())
async def test_a_message_may_come(sent: str) -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(BEGIN_TALK, sent)
        answer = await peer.answer()
    assert (answer.status, answer.messages) == (0, [b"hi"])


async def test_two_messages_and_the_head_of_a_third_may_share_a_frame() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(BEGIN_TALK, "000010 00 00 00000001 00 00000002 6869 00 00000000 00 000000")
        await peer.send("000004 00 01 00000001 03 616263")
        answer = await peer.answer()
    assert (answer.status, answer.messages) == (0, [b"hi", b"", b"abc"])


@pytest.mark.parametrize("huffman", [True, False])
async def test_headers_may_refer_to_a_table_until_the_settings_are_known(huffman: bool) -> None:
    """grpc-core and grpc-go put most headers into the table with the first call, and then send little but indices."""
    encoder = Encoder()
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/test.Wire/Talk"),
        (":authority", "127.0.0.1:50051"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.70.0"),
    ]
    async with serving() as served, served.connect() as peer:
        sizes = []
        for stream in (1, 3, 5, 7, 9):
            if stream == 7:
                # It has seen the settings now: the table is emptied, and not used again.
                encoder.header_table_size = 0
            block = encoder.encode([*headers, ("x-call", str(stream))], huffman=huffman)
            sizes.append(len(block))
            await peer.send(frame(1, 0x04, stream, block), data(stream, message(b"%d" % stream), end=True))
            assert (await peer.answer(stream)).messages == [b"%d" % stream]
    assert sizes[1] < sizes[0] / 2, "the table was not used"


async def test_a_block_means_what_the_table_makes_of_it_when_it_comes() -> None:
    """Equal blocks mean equal headers only as long as the table and its size are what they were."""
    empty, ordinary = "20", "3fe11f"
    talk, content_type = "0f 2f746573742e576972652f54616c6b", "0f10 10 6170706c69636174696f6e2f67727063"
    into_table = "83 86 44" + talk + content_type  # the path, if there is room for it
    async with serving() as served, served.connect() as peer:
        for stream, block in enumerate(
            (
                empty + into_table,
                into_table,
                # The table has room again, so that the same block leaves an entry this time.
                ordinary + "83 86 04" + talk + content_type,
                into_table,
                "83 86 be" + content_type,
            )
        ):
            await peer.send(frame(1, 0x05, 2 * stream + 1, bytes.fromhex(block)))
            assert (await peer.answer(2 * stream + 1)).status == 0


async def test_calls_of_a_connection_do_not_wait_for_each_other() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1), call(3), call(5), data(5, message(b"third"), end=True))
        assert (await peer.answer(5)).messages == [b"third"]
        await peer.send(data(1, message(b"first"), end=True))
        assert (await peer.answer(1)).messages == [b"first"]
        await peer.send(data(3, message(b"second"), end=True))
        assert (await peer.answer(3)).messages == [b"second"]


async def test_the_answers_may_all_come_after_the_clients_end() -> None:
    async def sum_up(call: Call) -> None:
        total = 0
        while (request := await call.read()) is not grpc.aio.EOF:
            total += int(request)
        await call.write(b"%d" % total)

    async with serving(sum_up) as served, served.connect() as peer:
        await peer.send(
            call(1), data(1, message(b"1") + message(b"2")), data(1, message(b"39")), data(1, b"", end=True)
        )
        answer = await peer.answer()
    assert (answer.status, answer.messages) == (0, [b"42"])


async def test_a_call_that_is_over_before_the_clients_end_tells_it_to_send_no_more() -> None:
    async def first_only(call: Call) -> None:
        await call.write(await call.read())

    async with serving(first_only) as served, served.connect() as peer:
        await peer.send(call(1), data(1, message(b"one")))
        answer = await peer.answer()
        assert (answer.status, answer.messages) == (0, [b"one"])
        reset = await peer.expect(RST_STREAM, 1)
        assert reset.number == NO_ERROR
        # What was on its way is nobody's fault.
        await peer.send(data(1, message(b"two")), data(1, b"", end=True), "000004 03 00 00000001 00000008")
        await peer.send(call(3), data(3, message(b"other")))
        assert (await peer.answer(3)).messages == [b"other"]


async def test_a_call_that_is_over_after_the_clients_end_is_not_reset() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(BEGIN_TALK, SAY_HI)
        await peer.answer()
        await peer.settled()
        assert peer.aside == []


async def test_a_unary_answer_is_one_message_with_headers_and_status() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, "/test.Wire/Answer"), data(1, message(b"question"), end=True))
        headers, body, trailers = [await peer.receive() for _ in range(3)]
        assert peer.headers(headers)[":status"] == "200"
        assert (body.kind, body.body) == (DATA, message(b"question"))
        assert peer.headers(trailers) == {"grpc-status": "0"}
        assert trailers.flags & END_STREAM


async def test_a_reset_cancels_the_handler() -> None:
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(_: Call) -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(wait_for_ever) as served, served.connect() as peer, asyncio.timeout(DEADLINE_S):
        await peer.send(call(1), call(3))
        await running.wait()
        await peer.send(frame(RST_STREAM, 0, 1, CANCEL.to_bytes(4)))
        await cancelled.wait()
        await peer.settled()
        assert peer.aside == [], "a stream that was reset is not answered"
        assert len(served.server.tasks) == 1, "the other call goes on"


async def test_a_call_may_be_reset_in_the_same_breath() -> None:
    """Before its handler ran for the first time."""
    async with serving() as served, served.connect() as peer:
        await peer.send(BEGIN_TALK, SAY_HI, "000004 03 00 00000001 00000008")
        await peer.settled()
        assert [found.stream for found in peer.aside if found.kind != RST_STREAM] == []
        await peer.send(call(3), data(3, message(b"next"), end=True))
        assert (await peer.answer(3)).messages == [b"next"]
