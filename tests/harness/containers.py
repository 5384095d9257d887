"""A container engine for the image tests, on storage and settings of its own: nothing of the machine's other images is
seen or touched. Base images are made from Debian packages, since no registry may be reached; they are kept in the
cache."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON_BASE: Final = "localhost/cursus-test/python:bookworm"
SPARK_BASE: Final = "localhost/cursus-test/spark:bookworm"
COMMAND_DEADLINE_S: Final = 1800.0
_HOST_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


class ContainerFailed(AssertionError):
    """A command of the engine failed; what it said is in the message."""


def cache_directory() -> Path:
    """Where what takes minutes to make is kept, outside the checkout."""
    return Path(os.environ.get("CURSUS_TOOLS_CACHE") or Path.home() / ".cache" / "cursus-tools")


def why_no_engine() -> str | None:
    """What this machine lacks for building and running images; None if it has everything."""
    missing = [name for name in ("podman", "runc", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (apt-get install podman runc mmdebstrap)"
    return None if os.geteuid() == 0 else "needs root for mmdebstrap and overlay storage"


@dataclass(frozen=True)
class Engine:
    """podman with `directory` for its settings and runtime state."""

    directory: Path

    def prepare(self) -> None:
        # Not above this process's own: without CAP_SYS_RESOURCE the runtime could not set them.
        files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 16_384)
        quoted = f'"nofile={files}:{files}", "nproc=4096:4096"'
        (self.directory / "containers.conf").write_text(
            f'[containers]\ndefault_ulimits = [{quoted}]\n[engine]\ncgroup_manager = "cgroupfs"\n'
            'runtime = "runc"\nevents_logger = "file"\n'
        )
        (self.directory / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{cache_directory() / "images" / "storage"}"\n'
            f'runroot = "{self.directory / "run"}"\n'
        )

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self.directory / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.directory / "storage.conf"),
        }

    def run(self, *arguments: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """One podman command."""
        return self.command("podman", *arguments, check=check, stdin=stdin)

    def command(self, *command: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.environment(), input=stdin, capture_output=True, text=True, timeout=COMMAND_DEADLINE_S
        )
        if check and done.returncode != 0:
            raise ContainerFailed(
                f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-8000:]}"
            )
        return done

    def has(self, image: str) -> bool:
        return self.run("image", "exists", image, check=False).returncode == 0

    def size_bytes(self, image: str) -> int:
        return int(self.run("image", "inspect", "--format", "{{.Size}}", image).stdout)

    def python_base(self) -> str:
        """Debian with Python, as the official Python images are, and this machine's authorities."""
        if not self.has(PYTHON_BASE):
            packed = self.directory / "base.tar"
            packages = "python3,python3-venv,ca-certificates"
            self.command("mmdebstrap", "--variant=minbase", f"--include={packages}", "bookworm", str(packed))
            self.run("import", str(packed), f"{PYTHON_BASE}-plain")
            packed.unlink()
            context = self.directory / "python-base"
            context.mkdir()
            shutil.copy(_HOST_CERTIFICATES, context / "ca.crt")
            (context / "pip.conf").write_text(f"[global]\ncert = {_HOST_CERTIFICATES}\n")
            self._build(
                context,
                PYTHON_BASE,
                f"FROM {PYTHON_BASE}-plain",
                f"COPY ca.crt {_HOST_CERTIFICATES}",
                "COPY pip.conf /etc/pip.conf",
            )
        return PYTHON_BASE

    def spark_base(self, pyspark: Path) -> str:
        """The Python base with Java, and Spark as its Python distribution has it."""
        if not self.has(SPARK_BASE):
            install = "apt-get update && apt-get install -y --no-install-recommends openjdk-17-jre-headless procps"
            self._build(
                pyspark,
                SPARK_BASE,
                f"FROM {self.python_base()}",
                f"RUN {install} && apt-get clean",
                "COPY . /opt/spark",
            )
        return SPARK_BASE

    def _build(self, context: Path, tag: str, *lines: str) -> None:
        dockerfile = self.directory / "Dockerfile"
        dockerfile.write_text("\n".join(lines) + "\n")
        self.run("build", "--network", "host", "--file", str(dockerfile), "--tag", tag, str(context))


def instructions(dockerfile: Path) -> Sequence[tuple[str, str]]:
    """A Dockerfile's instructions and their arguments, with continued lines joined and comments left out.

    >>> import tempfile
    >>> path = Path(tempfile.mkstemp()[1])
    >>> _ = path.write_text("# note\\nFROM a AS b\\nRUN one \\\\\\n    && two\\n")
    >>> instructions(path)
    [('FROM', 'a AS b'), ('RUN', 'one && two')]
    """
    joined: list[str] = []
    open_line = False
    for line in dockerfile.read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        piece = text.removesuffix("\\").strip()
        if open_line:
            joined[-1] += f" {piece}"
        else:
            joined.append(piece)
        open_line = text.endswith("\\")
    return [(name.upper(), rest.strip()) for name, _, rest in (line.partition(" ") for line in joined)]
