"""The data directory: made if missing, and locked for one broker at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cursus_broker.errors import StorageFailed

LOCK_NAME = "broker.lock"


@contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Hold the directory. The kernel lets go of the lock when the process dies, so a stale file blocks nobody; the
    number inside is for people. Raises StorageFailed if another broker is on the directory, or it cannot be used.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageFailed(f"cannot use data directory {data_dir}: {error.strerror}", directory=data_dir) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            raise StorageFailed(
                f"data directory {data_dir} is in use by another broker, process {owner}", directory=data_dir, pid=owner
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
