"""The environment of an image without an engine: the Dockerfile's own commands in a clean directory, with the paths
that an image would have moved below it. What a base image has must be on the machine: Python with venv."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.harness.containers import COMMAND_DEADLINE_S, ContainerFailed, instructions

_MOVED = re.compile(r"(?<![\w.:/])/(build|opt/cursus|wheels|etc/cursus|var/lib/cursus)\b")


class CleanRoom:
    """What the build stage of one Dockerfile leaves behind, below `root`."""

    def __init__(self, dockerfile: Path, checkout: Path, root: Path) -> None:
        self._root = root
        self._checkout = checkout
        self._source = root / "src"
        self._instructions = instructions(dockerfile)
        # pip writes the paths of scripts as it sees them: without a link in between.
        self._source.mkdir(parents=True)

    def build(self) -> None:
        """Raises ContainerFailed with what a command said."""
        stage = 0
        for name, rest in self._instructions:
            stage += name == "FROM"
            if stage != 1:
                continue
            if name == "COPY":
                self._copy(*shlex.split(rest))
            elif name == "RUN":
                self._run(self.moved(rest))

    def moved(self, text: str) -> str:
        """The text with the image's paths below the root."""
        return _MOVED.sub(lambda found: str(self._root) + found.group(0), text)

    def entry_point(self) -> list[str]:
        found = next(rest for name, rest in self._instructions if name == "ENTRYPOINT")
        command = re.findall(r'"([^"]*)"', found)
        return [str(self._root / "opt/cursus/bin" / command[0]), *command[1:]]

    def environment(self) -> Mapping[str, str]:
        """What the last stage sets, and nothing of ours but where temporary files go."""
        values = {"TMPDIR": os.environ.get("TMPDIR", "/tmp"), "PATH": "/usr/bin:/bin"}
        stage = 0
        for name, rest in self._instructions:
            stage += name == "FROM"
            if stage == 2 and name == "ENV":
                for item in shlex.split(rest):
                    key, _, value = item.partition("=")
                    values[key] = self.moved(value).replace("$PATH", values["PATH"])
        return values

    def _copy(self, *words: str) -> None:
        *sources, target = words
        for source in sources:
            place = self._source / target
            found = self._checkout / source
            if found.is_dir():
                shutil.copytree(found, place, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place = place / found.name if target.endswith("/") or len(sources) > 1 else place
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(found, place)

    def _run(self, command: str) -> None:
        if os.geteuid() != 0:
            command = command.replace("-o 10001 -g 10001 ", "")
        done = subprocess.run(
            ["sh", "-ec", command], cwd=self._source, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S
        )
        if done.returncode != 0:
            raise ContainerFailed(f"{command}: status {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
