"""How much memory something takes, by bytes: what Python's allocators hand out, and what the system counts of a
process, which has what C code allocates in it too.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import tracemalloc
from pathlib import Path
from types import TracebackType
from typing import Final, Self

MIB: Final = 1024 * 1024

_MEASURED: Final = """
import resource

def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

{prepare}
before = peak()
{work}
print(peak() - before)
"""


class Traced:
    """Counts what Python allocates from the moment the block is entered."""

    def __enter__(self) -> Self:
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]
        return self

    @property
    def held(self) -> int:
        """What was allocated in the block and not freed."""
        return tracemalloc.get_traced_memory()[0] - self._before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tracemalloc.stop()


def growth(prepare: str, work: str) -> int:
    """By how many bytes the peak of a process of its own grows while it does the work."""
    script = _MEASURED.format(prepare=textwrap.dedent(prepare), work=textwrap.dedent(work))
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return int(done.stdout)


def peak_of(pid: int) -> int:
    """The most a process has taken so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "VmHWM":
            return int(value.split()[0]) * 1024
    raise AssertionError(f"process {pid} has no memory")
