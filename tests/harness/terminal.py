"""The `cursus` command as people and scripts run it: in a terminal of its own (a pty), or with pipes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.harness.waiting import DEADLINE_S, eventually, processor_ticks, while_it_works

CURSUS: Final = (sys.executable, "-m", "cursus_grpc.cli")
_CHUNK: Final = 64 * 1024
# Colours, cursor movements, titles: everything that is not text.
_STEERING: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[()=>][A-Z0-9]?")


def command_environment(home: Path, **variables: str) -> dict[str, str]:
    """Ours without a developer's settings, and with a home that holds no configuration. With a timeout, because on a
    busy machine connecting may take longer than people are made to wait for it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CURSUS_", "XDG_"))}
    shown = {
        "HOME": str(home),
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
        "PYTHONWARNINGS": "error::ResourceWarning",
        "CURSUS_CLI_TIMEOUT": "60",
    }
    return {**kept, **shown, **variables}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command that has ended left behind."""

    status: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]


async def run_piped(
    command: Sequence[str], env: Mapping[str, str], stdin: bytes = b"", cwd: Path | None = None
) -> Outcome:
    """Run it to its end with pipes for everything, as in a script. It may take as long as it uses its processor."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
    )
    try:
        stdout, stderr = await while_it_works(process.communicate(stdin), lambda: processor_ticks(process.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    assert process.returncode is not None
    return Outcome(process.returncode, stdout, stderr.decode(errors="replace"))


class Terminal:
    """A pseudo terminal with one process in it. `text` is everything it has shown, without colours."""

    def __init__(self, process: asyncio.subprocess.Process, master: int) -> None:
        self._process = process
        self._master = master
        self._shown = bytearray()
        asyncio.get_running_loop().add_reader(master, self._read)

    @classmethod
    @asynccontextmanager
    async def running(
        cls, command: Sequence[str], env: Mapping[str, str], columns: int = 120, rows: int = 40
    ) -> AsyncIterator[Terminal]:
        """Start it with the terminal as its controlling one; it is killed if it has not ended by itself."""
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=dict(env),
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            )
        finally:
            os.close(slave)
        os.set_blocking(master, False)
        terminal = cls(process, master)
        try:
            yield terminal
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            asyncio.get_running_loop().remove_reader(master)
            os.close(master)

    @property
    def raw(self) -> str:
        return self._shown.decode(errors="replace")

    @property
    def text(self) -> str:
        return _STEERING.sub("", self.raw).replace("\r", "")

    def type(self, keys: str) -> None:
        """Press keys. `\\x03` is Ctrl-C, `\\x04` Ctrl-D, `\\t` tab, `\\r` return."""
        os.write(self._master, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def shows(self, pattern: str) -> str:
        """Wait until something shown matches, and answer all that is shown."""

        def matches() -> bool:
            assert re.search(pattern, self.text), f"no {pattern!r} in:\n{self.text}"
            return True

        await eventually(matches)
        return self.text

    async def ended(self) -> int:
        """The exit status, when everything it wrote has been read."""
        async with asyncio.timeout(DEADLINE_S):
            status = await self._process.wait()
        self._read()
        return status

    def _read(self) -> None:
        # Linux answers EIO once the process has closed its side.
        try:
            while chunk := os.read(self._master, _CHUNK):
                self._shown += chunk
        except BlockingIOError:
            return
        except OSError:
            asyncio.get_running_loop().remove_reader(self._master)
