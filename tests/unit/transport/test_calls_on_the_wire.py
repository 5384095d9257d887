"""What a server makes of calls it cannot serve, deadlines, compressed messages and those that are too large."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import zlib
from urllib.parse import unquote

import grpc
import pytest

from cursus_transport import Limits
from cursus_transport.server import Call
from tests.harness.http2 import (
    CANCEL,
    DATA,
    END_STREAM,
    HEADERS,
    NO_ERROR,
    PROTOCOL_ERROR,
    RST_STREAM,
    call,
    data,
    frame,
    message,
)
from tests.harness.transport import serving
from tests.harness.waiting import DEADLINE_S, eventually

DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL = 4, 5, 8, 12, 13
LIMIT = 1000


async def fall_silent(_: Call) -> None:
    await asyncio.Event().wait()


async def test_an_unknown_method_is_answered_with_a_status_and_nothing_else() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, "/test.Wire/None", end=True))
        found = await peer.expect(HEADERS, 1)
        assert found.flags & END_STREAM
        assert peer.headers(found) == {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": str(UNIMPLEMENTED),
            "grpc-message": "there is no method /test.Wire/None",
        }


async def test_an_unknown_method_is_answered_before_the_client_has_ended() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, "/test.Wire/None"))
        assert (await peer.answer()).status == UNIMPLEMENTED
        assert (await peer.expect(RST_STREAM, 1)).number == NO_ERROR


async def test_an_unknown_method_of_any_name_is_refused() -> None:
    """The name is repeated in the answer, where a character may take six bytes."""
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, "/" + "é" * 6000, end=True))
        assert (await peer.answer()).status == UNIMPLEMENTED


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("wrong", [{"content_type": "application/json"}, {":method": "GET"}, {"content_type": ""}])
async def test_what_is_not_grpc_is_answered_with_an_http_status(ends: bool, wrong: dict[str, str]) -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, end=ends, **wrong))
        found = await peer.expect(HEADERS, 1)
        assert found.flags & END_STREAM
        assert peer.headers(found)[":status"] == "415"
        if not ends:
            assert (await peer.expect(RST_STREAM, 1)).number == NO_ERROR
            await peer.send(data(1, b"{}", end=True))
        await peer.send(call(3, content_type="application/grpc+proto"), data(3, message(b"hi"), end=True))
        assert (await peer.answer(3)).messages == [b"hi"]


@pytest.mark.parametrize("timeout", ["", "1", "m", "-1S", "1.5S", "1s", "123456789S", "1S ", "½S"])
async def test_a_timeout_that_is_none_is_refused(timeout: str) -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, grpc_timeout=timeout, end=True))
        answer = await peer.answer()
    assert answer.status == INTERNAL
    assert "is not a timeout" in answer.trailers["grpc-message"]


@pytest.mark.parametrize("timeout", ["20m", "20000u", "20000000n", "1m", "100u", "1n", "0n"])
async def test_a_call_ends_at_its_deadline(timeout: str) -> None:
    async with serving(fall_silent) as served, served.connect() as peer:
        await peer.send(call(1, grpc_timeout=timeout))
        answer = await peer.answer()
        assert answer.status == DEADLINE_EXCEEDED
        assert (await peer.expect(RST_STREAM, 1)).number == NO_ERROR


@pytest.mark.parametrize("timeout", ["1M", "99999999H"])
async def test_a_call_that_ends_in_time_does_not_hear_of_its_deadline(timeout: str) -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, grpc_timeout=timeout), data(1, message(b"hi"), end=True))
        assert (await peer.answer()).status == 0


async def test_a_call_that_is_over_is_forgotten_long_before_its_deadline() -> None:
    """Also if it was reset before its handler ran for the first time."""

    def remembered() -> int:
        gc.collect()
        return sum(isinstance(one, Call) for one in gc.get_objects())

    async with serving() as served, served.connect() as peer:
        reset = b"".join(
            call(stream, grpc_timeout="99999999H") + frame(RST_STREAM, 0, stream, CANCEL.to_bytes(4))
            for stream in range(1, 41, 2)
        )
        await peer.send(reset, call(41, grpc_timeout="99999999H", end=True))
        assert (await peer.answer(41)).status == 0
        await eventually(lambda: remembered() == 0)


async def test_a_deadline_within_an_answer_takes_the_stream_with_it() -> None:
    """A status would stand in the middle of a message."""

    async def say_much(call: Call) -> None:
        await call.write(b"x" * 100_000)

    async with serving(say_much) as served, served.connect() as peer:
        await peer.send(call(1, grpc_timeout="20m"))
        answer = await peer.answer()
    assert (len(answer.data), answer.trailers) == (65_535, {})
    assert answer.reset is not None


COMPRESSED = {
    "gzip": gzip.compress(b"hello " * 100),
    "deflate": zlib.compress(b"hello " * 100),
}


@pytest.mark.parametrize("encoding", COMPRESSED)
@pytest.mark.parametrize("cut", [None, 3, 5, 20])
async def test_compressed_messages_are_read(encoding: str, cut: int | None) -> None:
    packed = message(COMPRESSED[encoding], compressed=True) + message(b"as it is")
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, grpc_encoding=encoding))
        if cut is not None:
            await peer.send(data(1, packed[:cut]))
        await peer.send(data(1, packed[cut or 0 :], end=True))
        answer = await peer.answer()
    assert answer.messages == [b"hello " * 100, b"as it is"]
    assert set(answer.headers["grpc-accept-encoding"].split(",")) == {"identity", "gzip", "deflate"}


UNREADABLE = {
    "of an unknown encoding": ("snappy", b"....", UNIMPLEMENTED, "snappy"),
    "of the encoding that is none": ("identity", b"....", UNIMPLEMENTED, "identity"),
    "that is no gzip": ("gzip", b"hello", INTERNAL, "decompress"),
    "that is half of one": ("gzip", COMPRESSED["gzip"][:-9], INTERNAL, "not whole"),
    "of no bytes": ("gzip", b"", INTERNAL, ""),
    "that becomes too large": ("gzip", gzip.compress(b"x" * (LIMIT + 1)), RESOURCE_EXHAUSTED, str(LIMIT)),
    "that becomes far too large": ("deflate", zlib.compress(bytes(5_000_000), 9)[:900], RESOURCE_EXHAUSTED, str(LIMIT)),
}


@pytest.mark.parametrize(("encoding", "packed", "status", "said"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_compressed_message_is_refused(encoding: str, packed: bytes, status: int, said: str) -> None:
    async with serving(limits=Limits(max_message_bytes=LIMIT)) as served, served.connect() as peer:
        await peer.send(call(1, grpc_encoding=encoding), data(1, message(packed, compressed=True), end=True))
        answer = await peer.answer()
        assert answer.status == status
        assert said in answer.trailers["grpc-message"]
        await peer.send(call(3), data(3, message(b"next"), end=True))
        assert (await peer.answer(3)).messages == [b"next"]


async def test_a_message_that_becomes_as_large_as_it_may_is_read() -> None:
    packed = message(gzip.compress(b"x" * LIMIT), compressed=True)
    async with serving(limits=Limits(max_message_bytes=LIMIT)) as served, served.connect() as peer:
        await peer.send(call(1, grpc_encoding="gzip"), data(1, packed, end=True))
        assert (await peer.answer()).messages == [b"x" * LIMIT]


@pytest.mark.parametrize("sent", [5, 6, LIMIT + 6], ids=["the head", "a little", "all of it"])
async def test_a_message_that_is_too_large_is_refused_with_both_numbers(sent: int) -> None:
    """Its head is enough: nobody has to wait for a message that will not be taken."""
    fits, too_large = message(b"x" * LIMIT), message(b"y" * (LIMIT + 1))
    async with serving(limits=Limits(max_message_bytes=LIMIT)) as served, served.connect() as peer:
        await peer.send(call(1), data(1, fits), data(1, too_large[:sent]))
        answer = await peer.answer()
        assert answer.status == RESOURCE_EXHAUSTED
        assert str(LIMIT) in answer.trailers["grpc-message"]
        assert str(LIMIT + 1) in answer.trailers["grpc-message"]
        assert (await peer.expect(RST_STREAM, 1)).number == NO_ERROR
        await peer.send(data(1, too_large[sent:], end=True), call(3), data(3, fits, end=True))
        assert (await peer.answer(3)).messages == [b"x" * LIMIT]


HALVES = {
    "within a message": data(1, message(b"hello")[:7], end=True),
    "within a head": data(1, b"\x00\x00", end=True),
    "within a message, by headers": data(1, message(b"hello")[:7]) + frame(HEADERS, 0x05, 1, b"\x00\x01x\x00"),
}


@pytest.mark.parametrize("sent", HALVES.values(), ids=HALVES.keys())
async def test_a_stream_that_ends_is_refused(sent: bytes) -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1), sent)
        answer = await peer.answer()
        assert answer.reset == PROTOCOL_ERROR or answer.status == INTERNAL
        await peer.send(call(3), data(3, message(b"next"), end=True))
        assert (await peer.answer(3)).messages == [b"next"]


async def test_a_unary_call_without_a_request_is_refused() -> None:
    async with serving() as served, served.connect() as peer:
        await peer.send(call(1, "/test.Wire/Answer", end=True))
        assert (await peer.answer()).status == INTERNAL


async def test_the_handler_of_a_refused_call_is_cancelled() -> None:
    ended = asyncio.Event()

    async def wait_for_ever(call: Call) -> None:
        try:
            await fall_silent(call)
        finally:
            ended.set()

    async with serving(wait_for_ever, Limits(max_message_bytes=LIMIT)) as served, served.connect() as peer:
        await peer.send(call(1), data(1, message(b"")))
        await peer.settled()
        await peer.send(data(1, message(bytes(LIMIT + 1))))
        assert (await peer.answer()).status == RESOURCE_EXHAUSTED
        async with asyncio.timeout(DEADLINE_S):
            await ended.wait()


async def test_a_handler_that_goes_on_after_a_reset_is_told_so() -> None:
    told: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def go_on(call: Call) -> None:
        try:
            await fall_silent(call)
        except asyncio.CancelledError:
            try:
                await call.write(b"too late")
            except Exception as error:
                told.set_result(type(error).__name__)
            raise

    async with serving(go_on) as served, served.connect() as peer:
        await peer.send(call(1))
        await peer.settled()
        await peer.send(frame(RST_STREAM, 0, 1, CANCEL.to_bytes(4)))
        async with asyncio.timeout(DEADLINE_S):
            assert await told == "StreamLost"
        await peer.settled()
        assert [found.kind for found in peer.aside if found.kind == DATA] == []


DETAILS = {
    "of many bytes": "ü" * 4096,
    "of many characters": "x" * 100_000,
    "with half a surrogate": "there \udc80",
    "of lines": "there\r\n\x00",
}


@pytest.mark.parametrize("details", DETAILS.values(), ids=DETAILS.keys())
async def test_the_details_of_a_status_may_be(details: str) -> None:
    async def refuse(call: Call) -> None:
        await call.abort(grpc.StatusCode.NOT_FOUND, details)

    async with serving(refuse) as served, served.connect() as peer:
        await peer.send(call(1))
        answer = await peer.answer()
    assert answer.status == NOT_FOUND
    assert unquote(answer.trailers["grpc-message"]).startswith(details[:5])


async def test_trailing_metadata_may_be_larger_than_a_frame() -> None:
    """The details of a status go there. HTTP/2 has CONTINUATION frames for it."""

    async def refuse(call: Call) -> None:
        await call.abort(grpc.StatusCode.NOT_FOUND, "", (("grpc-status-details-bin", b"x" * 20_000),))

    async with serving(refuse) as served, served.connect() as peer:
        await peer.send(call(1))
        answer = await peer.answer()
    assert base64.b64decode(answer.trailers["grpc-status-details-bin"] + "==") == b"x" * 20_000
