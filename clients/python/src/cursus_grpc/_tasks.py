"""Tasks that run as long as their client, and what becomes of them when nobody closed it.

An event loop holds its tasks weakly: one that waits for something nobody else holds may be collected in the middle of
its work. So they are held here, until they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

_running: Final[set[asyncio.Task[Any]]] = set()


def start(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Run it on the running loop until it ends or is cancelled."""
    task = asyncio.get_running_loop().create_task(work, name=name)
    hold(task)
    return task


def hold(task: asyncio.Task[Any]) -> None:
    _running.add(task)
    task.add_done_callback(_running.discard)


def finish_soon(loop: asyncio.AbstractEventLoop, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Let a client that was dropped without being closed end on its loop, if that still runs. For any thread."""
    if loop.is_running():
        loop.call_soon_threadsafe(lambda: hold(loop.create_task(close(), name="cursus-finish")))


async def end_all() -> None:
    """Cancel everything that the running loop does, and wait until it has ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
