"""An archive for executors that lack our packages: `cursus-spark` and everything it depends on, in the versions that
are installed here, with a `bin/python` that finds them wherever Spark unpacks it.

    bin/python                        a script; PYSPARK_PYTHON names it
    lib/python3.11/site-packages/     the packages
    python/                           on request the interpreter itself, with its standard library

Packages are copied from where they are installed, so that executors have what the driver has and no index is asked.
PySpark is left out: it comes with the executors' Spark, and has to be of its version.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

OURS: Final = "cursus-spark"

# The executors' Spark has its own, on the PYTHONPATH it starts Python with.
_OF_SPARK: Final = frozenset({"pyspark", "py4j"})

_VERSION: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGES: Final = PurePosixPath("lib", f"python{_VERSION}", "site-packages")

# Of the standard library: other packages, and what no task needs.
_LEFT_OUT: Final = frozenset(
    {
        *("site-packages", "dist-packages", "__pycache__"),
        *("ensurepip", "idlelib", "lib2to3", "test", "tkinter", "turtledemo"),
    }
)

# Libraries are most of it and hardly get smaller above this, while the time doubles.
_COMPRESSION: Final = 3

LAUNCHER: Final = f"""\
#!/bin/sh
# Python {_VERSION} with the packages of this archive, wherever it is unpacked.
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1
export PYTHONPATH="$here/{_PACKAGES}${{PYTHONPATH:+:$PYTHONPATH}}"
if [ -d "$here/python" ]; then
    export LD_LIBRARY_PATH="$here/python/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
    exec "$here/python/bin/python{_VERSION}" "$@"
fi
for python in python{_VERSION} python3; do
    if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "{_VERSION}" ]; then
        exec "$python" "$@"
    fi
done
echo "$0: this archive is for Python {_VERSION}, and neither python{_VERSION} nor python3 is one on $(uname -n);" \\
    "make the archive with --with-python to bring it along" >&2
exit 127
"""


class CannotPackage(Exception):
    """The archive cannot be made; nothing is left of it."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """What was put into an archive."""

    packages: Sequence[str]
    """As NAME==VERSION."""
    python: str
    """The version they are for, as 3.11."""
    size_bytes: int


Report: TypeAlias = Callable[[str], None]


def package(target: Path, wanted: Iterable[str] = (), *, with_python: bool = False, report: Report) -> Packaged:
    """Write the archive. `wanted` are further packages, as requirements; `report` is told what is being added.

    Raises CannotPackage; a file that was there before is then still there.
    """
    if sys.platform == "win32":
        raise CannotPackage("make the archive on the system the executors run on: there are none on Windows")
    distributions = closure([OURS, *wanted])
    partial = target.with_name(target.name + ".partial")
    try:
        with tarfile.open(partial, "w:gz", compresslevel=_COMPRESSION) as archive:
            _add_text(archive, PurePosixPath("bin", "python"), LAUNCHER)
            _add_distributions(archive, distributions, report)
            if with_python:
                report(f"Python {_VERSION} itself")
                add_python(archive)
        partial.replace(target)
    except OSError as error:
        raise CannotPackage(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    finally:
        partial.unlink(missing_ok=True)
    return Packaged([f"{one.name}=={one.version}" for one in distributions], _VERSION, target.stat().st_size)


def closure(wanted: Iterable[str]) -> list[Distribution]:
    """The installed distributions that these requirements need, by name. Raises CannotPackage."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(_parsed(one), "asked for") for one in wanted]
    while waiting:
        requirement, reason = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in _OF_SPARK:
            continue
        one = found.setdefault(name, _installed(requirement, reason))
        # An extra adds to what is needed without: the empty one stands for that.
        for extra in {"", *requirement.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [
                    (needed, f"needed by {one.name}")
                    for needed in map(Requirement, one.requires or ())
                    if needed.marker is None or needed.marker.evaluate({"extra": extra})
                ]
    return [found[name] for name in sorted(found)]


def _parsed(text: str) -> Requirement:
    try:
        return Requirement(text)
    except InvalidRequirement as error:
        raise CannotPackage(f"{text!r} is not the name of a package: {error}") from None


def _installed(requirement: Requirement, reason: str) -> Distribution:
    try:
        one = distribution(requirement.name)
    except PackageNotFoundError:
        raise CannotPackage(
            f"{requirement.name} ({reason}) is not installed here; the archive is made of what this Python has,"
            f" {sys.executable}"
        ) from None
    if not requirement.specifier.contains(one.version, prereleases=True):
        raise CannotPackage(f"{requirement} is {reason}, and {one.version} is installed here")
    return one


def _add_distributions(archive: tarfile.TarFile, distributions: Iterable[Distribution], report: Report) -> None:
    sources: list[Path] = []
    for one in distributions:
        report(f"{one.name} {one.version}")
        source = _editable_source(one)
        if source is not None:
            sources.append(source)
            continue
        if one.files is None:
            raise CannotPackage(f"{one.name} has no list of its files; install it with pip")
        for file in one.files:
            # What lies outside is scripts, which have this environment's path in them.
            if ".." not in file.parts:
                _add_file(archive, Path(str(one.locate_file(file))), _PACKAGES / file)
    if sources:
        with _wheels(sources) as wheels:
            for wheel in wheels:
                _add_wheel(archive, wheel)


def _editable_source(one: Distribution) -> Path | None:
    """The directory an editable distribution lives in; None for one that is installed as a whole."""
    origin = json.loads(one.read_text("direct_url.json") or "{}")
    if not origin.get("dir_info", {}).get("editable", False):
        return None
    return Path(url2pathname(urlsplit(origin["url"]).path))


@contextmanager
def _wheels(sources: Sequence[Path]) -> Iterator[list[Path]]:
    """Wheels of these directories. Where what builds them is installed, as in a checkout, no index is asked for it."""
    with tempfile.TemporaryDirectory(prefix="cursus-wheels-") as directory:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if importlib.util.find_spec("hatchling") is not None:
            command.append("--no-build-isolation")
        command += ["--wheel-dir", directory, *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotPackage(f"what is installed from {sources[0]} and beside it cannot be built:\n{done.stderr}")
        yield sorted(Path(directory).iterdir())


def _add_wheel(archive: tarfile.TarFile, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        for member in opened.infolist():
            if not member.is_dir():
                _add_bytes(archive, _PACKAGES / member.filename, opened.read(member))


def add_python(archive: tarfile.TarFile) -> None:
    base = Path(sys.base_prefix)
    # In a virtual environment the first is the base's already, the second has to be asked for.
    libraries = {
        Path(sysconfig.get_path("stdlib")),
        Path(sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})),
    }
    executable = Path(sys.base_exec_prefix, "bin", f"python{_VERSION}")
    if not executable.exists() or not all(one.is_relative_to(base) for one in libraries):
        raise CannotPackage(f"Python's own files are not where they are expected, below {base}")
    into = PurePosixPath("python")
    _add_file(archive, executable.resolve(), into / "bin" / executable.name)
    for library in sorted(libraries):
        for file in _standard_files(library):
            _add_file(archive, file, into / file.relative_to(base).as_posix())
    shared, directory = sysconfig.get_config_vars("INSTSONAME", "LIBDIR")
    if shared and directory and Path(directory, shared).exists():
        _add_file(archive, Path(directory, shared).resolve(), into / "lib" / str(shared))


def _standard_files(library: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(library):
        names[:] = sorted(name for name in names if name not in _LEFT_OUT and not name.startswith("config-"))
        yield from (Path(directory, file) for file in sorted(files))


def _add_file(archive: tarfile.TarFile, file: Path, name: PurePosixPath) -> None:
    info = archive.gettarinfo(str(file), str(name))
    # Of nobody in particular: who unpacks it may be root.
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if info.issym() or info.islnk():
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", file.stat().st_size
    with file.open("rb") as content:
        archive.addfile(info, content)


def _add_text(archive: tarfile.TarFile, name: PurePosixPath, text: str) -> None:
    _add_bytes(archive, name, text.encode(), 0o755)


def _add_bytes(archive: tarfile.TarFile, name: PurePosixPath, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(str(name))
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))
