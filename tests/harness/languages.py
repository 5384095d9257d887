"""The example programs in other languages: how each is built and run, and one of them as a process.

What they have to do is in tests/languages/README.md. A language is an entry in LANGUAGES.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.harness.waiting import DEADLINE_S, eventually

ROOT: Final = Path(__file__).parents[2]
BUILD_DEADLINE_S: Final = 1500.0


def missing_programs(*needed: str) -> str | None:
    """A sentence about the programs that are not on PATH; None if all are."""
    absent = [name for name in needed if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed" if absent else None


class Unfetched(Exception):
    """A build needs what is neither in a cache nor in reach."""


@dataclass(frozen=True, slots=True)
class Language:
    """One of the example programs."""

    name: str
    needs: tuple[str, ...]
    """Programs that have to be on PATH; without one of them its tests are skipped."""
    build: tuple[tuple[str, ...], ...]
    """Commands, in the example's directory. Repeating them is cheap: what they fetch and compile is cached."""
    command: tuple[str, ...]
    """Runs the program: arguments follow. Relative paths are below the checkout."""
    environment: Mapping[str, str] = field(default_factory=dict)
    codecs: tuple[str, ...] = ("gzip",)
    """Compressed record sets that it reads."""
    unreachable: str = ""
    """What a build says that could not fetch a dependency: a regular expression. Empty: nothing to tell it by."""

    @property
    def directory(self) -> Path:
        return ROOT / "examples" / self.name

    def missing(self) -> str | None:
        """Why it cannot be tested here; None if it can."""
        return missing_programs(*self.needs)

    def compile(self) -> None:
        """Builds it. Raises Unfetched where that needs a network that is not there, else AssertionError with the end of
        what the build said."""
        for command in self.build:
            done = subprocess.run(
                command,
                cwd=self.directory,
                env={**os.environ, **self.environment},
                capture_output=True,
                text=True,
                timeout=BUILD_DEADLINE_S,
                check=False,
            )
            said = done.stdout + done.stderr
            if done.returncode != 0 and self.unreachable and re.search(self.unreachable, said):
                raise Unfetched(f"{self.name}: {' '.join(command)} cannot fetch what it depends on")
            assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


LANGUAGES: Final = (
    Language(
        "go",
        needs=("go",),
        build=(("go", "build", "-o", str(ROOT / "build" / "languages" / "go" / "cursus-example"), "."),),
        command=("build/languages/go/cursus-example",),
        codecs=("gzip", "zstd", "lz4", "snappy"),
    ),
    Language(
        "java",
        needs=("java", "mvn"),
        build=(("mvn", "-q", "-B", "package"),),
        unreachable=r"Could not transfer artifact",
        command=(
            "java",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-jar",
            "examples/java/target/cursus-example.jar",
        ),
        codecs=("gzip", "zstd", "lz4", "snappy"),
    ),
    Language(
        "typescript",
        needs=("node", "npm"),
        # npm ci begins by removing everything, so only what has changed since is installed again.
        build=(
            ("sh", "-c", "test node_modules/.package-lock.json -nt package-lock.json || npm ci --prefer-offline"),
            ("npm", "run", "build"),
        ),
        unreachable=r"npm error code (ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ENOTCACHED)",
        command=("node", "examples/typescript/dist/main.js"),
        codecs=("gzip", "zstd"),
    ),
)


class ExampleProcess:
    """A running example. Its output is kept line by line, as it comes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        self._reading = asyncio.gather(_read(process.stdout, self.stdout), _read(process.stderr, self.stderr))

    async def write(self, lines: Iterable[str]) -> None:
        """Feeds lines to it; waits while it does not read."""
        assert self._process.stdin is not None
        for line in lines:
            self._process.stdin.write(f"{line}\n".encode())
            await self._process.stdin.drain()

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def shows(self, condition: Callable[[ExampleProcess], bool], deadline_s: float = DEADLINE_S) -> None:
        """Waits until the output satisfies a condition. Fails at once if the process has ended without."""

        def held() -> bool:
            ended = self._process.returncode is not None and self._reading.done()
            if condition(self):
                return True
            if ended:
                raise RuntimeError(f"ended with status {self._process.returncode}\n{self.tail()}")
            return False

        try:
            await eventually(held, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tail()}") from error

    async def prints(self, lines: int) -> None:
        """Waits for this many lines on stdout."""
        await self.shows(lambda it: len(it.stdout) >= lines)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit status, once everything it wrote has been read."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._reading
                return await self._process.wait()
        except TimeoutError:
            raise AssertionError(f"did not end within {deadline_s} s\n{self.tail()}") from None

    def tail(self) -> str:
        lines = [f"stdout: {line}" for line in self.stdout[-10:]] + [f"stderr: {line}" for line in self.stderr[-20:]]
        return "\n".join(lines)


@asynccontextmanager
async def running(language: Language, *arguments: str) -> AsyncIterator[ExampleProcess]:
    """Runs the example with these arguments; kills it if it is still there at the end."""
    process = await asyncio.create_subprocess_exec(
        *language.command,
        *arguments,
        cwd=ROOT,
        env={**os.environ, **language.environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    example = ExampleProcess(process)
    try:
        yield example
    finally:
        example.kill()
        await example.wait()


async def _read(stream: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await stream.readline():
        lines.append(line.decode().rstrip("\n"))
