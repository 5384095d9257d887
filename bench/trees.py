"""The sources that are measured: those of this tree, and those of an older commit beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent

# Where the distributions keep their packages, for a tree that is not installed.
_SOURCES: Final = ("proto", "transport/src", "services/common/src", "services/broker/src", "services/gateway/src")


class NoSuchTree(Exception):
    """The commit that was asked for cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """What makes Python find these sources before those that are installed."""


PRESENT: Final = Tree("now")


@contextmanager
def older(commit: str, directory: Path) -> Iterator[Tree]:
    """The sources of a commit in a working tree of their own below `directory`, removed afterwards. They run with the
    libraries that are installed, so a commit that needs others does not start. Raises NoSuchTree."""
    try:
        revision = _git("rev-parse", "--verify", "--short=12", f"{commit}^{{commit}}")
        path = directory / f"tree-{revision}"
        _git("worktree", "add", "--detach", "--force", str(path), revision)
    except subprocess.CalledProcessError as error:
        raise NoSuchTree(f"{commit}: {error.stderr.strip()}") from error
    try:
        sources = [str(path / source) for source in _SOURCES if (path / source).is_dir()]
        yield Tree(f"before ({revision})", {"PYTHONPATH": ":".join(sources)})
    finally:
        try:
            _git("worktree", "remove", "--force", str(path))
        except subprocess.CalledProcessError as error:
            print(f"{path} was not removed: {error.stderr.strip()}", file=sys.stderr)


def _git(*arguments: str) -> str:
    return subprocess.run(("git", *arguments), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
