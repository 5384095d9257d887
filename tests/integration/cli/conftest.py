"""A broker for a module's tests, and the command pointed at it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.processes import BrokerProcess
from tests.harness.terminal import CURSUS, Outcome, Terminal, command_environment, run_piped

_numbers = itertools.count()


@dataclass(frozen=True)
class Cli:
    """`cursus` against one broker."""

    broker: BrokerProcess
    env: dict[str, str]
    home: Path

    async def run(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        """With pipes, whatever comes of it."""
        return await run_piped([*CURSUS, *arguments], self.env, stdin)

    async def ok(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        """With pipes; it has to succeed."""
        outcome = await self.run(*arguments, stdin=stdin)
        assert outcome.status == 0, outcome
        return outcome

    def terminal(self, *arguments: str, columns: int = 120) -> AbstractAsyncContextManager[Terminal]:
        return Terminal.running([*CURSUS, *arguments], self.env, columns)

    def shell(self, script: Sequence[str]) -> AbstractAsyncContextManager[Terminal]:
        return Terminal.running(script, self.env)

    async def topic(self, *values: str, partitions: int = 1) -> str:
        """A topic of its own for a test, with these values in it."""
        name = f"topic-{next(_numbers)}"
        await self.ok("topic", "create", name, "--partitions", str(partitions))
        if values:
            await self.ok("publish", name, *(part for value in values for part in ("--value", value)))
        return name


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cli(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cli]:
    directory = tmp_path_factory.mktemp("cli")
    async with BrokerProcess.start(directory / "data") as broker:
        env = command_environment(directory, CURSUS_BROKER=broker.grpc)
        yield Cli(broker, env, directory)
