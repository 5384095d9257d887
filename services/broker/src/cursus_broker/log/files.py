"""The log's only door to the file system.

Everything in this package that touches a file does it through `Files`, so that a test can stand between the log and the
disk: `forgetful.py` loses what was not synced, tests fill the disk or break it. Paths are plain strings and descriptors
plain integers, because the append path runs through here once per batch.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol


class Files(Protocol):
    """What the log asks of a file system. Every method may raise OSError and, but for the two noted, may block."""

    def open(self, path: str, *, writable: bool, create: bool = False) -> int:
        """A descriptor; writes go to the end of the file. `create` insists that the file is new."""

    def close(self, descriptor: int) -> None: ...

    def writev(self, descriptor: int, buffers: Sequence[bytes]) -> int:
        """Append the buffers with one call into the page cache; answers how many bytes were taken, maybe fewer."""

    def pread(self, descriptor: int, buffer: memoryview, position: int) -> int:
        """Fill the buffer from `position`; fewer bytes than asked for only at the end of the file."""

    def pread_cached(self, descriptor: int, buffer: memoryview, position: int) -> int:
        """Like `pread`, but never waits for the disk: answers what is in memory, 0 if that is nothing."""

    def advise_sequential(self, descriptor: int) -> None:
        """Tell the kernel that the file is read from front to back, so that it reads further ahead."""

    def advise_once(self, descriptor: int) -> None:
        """Tell the kernel that what is read here will not be wanted again soon."""

    def truncate(self, descriptor: int, size: int) -> None: ...

    def fdatasync(self, descriptor: int) -> None:
        """The file's bytes and size survive power loss; its name does so only after `sync_directory`."""

    def size(self, path: str) -> int: ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Names in the directory, in no order."""

    def rename(self, source: str, target: str) -> None:
        """Replaces `target` in one step. Not durable before `sync_directory`."""

    def unlink(self, path: str) -> None: ...

    def make_directory(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Names created, renamed and removed in the directory survive power loss."""

    def sync_file_system(self, path: str) -> None:
        """Everything written to the file system that holds `path`, by anybody, survives power loss. Raises OSError also
        where the operating system cannot do this and report failures."""


class RealFiles:
    """The operating system's files."""

    def open(self, path: str, *, writable: bool, create: bool = False) -> int:
        flags = os.O_CLOEXEC | (os.O_RDWR | os.O_APPEND if writable else os.O_RDONLY)
        return os.open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0), 0o640)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def writev(self, descriptor: int, buffers: Sequence[bytes]) -> int:
        return os.writev(descriptor, buffers)

    def pread(self, descriptor: int, buffer: memoryview, position: int) -> int:
        filled = 0
        while filled < len(buffer):
            count = os.preadv(descriptor, [buffer[filled:]], position + filled)
            if count == 0:
                break
            filled += count
        return filled

    def pread_cached(self, descriptor: int, buffer: memoryview, position: int) -> int:
        try:
            return os.preadv(descriptor, [buffer], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            # EOPNOTSUPP on file systems without it; a real read error shows again, and is reported, in `pread`.
            return 0

    def advise_sequential(self, descriptor: int) -> None:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def advise_once(self, descriptor: int) -> None:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_NOREUSE)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list(self, directory: str) -> list[str]:
        return os.listdir(directory)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_directory(self, path: str) -> None:
        os.mkdir(path, 0o750)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_file_system(self, path: str) -> None:
        if _syncfs is None:
            raise OSError(errno.ENOSYS, "syncfs is not available, or does not report write errors")
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if _syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), "syncfs failed")
        finally:
            os.close(descriptor)


def _find_syncfs() -> Callable[[int], int] | None:
    """The C library's syncfs, which Python does not offer. Before Linux 5.8 it kept silent about write errors."""
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or release is None or (int(release[1]), int(release[2])) < (5, 8):
        return None
    syncfs: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return syncfs


_syncfs: Final = _find_syncfs()


def page_buffer(size: int) -> memoryview:
    """A buffer to read into that begins at a page. The kernel copies into it about five times as fast as into a
    bytearray, which begins 16 bytes into one (measured: 10 against 2 GiB/s)."""
    return memoryview(mmap.mmap(-1, max(size, 1)))[:size]


class ReadBuffers:
    """A reusable read buffer for every thread that asks. What `take` answers is overwritten by the thread's next read:
    copy out what is needed before."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._of_thread = threading.local()

    def take(self, size: int) -> memoryview:
        if size > self._size:
            return page_buffer(size)
        buffer: memoryview | None = getattr(self._of_thread, "buffer", None)
        if buffer is None:
            buffer = self._of_thread.buffer = page_buffer(self._size)
        return buffer[:size]


def read_file(files: Files, path: str, max_bytes: int) -> bytes:
    """The whole of a small file. Raises OSError, also when the file is larger than `max_bytes`."""
    descriptor = files.open(path, writable=False)
    try:
        size = files.size(path)
        if size > max_bytes:
            raise OSError(f"{os.path.basename(path)} has {size} bytes, at most {max_bytes} were expected")
        buffer = bytearray(size)
        return bytes(buffer[: files.pread(descriptor, memoryview(buffer), 0)])
    finally:
        files.close(descriptor)


def replace_file(files: Files, path: str, content: bytes, *, temporary: str) -> None:
    """Put `content` at `path` so that power loss leaves the old or the new content and nothing between. The directory
    is not synced: callers that need the new name to last do that."""
    if files.exists(temporary):
        files.unlink(temporary)
    descriptor = files.open(temporary, writable=True, create=True)
    try:
        if files.writev(descriptor, (content,)) != len(content):
            raise OSError(errno.ENOSPC, f"only a part of {os.path.basename(path)} could be written")
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(temporary, path)
