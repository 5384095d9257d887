"""Which versions of Python are supported is said in several places."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tools.newest_python import SUPPORTED, works

ROOT = Path(__file__).parents[3]


def distributions() -> list[dict[str, Any]]:
    found = [tomllib.loads(path.read_text()) for path in ROOT.glob("**/pyproject.toml") if ".venv" not in str(path)]
    return [one["project"] for one in found if "project" in one]


def test_all_distributions_declare_the_same_versions() -> None:
    _, last = SUPPORTED[-1].split(".")
    assert {one["requires-python"] for one in distributions()} == {f">={SUPPORTED[0]},<3.{int(last) + 1}"}
    prefix = "Programming Language :: Python :: 3."
    for one in distributions():
        declared = tuple(name.rpartition(" ")[2] for name in one["classifiers"] if name.startswith(prefix))
        assert declared == SUPPORTED, one["name"]


def test_the_newest_python_is_one_that_works() -> None:
    command = [sys.executable, str(ROOT / "tools/newest_python.py")]
    version, _, path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().partition(" ")
    assert works(path, version)
    assert SUPPORTED.index(version) >= SUPPORTED.index("{}.{}".format(*sys.version_info))
