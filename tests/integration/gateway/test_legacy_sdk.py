"""The legacy Python SDK as its users have it: both versions on the package index, unmodified, and what
docs/gateway.md says of each."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.harness.gateway import GatewayProcess, Stack, running_stack
from tests.harness.legacy_sdk import LegacySdk, legacy_sdk
from tests.harness.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

FIRST, SECOND = "0.1.0", "0.1.1"
DRIVER = Path(__file__).with_name("sdk_driver.py")
LISTENERS = {"auto": "tcp", "bare": "tcp2", "ok": "tcp3"}
"""The reply profiles, and the name of the port of each in the `ready` line."""


@pytest.fixture(scope="module")
def sdk() -> LegacySdk:
    return legacy_sdk(SECOND)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    ports = ("--listen", "0:bare", "--listen", "0:ok")
    async with running_stack(tmp_path_factory.mktemp("sdk-stack"), *ports) as stack:
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def committing(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A second gateway before the same broker, which commits for clients that never do."""
    directory = tmp_path_factory.mktemp("sdk-committing")
    arguments = ("--groups-stream-autocommit", "true", "--listen", "0:bare", "--listen", "0:ok")
    async with GatewayProcess.start(stack.broker.grpc, directory, *arguments) as gateway:
        yield Stack(stack.broker, gateway)


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
        assert await self.ended() == 0
        return self.said

    async def ended(self) -> int:
        """Its status, once it has ended by itself."""
        await self._reading
        return await self._process.wait()

    @property
    def payloads(self) -> list[str]:
        return [line["payload"] for line in self.said]


@asynccontextmanager
async def program(
    sdk: LegacySdk, what: str, stack: Stack, *, profile: str = "auto", **options: Any
) -> AsyncIterator[Program]:
    address = stack.gateway.address(LISTENERS[profile])
    process = await asyncio.create_subprocess_exec(
        *(*sdk.command, str(DRIVER), what, address, json.dumps(options)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=sys.stderr,
        env=sdk.environment,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def produce(sdk: LegacySdk, stack: Stack, topic: str, first: int, count: int, **options: Any) -> None:
    what = options.pop("what", "produce")
    async with program(sdk, what, stack, topic=topic, first=first, count=count, **options) as producer:
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
    sdk: LegacySdk, stack: Stack, what: str, compression: str, acks: str, idempotent: bool
) -> None:
    topic = f"{what}-{compression}-{acks}"
    await produce(sdk, stack, topic, 0, 500, what=what, compression=compression, acks=acks, idempotent=idempotent)
    assert sorted(await stored(stack, topic)) == numbers(0, 500)


@pytest.mark.parametrize("what", ["consume", "consume_async"])
@pytest.mark.parametrize("mode", ["polling", "streaming"])
async def test_group_consumers_receive_everything_once_and_resume_where_they_committed(
    sdk: LegacySdk, stack: Stack, what: str, mode: str
) -> None:
    topic = f"{what}-{mode}"
    await produce(sdk, stack, topic, 0, 200)
    async with program(sdk, what, stack, topic=topic, group=topic, mode=mode) as consumer:
        complete: bool = await eventually(lambda: len(consumer.said) >= 200)
        assert complete
        await consumer.end()
        assert sorted(consumer.payloads) == numbers(0, 200)
        for partition in range(4):
            offsets = [line["offset"] for line in consumer.said if line["partition"] == partition]
            assert offsets == sorted(offsets)
    await produce(sdk, stack, topic, 200, 50)
    async with program(sdk, what, stack, topic=topic, group=topic, mode=mode) as consumer:
        resumed: bool = await eventually(lambda: set(numbers(200, 50)) <= set(consumer.payloads))
        assert resumed
        await consumer.end()
        # What was delivered and not yet committed when the first one ended may come again, nothing else.
        assert len(consumer.said) <= 50 + 4


@pytest.mark.parametrize("mode", ["polling", "streaming"])
async def test_two_members_share_the_partitions(sdk: LegacySdk, stack: Stack, mode: str) -> None:
    topic = f"shared-{mode}"
    await produce(sdk, stack, topic, 0, 40)
    options = {"topic": topic, "group": topic, "mode": mode}
    async with program(sdk, "consume", stack, **options) as one:
        alone: bool = await eventually(lambda: len(one.said) >= 40)
        assert alone
        async with program(sdk, "consume", stack, **options) as two:
            first = 40

            async def both_receive() -> bool:
                nonlocal first
                await produce(sdk, stack, topic, first, 40)
                first += 40
                return bool(two.said)

            shared: bool = await eventually(both_receive)
            assert shared
            before = len(one.said)
            await produce(sdk, stack, topic, first, 40)
            received: bool = await eventually(
                lambda: set(numbers(0, first + 40)) <= {*one.payloads, *two.payloads} and len(one.said) > before
            )
            assert received
            await two.end()
        await one.end()


async def test_what_is_not_served_fails_clearly(sdk: LegacySdk, stack: Stack) -> None:
    async with program(sdk, "events", stack, topic="aggregates") as store:
        (said,) = await store.end()
    assert "not_supported" in said["failure"]
    assert "APPEND_STREAM" in said["failure"]


@pytest.mark.parametrize("profile", ["auto", "ok"])
@pytest.mark.parametrize("what", ["consume", "consume_async"])
@pytest.mark.parametrize("mode", ["polling", "streaming"])
async def test_the_first_sdk_resumes_if_the_gateway_commits_for_it(
    committing: Stack, what: str, mode: str, profile: str
) -> None:
    """It never commits. docs/gateway.md: `auto` or `ok`, and `stream_autocommit`."""
    sdk, topic = legacy_sdk(FIRST), f"first-{what}-{mode}-{profile}"
    await produce(sdk, committing, topic, 0, 40, profile=profile)
    options = {"profile": profile, "topic": topic, "group": topic, "mode": mode}
    async with program(sdk, what, committing, **options) as consumer:
        complete: bool = await eventually(lambda: len(consumer.said) >= 40)
        assert complete
        # What a member presents is committed with its next question, so everything is once it has asked again.
        committed: bool = await eventually(lambda: _all_committed(committing, topic))
        assert committed
        await consumer.end()
        assert sorted(consumer.payloads) == numbers(0, 40)
    await produce(sdk, committing, topic, 40, 10, profile=profile)
    async with program(sdk, what, committing, **options) as consumer:
        resumed: bool = await eventually(lambda: len(consumer.said) >= 10)
        assert resumed
        await consumer.end()
        assert sorted(consumer.payloads) == numbers(40, 10)


async def _all_committed(stack: Stack, topic: str) -> bool:
    # Not over the port of `auto`: asking there again and again would look like a client that does not understand.
    async with stack.connect(LISTENERS["ok"]) as client:
        for place in json.loads(await client.ask(f"DESCRIBE topic={topic}"))["partitions"]:
            answer = await client.ask(f"FETCH_OFFSET topic={topic} partition={place['id']} group={topic}")
            if answer != f"OK offset={place['leo']}":
                return False
    return True


async def test_the_first_sdk_begins_anew_where_nobody_commits_for_it(stack: Stack) -> None:
    sdk, topic = legacy_sdk(FIRST), "first-anew"
    await produce(sdk, stack, topic, 0, 40)
    for _ in range(2):
        async with program(sdk, "consume", stack, topic=topic, group=topic, mode="streaming") as consumer:
            complete: bool = await eventually(lambda program=consumer: len(program.said) >= 40)  # type: ignore[misc]  # bound early
            assert complete
            await consumer.end()
            assert sorted(consumer.payloads) == numbers(0, 40)


@pytest.mark.parametrize("version", [FIRST, SECOND])
@pytest.mark.parametrize("what", ["consume", "consume_async"])
async def test_no_published_python_sdk_understands_bare_answers(stack: Stack, version: str, what: str) -> None:
    """They raise instead of reading anything; the sentence in docs/gateway.md used to recommend `bare` for them."""
    sdk, topic = legacy_sdk(version), f"bare-{version}-{what}"
    await produce(sdk, stack, topic, 0, 4, profile="bare")
    options = {"topic": topic, "group": topic, "mode": "streaming"}
    async with program(sdk, what, stack, profile="bare", **options) as consumer:
        assert await consumer.ended() == 1
        (said,) = consumer.said
        assert said.keys() == {"failure"}
