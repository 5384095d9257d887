"""Finds the newest Python on this machine that Cursus supports, and prints its version and its path.

    python tools/newest_python.py

Looks for `python3.N` on the PATH and among pyenv's versions, whose shims fail for all but the one that is switched on.
What is supported is what the distributions declare; a test compares.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SUPPORTED: Final = ("3.11", "3.12", "3.13")


def candidates(version: str) -> Iterator[str]:
    yield sys.executable
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    yield from map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"), reverse=True))


def works(python: str, version: str) -> bool:
    asked = [python, "-c", "import sys, venv; print('{}.{}'.format(*sys.version_info))"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == version


def main() -> int:
    for version in reversed(SUPPORTED):
        for python in candidates(version):
            if works(python, version):
                print(version, python)
                return 0
    print(f"there is no Python {SUPPORTED[0]} to {SUPPORTED[-1]} here", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
