"""A directory on any file system that pyarrow reaches, with the few operations that lakes and checkpoints need.

Locally everything that is told to be there survives power loss: files and the directories that name them are synced.
Elsewhere a file is there when its stream is closed, as object stores have it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Final

import pyarrow as pa
from pyarrow import fs

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

_TMP: Final = ".tmp"


class Directory:
    """Names are relative, with slashes. Goes to executors as its location alone."""

    def __init__(self, location: str) -> None:
        """A path, made absolute, or a URI such as `hdfs://…`. Nothing is looked at yet."""
        self.location = location if "://" in location else str(Path(location).absolute())

    def __reduce__(self) -> tuple[type[Directory], tuple[str]]:
        return Directory, (self.location,)

    @cached_property
    def _root(self) -> tuple[fs.FileSystem, str]:
        if "://" not in self.location:
            return fs.LocalFileSystem(), self.location
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(self.location)
        return found

    @property
    def file_system(self) -> fs.FileSystem:
        return self._root[0]

    @property
    def local(self) -> Path | None:
        """The directory, if it is one of this machine."""
        return Path(self._root[1]) if isinstance(self.file_system, fs.LocalFileSystem) else None

    def path(self, name: str) -> str:
        """As the file system calls it."""
        return str(PurePosixPath(self._root[1]) / name)

    def exists(self, name: str) -> bool:
        return bool(self.file_system.get_file_info(self.path(name)).type != fs.FileType.NotFound)

    def list(self, name: str, *, deep: bool = False) -> list[fs.FileInfo]:
        """What is in a directory, sorted by path; nothing if there is no such directory."""
        selector = fs.FileSelector(self.path(name), allow_not_found=True, recursive=deep)
        return sorted(self.file_system.get_file_info(selector), key=lambda one: str(one.path))

    def read_text(self, name: str) -> str | None:
        """None if there is no such file."""
        try:
            with self.file_system.open_input_stream(self.path(name)) as stream:
                return bytes(stream.read()).decode()
        except FileNotFoundError:
            return None

    def write_text(self, name: str, text: str) -> None:
        """Whole or not at all."""
        with self.create(f"{name}{_TMP}") as stream:
            stream.write(text.encode())
        self.move(f"{name}{_TMP}", name)

    @contextmanager
    def create(self, name: str) -> Iterator[pa.NativeFile]:
        """A new file, synced when it is left without an exception."""
        self.make(str(PurePosixPath(name).parent))
        with self.file_system.open_output_stream(self.path(name)) as stream:
            yield stream
        if self.local is not None:
            sync(Path(self.path(name)))

    def make(self, name: str) -> None:
        """A directory and those above it."""
        if self.local is None:
            self.file_system.create_dir(self.path(name), recursive=True)
            return
        path = Path(self.path(name))
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for one in missing:
            sync(one.parent)

    def move(self, old: str, new: str) -> None:
        """Give a file the name it is to be found under. Atomic locally and where the file system renames; an object
        store copies, and the copy appears whole."""
        self.make(str(PurePosixPath(new).parent))
        if self.local is None:
            self.file_system.move(self.path(old), self.path(new))
            return
        Path(self.path(old)).replace(self.path(new))
        sync(Path(self.path(new)).parent)

    def delete(self, name: str) -> None:
        """A directory with all that is in it, if it is there."""
        if self.exists(name):
            self.file_system.delete_dir(self.path(name))

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """Only one process of this machine is in here at a time. Raises BlockingIOError if another is and `wait` is
        off. Does nothing on other file systems, which have no locks."""
        if self.local is None or fcntl is None:
            yield
            return
        self.make(str(PurePosixPath(name).parent))
        descriptor = os.open(self.path(name), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(descriptor)


def sync(path: Path) -> None:
    """Returns when a file or directory survives power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync directories and need not.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
