"""A test double for power loss: real files in a real directory, and a memory of what of them was synced.

`ForgetfulFiles` passes every call on to the operating system. Beside that it keeps, for every file, the content at its
last sync and, for every directory, the names at its last sync. `power_loss` rewrites the directory to something a disk
may hold after power was lost: what was synced is there; what was not is there, missing, torn, filled with zeros or
garbage, or there with holes; names that were created, renamed or removed without a sync of their directory are so, or
not. With `cut_power_after` the power fails in the middle of an operation: every later call raises `PowerLost`.
`refuse_syncs` lets syncs fail as a failing disk does: what they were to write stays in memory, counts as clean, and is
not on the disk, however often it is synced again.

Contents are kept in memory: meant for tests with a few megabytes. Not used by a broker.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cursus_broker.log.files import RealFiles

_SECTOR_BYTES: Final = 512
"""Disks write sectors whole; a hole in what was unsynced begins and ends at one."""


class PowerLost(OSError):
    """The power is off: nothing can be read or written until `power_loss` has decided what is left."""


class _File:
    def __init__(self, content: bytes = b"") -> None:
        self.synced = content
        self.last_content: bytes | None = None  # kept when the name goes, for a disk on which it did not
        self.never_written: list[tuple[int, int]] = []  # what a refused sync left behind: from, to


class _Directory:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Directory] = {}
        self.synced_names: dict[str, _File | _Directory] = {}
        self.pending: list[_Change] = []

    def change(self, change: _Change) -> None:
        change(self.names)
        self.pending.append(change)


_Change = Callable[[dict[str, "_File | _Directory"]], None]


class ForgetfulFiles(RealFiles):
    """See the module. Everything under `root` counts as synced at first."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._lock = threading.RLock()
        self._open: dict[int, _File] = {}
        self._operations_left: int | None = None
        self._syncs_left: int | None = None
        self.operations = 0
        self.refused_syncs = 0
        self._tree = self._adopt(self._root)

    def cut_power_after(self, operations: int | None) -> None:
        """Let this many more changes and syncs succeed, then none. None: power stays on."""
        with self._lock:
            self._operations_left = operations

    def refuse_syncs(self, after: int | None) -> None:
        """Let this many more syncs of files succeed, then none. None: they do."""
        with self._lock:
            self._syncs_left = after

    def power_loss(self, rng: random.Random) -> None:
        """Make the directory what a disk may hold now, and switch the power on again. No descriptor may be in use."""
        with self._lock:
            self._operations_left = self._syncs_left = None
            self._open.clear()
            survived = self._survivors(self._tree, self._root, rng)
            for name in os.listdir(self._root):
                path = f"{self._root}/{name}"
                shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
            _write_tree(self._root, survived)
            self._tree = self._adopt(self._root)

    # Changes.

    def open(self, path: str, *, writable: bool, create: bool = False) -> int:
        with self._lock:
            if create:
                self._spend()
            self._require_power()
            descriptor = super().open(path, writable=writable, create=create)
            parent, name = self._parent(path)
            if create:
                file = _File()
                parent.change(lambda names: names.update({name: file}))
            node = parent.names[name]
            assert isinstance(node, _File)
            self._open[descriptor] = node
            return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._open.pop(descriptor, None)
            super().close(descriptor)

    def writev(self, descriptor: int, buffers: Sequence[bytes]) -> int:
        with self._lock:
            self._spend()
            return super().writev(descriptor, buffers)

    def truncate(self, descriptor: int, size: int) -> None:
        with self._lock:
            self._spend()
            super().truncate(descriptor, size)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._spend()
            parent, old = self._parent(source)
            _, new = self._parent(target)
            node = parent.names.get(old)
            if node is not None:
                self._keep_content(target)
            super().rename(source, target)
            assert node is not None

            def move(names: dict[str, _File | _Directory]) -> None:
                names.pop(old, None)
                names[new] = node

            parent.change(move)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._spend()
            self._keep_content(path)
            super().unlink(path)
            self._drop(path)

    def make_directory(self, path: str) -> None:
        with self._lock:
            self._spend()
            super().make_directory(path)
            parent, name = self._parent(path)
            directory = _Directory()
            parent.change(lambda names: names.update({name: directory}))

    def remove_directory(self, path: str) -> None:
        with self._lock:
            self._spend()
            super().remove_directory(path)
            self._drop(path)

    # Syncs. The operating system is not asked to: the tests would only wait for a disk they do not pull the plug of.

    def fdatasync(self, descriptor: int) -> None:
        with self._lock:
            self._spend()
            file, content = self._open[descriptor], os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            if self._syncs_left is not None:
                if self._syncs_left <= 0:
                    self.refused_syncs += 1
                    if len(content) > len(file.synced):
                        file.never_written.append((len(file.synced), len(content)))
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                self._syncs_left -= 1
            on_disk = bytearray(content)
            for begin, end in file.never_written:
                on_disk[begin:end] = bytes(len(on_disk[begin:end]))
            file.synced = bytes(on_disk)

    def sync_directory(self, path: str) -> None:
        with self._lock:
            self._spend()
            directory = self._directory(path)
            directory.synced_names = dict(directory.names)
            directory.pending.clear()

    def sync_file_system(self, path: str) -> None:
        with self._lock:
            self._spend()
            if self._syncs_left is not None:
                raise OSError(errno.EIO, "somebody's write failed")  # each file is asked for itself
            self._sync_tree(self._directory(path), path)

    # Reading needs power too.

    def pread(self, descriptor: int, buffer: memoryview, position: int) -> int:
        self._require_power()
        return super().pread(descriptor, buffer, position)

    def list(self, directory: str) -> list[str]:
        self._require_power()
        return super().list(directory)

    def _spend(self) -> None:
        self._require_power()
        self.operations += 1
        if self._operations_left is not None:
            self._operations_left -= 1

    def _require_power(self) -> None:
        if self._operations_left is not None and self._operations_left <= 0:
            raise PowerLost("the power is off")

    def _parent(self, path: str) -> tuple[_Directory, str]:
        directory, name = os.path.split(path)
        return self._directory(directory), name

    def _directory(self, path: str) -> _Directory:
        node = self._tree
        relative = os.path.relpath(path, self._root)
        for name in [] if relative == "." else relative.split(os.sep):
            child = node.names[name]
            assert isinstance(child, _Directory)
            node = child
        return node

    def _sync_tree(self, directory: _Directory, path: str) -> None:
        directory.synced_names = dict(directory.names)
        directory.pending.clear()
        for name, node in directory.names.items():
            if isinstance(node, _Directory):
                self._sync_tree(node, f"{path}/{name}")
            else:
                node.synced = Path(f"{path}/{name}").read_bytes()

    def _drop(self, path: str) -> None:
        parent, name = self._parent(path)

        def drop(names: dict[str, _File | _Directory]) -> None:
            names.pop(name, None)

        parent.change(drop)

    def _keep_content(self, path: str) -> None:
        parent, name = self._parent(path)
        node = parent.names.get(name)
        if isinstance(node, _File):
            node.last_content = Path(path).read_bytes()

    def _adopt(self, path: str) -> _Directory:
        directory = _Directory()
        for name in os.listdir(path):
            child = f"{path}/{name}"
            directory.names[name] = self._adopt(child) if os.path.isdir(child) else _File(Path(child).read_bytes())
        directory.synced_names = dict(directory.names)
        return directory

    def _survivors(self, directory: _Directory, path: str, rng: random.Random) -> dict[str, object]:
        """What is left of a directory: contents by name, directories as dictionaries."""
        names = dict(directory.synced_names)
        # A journal keeps the order of changes, so that a beginning of them survives; not every file system has one.
        if rng.random() < 0.5:
            kept = directory.pending[: rng.randint(0, len(directory.pending))]
        else:
            kept = [change for change in directory.pending if rng.random() < 0.5]
        for change in kept:
            change(names)
        paths = {id(node): f"{path}/{name}" for name, node in directory.names.items()}
        survived: dict[str, object] = {}
        for name, node in names.items():
            where = paths.get(id(node))
            if isinstance(node, _Directory):
                survived[name] = self._survivors(node, where or "", rng)
            else:
                content = Path(where).read_bytes() if where is not None else node.last_content
                survived[name] = _survive(node.synced, node.synced if content is None else content, rng)
        return survived


def _survive(synced: bytes, written: bytes, rng: random.Random) -> bytes:
    """What a disk may hold of a file whose content was `synced` once and `written` since."""
    if written == synced:
        return synced
    if not written.startswith(synced):
        return rng.choice((synced, written))  # cut back without a sync: done or not
    tail = written[len(synced) :]
    reached = rng.randint(0, len(tail))
    lost_bytes = len(tail) - reached
    match rng.randrange(6):
        case 0:
            return synced
        case 1:
            return written
        case 2:
            return synced + tail[:reached]
        case 3:
            return synced + tail[:reached] + bytes(lost_bytes)
        case 4:
            return synced + tail[:reached] + rng.randbytes(lost_bytes)
        case _:
            holed = bytearray(written)
            for sector in range(len(synced) // _SECTOR_BYTES, len(written) // _SECTOR_BYTES + 1):
                begin, end = max(sector * _SECTOR_BYTES, len(synced)), min((sector + 1) * _SECTOR_BYTES, len(written))
                if begin < end and rng.random() < 0.3:
                    holed[begin:end] = bytes(end - begin)
            return bytes(holed)


def _write_tree(path: str, tree: dict[str, object]) -> None:
    for name, content in tree.items():
        child = f"{path}/{name}"
        if isinstance(content, dict):
            os.mkdir(child)
            _write_tree(child, content)
        else:
            assert isinstance(content, bytes)
            Path(child).write_bytes(content)
