"""Open descriptors, shared by all logs of a broker and bounded in number.

A broker may hold tens of thousands of segments; the operating system allows a process far fewer open files. A segment
therefore borrows a descriptor for the moment it needs one. Idle descriptors are kept, least recently used first to go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from cursus_broker.log.files import Files


class Handle:
    """A borrowed descriptor. Stays open until it is given back, whatever happens to its file meanwhile."""

    __slots__ = ("advised", "borrowers", "descriptor", "forgotten", "path", "writable")

    def __init__(self, path: str, descriptor: int, writable: bool) -> None:
        self.path = path
        self.descriptor = descriptor
        self.writable = writable
        self.borrowers = 1
        self.forgotten = False
        self.advised = False


class DescriptorPool:
    """Descriptors by path. Safe to use from any thread.

    The bound is exceeded only while more descriptors than that are in use at one moment, that is by no more than the
    number of threads.
    """

    def __init__(self, files: Files, limit: int) -> None:
        self._files = files
        self._limit = limit
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, Handle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._handles)

    def acquire(self, path: str, *, writable: bool = False) -> Handle:
        """Borrow a descriptor, opening the file if need be. Give it back with `release`. Raises OSError."""
        handle = self.acquire_open(path, writable=writable)
        if handle is not None:
            return handle
        # Opened outside the lock: a slow disk must not hold up those whose files are open.
        opened = Handle(path, self._files.open(path, writable=writable), writable)
        with self._lock:
            other = self._handles.get(path)
            if other is None:
                self._handles[path] = opened
                closing = self._surplus()
            elif other.writable or not writable:
                other.borrowers += 1
                closing = [opened]
                opened = other
            else:
                closing = self._drop(other)
                self._handles[path] = opened
        self._close(closing)
        return opened

    def acquire_open(self, path: str, *, writable: bool = False) -> Handle | None:
        """Borrow a descriptor only if the file is open already: never touches the file system."""
        with self._lock:
            handle = self._handles.get(path)
            if handle is None or (writable and not handle.writable):
                return None
            handle.borrowers += 1
            self._handles.move_to_end(path)
            return handle

    def release(self, handle: Handle) -> None:
        with self._lock:
            handle.borrowers -= 1
            closing = [handle] if handle.forgotten and handle.borrowers == 0 else self._surplus()
        if closing:
            self._close(closing)

    @contextmanager
    def lease(self, path: str, *, writable: bool = False) -> Iterator[Handle]:
        """`acquire` and `release` around a block."""
        handle = self.acquire(path, writable=writable)
        try:
            yield handle
        finally:
            self.release(handle)

    def forget(self, path: str) -> None:
        """Close the descriptor of a file that is about to go, or whose name another file will take. Whoever still
        uses it keeps it until the release."""
        with self._lock:
            handle = self._handles.get(path)
            closing = [] if handle is None else self._drop(handle)
        self._close(closing)

    def close(self) -> None:
        """Forget every descriptor."""
        for path in list(self._handles):
            self.forget(path)

    def _drop(self, handle: Handle) -> list[Handle]:
        del self._handles[handle.path]
        handle.forgotten = True
        return [handle] if handle.borrowers == 0 else []

    def _surplus(self) -> list[Handle]:
        surplus = len(self._handles) - self._limit
        if surplus <= 0:
            return []
        idle: list[Handle] = []
        for handle in self._handles.values():
            if handle.borrowers == 0:
                idle.append(handle)
                if len(idle) == surplus:
                    break
        for handle in idle:
            del self._handles[handle.path]
            handle.forgotten = True
        return idle

    def _close(self, handles: list[Handle]) -> None:
        for handle in handles:
            self._files.close(handle.descriptor)
