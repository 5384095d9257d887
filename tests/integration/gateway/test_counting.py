"""What the gateway counts and logs of what it refuses, and what it does not log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.harness.gateway import Stack, running_stack
from tests.harness.http import get, samples
from tests.harness.streams import within_deadline


@pytest_asyncio.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path) as running:
        yield running


async def counted(stack: Stack) -> dict[str, float]:
    return samples((await get(stack.gateway.address("metrics"), "/metrics"))[1])


async def test_a_command_that_is_refused_counts_as_refused(stack: Stack) -> None:
    """Whoever refuses it: the broker, or the gateway in an answer of its own, which once counted as served."""
    assert (await stack.ask("CREATE topic=orders partitions=1")).startswith("OK")
    assert (await stack.ask("DESCRIBE topic=nowhere")).startswith("ERROR:")
    assert '"status":"ERROR"' in await stack.ask("READ_STREAM topic=orders")
    found = await counted(stack)
    assert found['cursus_gateway_commands_total{command="CREATE",outcome="ok"}'] == 1
    refused = {name for name, value in found.items() if 'outcome="error"' in name and value == 1}
    assert refused == {
        'cursus_gateway_commands_total{command="DESCRIBE",outcome="error"}',
        'cursus_gateway_commands_total{command="READ_STREAM",outcome="error"}',
    }
    assert not [name for name in found if "READ_STREAM" in name and 'outcome="ok"' in name]


async def test_a_frame_that_is_too_large_is_counted_and_logged_with_its_peer(stack: Stack) -> None:
    host, port = stack.gateway.tcp.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write((200 * 1024 * 1024).to_bytes(4, "big"))
    assert b"frame_too_large" in await within_deadline(reader.read())
    writer.close()
    found = await counted(stack)
    assert found["cursus_gateway_oversized_frames_total"] == 1
    assert found['cursus_gateway_errors_total{kind="FRAME_TOO_LARGE"}'] == 1
    assert "request.frame_too_large" in stack.gateway.log


async def test_consuming_is_no_line_of_the_log_and_creating_a_topic_is(stack: Stack) -> None:
    await stack.ask("CREATE topic=orders partitions=1")
    await stack.ask("PUBLISH topic=orders acks=1 producerId=p message=one")
    host, port = stack.gateway.tcp.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    command = b"\0\0CONSUME orders 0 0"
    writer.write(len(command).to_bytes(4, "big") + command)
    assert b"one" in await within_deadline(reader.read())
    writer.close()
    assert "consume.completed" not in stack.gateway.log
    (line,) = [line for line in stack.gateway.log.splitlines() if "topic.command" in line]
    assert "command=CREATE" in line
    assert "topic=orders" in line
    assert "peer=127.0.0.1" in line
