"""What the command says when there is no broker: why, in one line, at the first attempt."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cursus_grpc.testing import Broker
from tests.harness.gateway import GatewayProcess
from tests.harness.terminal import CURSUS, Outcome, Terminal, command_environment, run_piped
from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")

HINT = "is it running, and is --broker right?"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that nobody listens on, and nobody else gets meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


async def run(home: Path, *arguments: str, stdin: bytes = b"") -> Outcome:
    return await run_piped([*CURSUS, *arguments], command_environment(home), stdin)


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("publish", "t", "--value", "x"),
        ("consume", "t", "--follow"),
        ("consume", "t", "--group", "g"),
        ("group", "list"),
        ("top", "--count", "1"),
        ("bench", "produce"),
    ],
)
async def test_every_command_says_that_the_connection_was_refused(
    tmp_path: Path, nobody: str, command: tuple[str, ...]
) -> None:
    # A long timeout would be waited for if a refused connection were tried again.
    refused = await run(tmp_path, *command, "--broker", nobody, "--timeout", "3600")
    assert refused.status == 1
    told = f"error: no broker answers at {nobody}: Connection refused (BROKER_UNREACHABLE); {HINT}"
    assert refused.stderr.startswith(told)
    assert len(refused.stderr.splitlines()) == 1


async def test_an_unknown_name_is_told_and_each_of_several_addresses(tmp_path: Path, nobody: str) -> None:
    told = await run(tmp_path, "topic", "list", "--broker", f"nobody.invalid:1,{nobody}", "-o", "json")
    assert told.status == 1
    error = json.loads(told.stderr)["error"]
    assert error["reason"] == "BROKER_UNREACHABLE"
    assert HINT in error["hint"]
    name, _, refused = error["message"].removeprefix("no broker answers at ").partition("; at ")
    assert name.startswith("nobody.invalid:1: ")
    assert refused == f"{nobody}: Connection refused"


async def test_ports_that_are_not_grpc_are_told_as_such(cli: Cli, tmp_path: Path) -> None:
    async with GatewayProcess.start(cli.broker.grpc, tmp_path / "log") as gateway:
        for address, found in (
            (cli.broker.health, "the health port of a broker"),
            (cli.broker.metrics, "the metrics port of a broker or gateway"),
            (gateway.health, "the health port of a gateway"),
            (gateway.tcp, "a gateway, which speaks the TCP protocol"),
        ):
            for tls in ((), ("--tls",)) if address == cli.broker.health else ((),):
                timeout = ("--timeout", "5") if tls else ()
                told = await run(tmp_path, "topic", "list", "--broker", address, *tls, *timeout)
                assert told.status == 1
                needed = "and this command needs the gRPC port of a broker (NOT_A_BROKER); that is 50051 unless"
                assert told.stderr.startswith(f"error: {address} is {found}, {needed}"), told.stderr


@asynccontextmanager
async def counting(*, hang_up: bool) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Somebody who takes connections and says nothing; and the first words of each."""
    begun: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.append(await reader.read(3))
        if not hang_up:
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", begun


async def test_a_peer_that_hangs_up_is_not_tried_again_and_again(tmp_path: Path) -> None:
    async with counting(hang_up=True) as (address, begun):
        told = await run(tmp_path, "topic", "list", "--broker", address, "--timeout", "3600")
        assert told.status == 1
        assert "(BROKER_UNREACHABLE)" in told.stderr
        # Once as a client does, once to see whether it speaks TLS, and twice to see what else it may be.
        assert begun == [b"PRI", b"\x16\x03\x01", b"GET", b"\0\0\0"]


async def test_a_silent_peer_is_given_up_and_said_to_be_silent(tmp_path: Path) -> None:
    async with counting(hang_up=False) as (address, begun):
        asked = command_environment(tmp_path)
        del asked["CURSUS_CLI_TIMEOUT"]
        told = await run_piped([*CURSUS, "topic", "list", "--broker", address], asked)
        assert told.status == 1
        assert f"at {address}: a first word of HTTP/2 from it takes longer than 1 s" in told.stderr
        assert begun == [b"PRI", b"GET"]


async def test_a_reader_that_follows_waits_for_a_broker_that_comes_back(tmp_path: Path) -> None:
    with Broker() as broker:
        env = command_environment(tmp_path, CURSUS_BROKER=broker.address)

        async def publish(value: str) -> None:
            outcome = await run_piped([*CURSUS, "publish", "t", "--value", value], env)
            assert outcome.status == 0, outcome

        assert (await run_piped([*CURSUS, "topic", "create", "t", "--partitions", "1"], env)).status == 0
        await publish("before")
        async with Terminal.running([*CURSUS, "consume", "t", "--follow", "--from", "beginning"], env) as terminal:
            await terminal.shows("before\n")
            await asyncio.to_thread(broker.kill)
            refused = await run_piped([*CURSUS, "publish", "t", "--value", "lost"], env)
            assert "Connection refused" in refused.stderr
            await asyncio.to_thread(broker.restart)
            await publish("after")
            await terminal.shows("after\n")
            terminal.type("\x03")
            assert await terminal.ended() == 0
