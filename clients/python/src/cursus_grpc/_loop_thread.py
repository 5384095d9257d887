"""The event loop behind the blocking faces: one for all of them, in a thread that lives as long as the process.

It is not stopped with its last user: the next one would have to start it again.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from cursus_grpc import _tasks

T = TypeVar("T")

_EXIT_S: Final = 2.0


class Wakeup:
    """Like `threading.Event` for one thread that waits, which it wakes in half the time. Waiting takes the signal back.

    >>> wakeup = Wakeup()
    >>> wakeup.set()
    >>> wakeup.wait(0), wakeup.wait(0)
    (True, False)
    """

    __slots__ = ("_unset",)

    def __init__(self) -> None:
        self._unset = threading.Lock()  # held while the signal is not given
        self._unset.acquire()

    def set(self) -> None:
        """For any thread."""
        with contextlib.suppress(RuntimeError):  # it was given already
            self._unset.release()

    def clear(self) -> None:
        self._unset.acquire(blocking=False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """False if the timeout came first."""
        return self._unset.acquire(timeout=-1 if timeout_s is None else timeout_s)


class LoopThread:
    """An event loop in a thread of its own. Use `shared`."""

    _shared: LoopThread | None = None
    _sharing = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cursus-loop", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @classmethod
    def shared(cls) -> LoopThread:
        """The process's own, started for its first user; a forked child gets another."""
        with cls._sharing:
            if cls._shared is None or cls._shared._pid != os.getpid():
                cls._shared = cls()
            return cls._shared

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop and wait for its end. Interrupting the wait cancels it.

        Raises RuntimeError on the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this call blocks: it must not be made from a callback on the client's own thread")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def make(self, factory: Callable[[], T]) -> T:
        """Call the factory on the loop and answer what it made."""

        async def call() -> T:
            return factory()

        return self.run(call())

    def finish_soon(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Let a client that was dropped without being closed end. For any thread, at any time."""
        if self._pid == os.getpid():
            _tasks.finish_soon(self._loop, close)

    def _stop(self) -> None:
        if self._pid != os.getpid():
            return
        # What clients that were not closed still do: it would be destroyed in the middle, and complain.
        ended = asyncio.run_coroutine_threadsafe(_tasks.end_all(), self._loop)
        with contextlib.suppress(TimeoutError):
            ended.result(_EXIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_EXIT_S)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
