"""The legacy Python SDK as its users have it, unmodified from the package index, outside our own environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.containers import cache_directory


@dataclass(frozen=True)
class LegacySdk:
    """One version of the SDK, installed in a directory of its own."""

    version: str
    directory: Path

    @property
    def command(self) -> tuple[str, ...]:
        """An interpreter that finds the SDK and the standard library, and nothing else."""
        return (sys.executable, "-S")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.directory)}


def legacy_sdk(version: str) -> LegacySdk:
    """That version, installed once a machine and Python; skips where pip cannot have it."""
    release = "{}.{}".format(*sys.version_info)
    directory = cache_directory() / "legacy-sdk" / f"cursus-client-{version}-python-{release}"
    if not directory.exists():
        _install(version, directory)
    return LegacySdk(version, directory)


def _install(version: str, directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent) as half_done:
        target = Path(half_done) / "target"
        pip = (
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
            str(target),
        )
        done = subprocess.run((*pip, f"cursus-client=={version}"), capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"pip cannot install cursus-client {version}: {done.stderr.strip().splitlines()[-1:]}")
        try:
            target.rename(directory)
        except OSError:
            # Another suite, beside this one, was faster.
            shutil.rmtree(target)
            assert directory.exists()
