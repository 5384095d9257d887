"""Where and with what a run was made."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psutil

_LIBRARIES: Final = ("grpcio", "protobuf", "uvloop", "google-crc32c")
_CHUNK: Final = os.urandom(16 * 1024 * 1024)
_PROBE_CHUNKS: Final = 64


@dataclass(frozen=True, slots=True)
class Machine:
    time: str
    revision: str
    processor: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    libraries: dict[str, str]
    ballast_bytes: int
    """Page cache filled before the first measurement."""
    disk_bytes_per_second: float
    """Sequential writes of 1 GB, with an fdatasync at the end."""
    load_before: float
    """Runnable processes before the run began, averaged over a minute: others that shared the machine."""
    quick: bool

    def facts(self) -> list[str]:
        libraries = ", ".join(f"{name} {number}" for name, number in self.libraries.items())
        return [
            f"{self.time}, revision {self.revision}{', quick run: rough numbers' if self.quick else ''}",
            f"{self.processor}, {self.cores} cores, {self.memory_bytes / 1e9:.1f} GB memory, kernel {self.kernel}",
            f"Python {self.python}, {libraries}",
            f"disk: {self.disk_bytes_per_second / 1e6:,.0f} MB/s written in sequence and synced",
            f"page cache filled beforehand: {self.ballast_bytes / 1e9:.1f} GB",
            f"load of the machine before the run: {self.load_before:.2f}",
        ]


def describe(scratch: Path, ballast_bytes: int, quick: bool) -> Machine:
    """Look around and try the disk, before anything of ours loads the machine."""
    return Machine(
        time=time.strftime("%Y-%m-%d %H:%M %Z"),
        revision=_revision(),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        kernel=platform.release(),
        python=platform.python_version(),
        libraries={name: version(name) for name in _LIBRARIES},
        ballast_bytes=ballast_bytes,
        disk_bytes_per_second=_probe_disk(scratch),
        load_before=os.getloadavg()[0],
        quick=quick,
    )


def _probe_disk(scratch: Path) -> float:
    path = scratch / "probe"
    with path.open("wb", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(_PROBE_CHUNKS):
            file.write(_CHUNK)
        os.fdatasync(file.fileno())
        seconds = time.perf_counter() - started
    path.unlink()
    return _PROBE_CHUNKS * len(_CHUNK) / seconds


def _revision() -> str:
    """The commit, marked if the measured sources differ from it."""
    sources = ("services", "clients", "proto", "bench/*.py")
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+changes" if _git("status", "--porcelain", "--", *sources) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    root = Path(__file__).parent.parent
    return subprocess.run(("git", *arguments), cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
