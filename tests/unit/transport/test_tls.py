"""TLS, with and without certificates of clients, in all four pairs of our ends and grpcio's."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc
import pytest

from cursus_transport import Channel, UnaryMethod
from tests.harness.certificates import Authority
from tests.harness.http2 import Peer
from tests.harness.transport import KINDS, Tls, paired, say_back, serving

HANDLERS: dict[str, Any] = {"Ask": grpc.unary_unary_rpc_method_handler(say_back)}
LARGE = bytes(range(256)) * 8000

in_all_pairs = pytest.mark.parametrize(("server", "channel"), [(one, other) for one in KINDS for other in KINDS])


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@in_all_pairs
async def test_calls_are_encrypted(server: str, channel: str, authority: Authority) -> None:
    async with paired(server, channel, HANDLERS, Tls(authority.certificate, authority.server())) as pair:
        assert await pair.ask(b"hello") == b"hello"
        assert await pair.ask(LARGE) == LARGE


@in_all_pairs
async def test_a_client_may_have_to_show_a_certificate(server: str, channel: str, authority: Authority) -> None:
    tls = Tls(authority.certificate, authority.server(), authority.client(), asks_client=True)
    async with paired(server, channel, HANDLERS, tls) as pair:
        assert await pair.ask(LARGE) == LARGE


@in_all_pairs
async def test_a_client_without_a_certificate_is_turned_away(server: str, channel: str, authority: Authority) -> None:
    tls = Tls(authority.certificate, authority.server(), asks_client=True)
    async with paired(server, channel, HANDLERS, tls) as pair:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.ask(b"hello", timeout=20.0)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@in_all_pairs
async def test_a_server_with_the_name_of_another_is_not_trusted(
    server: str, channel: str, authority: Authority
) -> None:
    async with paired(server, channel, HANDLERS, Tls(authority.certificate, authority.server("elsewhere"))) as pair:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.ask(b"hello", timeout=20.0)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@in_all_pairs
async def test_a_server_of_another_authority_is_not_trusted(
    server: str, channel: str, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path / "other", "other-ca")
    async with paired(server, channel, HANDLERS, Tls(authority.certificate, stranger.server())) as pair:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pair.ask(b"hello", timeout=20.0)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_does_not_encrypt_is_cut_off_and_others_are_not(authority: Authority) -> None:
    async with paired("ours", "ours", HANDLERS, Tls(authority.certificate, authority.server())) as pair:
        async with Peer.connect(int(pair.address.rpartition(":")[2])) as peer:
            await peer.send("505249202a20485454502f322e300d0a0d0a534d0d0a0d0a")
            with pytest.raises((EOFError, AssertionError)):
                await peer.receive()
        assert await pair.ask(b"hello") == b"hello"


async def test_a_channel_that_encrypts_says_why_it_cannot_reach_one_that_does_not(authority: Authority) -> None:
    async with serving() as served:
        context = ssl.create_default_context(cafile=str(authority.certificate))
        async with Channel(f"127.0.0.1:{served.port}", tls=context) as channel:
            ask: UnaryMethod[bytes, Any] = channel.unary_unary("/test.Wire/Answer", None, None)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(b"", timeout=20.0)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert f"127.0.0.1:{served.port}" in (caught.value.details() or "")
