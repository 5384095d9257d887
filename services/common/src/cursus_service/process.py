"""The life of a service process: its loop, its signals, its limits, and the line that says it is ready.

`run()` owns the process from `main` on. What the service does between start and stop is a coroutine it is given.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TextIO

if sys.platform != "win32":
    import resource

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_YOUNG_GENERATION_THRESHOLD: Final = 50_000

_MIB: Final = 1024 * 1024
# From malloc.h: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD.
_HEAP_SETTINGS: Final = ((-1, 32 * _MIB), (-2, 4 * _MIB), (-3, 8 * _MIB))


def run(service: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Runs `service(stop)` to its end on uvloop where that is installed, on asyncio's own loop elsewhere.

    The first SIGTERM or SIGINT sets `stop`; the service then finishes what it accepted and returns. A second one ends
    the process at once with the status a shell gives for that signal: an operator who asks twice does not want to wait.
    Exceptions pass through to the caller.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_with_signals(service))


async def _with_signals(service: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def received(number: int) -> None:
        if stop.is_set():
            os._exit(128 + number)
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, received, number)
    try:
        await service(stop)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """None leaves the choice to asyncio."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def announce_ready(*, stream: TextIO | None = None, **addresses: tuple[str, int]) -> None:
    """Prints `ready grpc=HOST:PORT health=HOST:PORT …` in the order given, flushed: scripts that started the
    process on port 0 wait for this line. A reader that has gone away is no reason to fail."""
    target = sys.stdout if stream is None else stream
    parts = [f"{name}={format_address(host, port)}" for name, (host, port) in addresses.items()]
    try:
        target.write(" ".join(["ready", *parts]) + "\n")
        target.flush()
    except (BrokenPipeError, ValueError):
        return


def format_address(host: str, port: int) -> str:
    """HOST:PORT, with the brackets an IPv6 host needs to be told from its port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def settle_memory() -> None:
    """Call once the service is up: what lives now lives as long as the process, so the collector need not look at it
    again, and the many short-lived objects of a busy service should not trigger a collection every 700 of them."""
    _keep_freed_heap()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_GENERATION_THRESHOLD, 20, 50)


def _keep_freed_heap() -> None:
    """Let glibc keep some memory it would give back to the kernel. Buffers of tens of kilobytes to some megabytes come
    and go with every message; given back, each costs its page faults anew (25 to 39 µs a batch of 54 KB against 8 to
    13). Larger ones are still mapped by themselves and given back at once, so what is kept is bounded. Elsewhere
    nothing happens."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    for parameter, value in _HEAP_SETTINGS:
        mallopt(ctypes.c_int(parameter), ctypes.c_int(value))


def raise_open_file_limit(wanted: int) -> int:
    """Raises the soft limit of open files to `wanted` as far as the hard limit allows, and returns what holds now.
    The limit is never lowered. A return of less than `wanted` is for the caller to log."""
    if sys.platform == "win32":
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return wanted if soft == unlimited else soft
    target = wanted if hard == unlimited else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (ValueError, OSError):
        # macOS refuses values above OPEN_MAX although its hard limit claims to be infinite.
        return soft
    return target
