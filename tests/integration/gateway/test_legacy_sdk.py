"""The legacy Python SDK as its users have it, unmodified from the package index, in an environment of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.harness.gateway import Stack, running_stack
from tests.harness.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

SDK = "cursus-client==0.1.1"
DRIVER = Path(__file__).with_name("sdk_driver.py")


@pytest.fixture(scope="module")
def sdk_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the SDK; skips where it cannot be had."""
    directory = tmp_path_factory.mktemp("sdk")
    venv.create(directory, with_pip=True)
    python = str(directory / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", SDK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip(f"pip cannot install {SDK}: {done.stderr.strip().splitlines()[-1:]}")
    return python


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("sdk-stack")) as stack:
        yield stack


class Program:
    """A running driver and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.said: list[dict[str, Any]] = []
        self._process = process
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.said.append(json.loads(line))

    async def end(self) -> list[dict[str, Any]]:
        """Closes its stdin and waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._reading
        assert await self._process.wait() == 0
        return self.said

    @property
    def payloads(self) -> list[str]:
        return [line["payload"] for line in self.said]


@asynccontextmanager
async def program(python: str, what: str, stack: Stack, **options: Any) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        *(python, str(DRIVER), what, stack.gateway.tcp, json.dumps(options)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def produce(python: str, stack: Stack, topic: str, first: int, count: int, **options: Any) -> None:
    what = options.pop("what", "produce")
    async with program(python, what, stack, topic=topic, first=first, count=count, **options) as producer:
        assert await producer.end() == [{"acknowledged": count}]


async def stored(stack: Stack, topic: str) -> list[str]:
    async with stack.connect() as client:
        return [payload.decode() for partition in range(4) for payload in await client.payloads(topic, partition)]


def numbers(first: int, count: int) -> list[str]:
    return sorted(f"m{number}" for number in range(first, first + count))


@pytest.mark.parametrize("what", ["produce", "produce_async"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(("acks", "idempotent"), [("1", False), ("0", False), ("-1", True)])
async def test_producers_store_every_message_once(
    sdk_python: str, stack: Stack, what: str, compression: str, acks: str, idempotent: bool
) -> None:
    topic = f"{what}-{compression}-{acks}"
    await produce(
        sdk_python, stack, topic, 0, 500, what=what, compression=compression, acks=acks, idempotent=idempotent
    )
    assert sorted(await stored(stack, topic)) == numbers(0, 500)


@pytest.mark.parametrize("what", ["consume", "consume_async"])
@pytest.mark.parametrize("mode", ["polling", "streaming"])
async def test_group_consumers_receive_everything_once_and_resume_where_they_committed(
    sdk_python: str, stack: Stack, what: str, mode: str
) -> None:
    topic = f"{what}-{mode}"
    await produce(sdk_python, stack, topic, 0, 200)
    async with program(sdk_python, what, stack, topic=topic, group=topic, mode=mode) as consumer:
        complete: bool = await eventually(lambda: len(consumer.said) >= 200)
        assert complete
        await consumer.end()
        assert sorted(consumer.payloads) == numbers(0, 200)
        for partition in range(4):
            offsets = [line["offset"] for line in consumer.said if line["partition"] == partition]
            assert offsets == sorted(offsets)
    await produce(sdk_python, stack, topic, 200, 50)
    async with program(sdk_python, what, stack, topic=topic, group=topic, mode=mode) as consumer:
        resumed: bool = await eventually(lambda: set(numbers(200, 50)) <= set(consumer.payloads))
        assert resumed
        await consumer.end()
        # What was delivered and not yet committed when the first one ended may come again, nothing else.
        assert len(consumer.said) <= 50 + 4


@pytest.mark.parametrize("mode", ["polling", "streaming"])
async def test_two_members_share_the_partitions(sdk_python: str, stack: Stack, mode: str) -> None:
    topic = f"shared-{mode}"
    await produce(sdk_python, stack, topic, 0, 40)
    options = {"topic": topic, "group": topic, "mode": mode}
    async with program(sdk_python, "consume", stack, **options) as one:
        alone: bool = await eventually(lambda: len(one.said) >= 40)
        assert alone
        async with program(sdk_python, "consume", stack, **options) as two:
            first = 40

            async def both_receive() -> bool:
                nonlocal first
                await produce(sdk_python, stack, topic, first, 40)
                first += 40
                return bool(two.said)

            shared: bool = await eventually(both_receive)
            assert shared
            before = len(one.said)
            await produce(sdk_python, stack, topic, first, 40)
            received: bool = await eventually(
                lambda: set(numbers(0, first + 40)) <= {*one.payloads, *two.payloads} and len(one.said) > before
            )
            assert received
            await two.end()
        await one.end()


async def test_what_is_not_served_fails_clearly(sdk_python: str, stack: Stack) -> None:
    async with program(sdk_python, "events", stack, topic="aggregates") as store:
        (said,) = await store.end()
    assert "not_supported" in said["failure"]
    assert "APPEND_STREAM" in said["failure"]
