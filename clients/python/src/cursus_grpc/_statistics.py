"""Telling an application now and then how its client is doing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

Statistics = TypeVar("Statistics")


async def tell_now_and_then(
    look: Callable[[], Statistics], callback: Callable[[Statistics], object], interval_s: float
) -> None:
    """Runs until cancelled. A callback that fails is the application's bug: reported as asyncio reports one."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            callback(look())
        except Exception as error:
            message = f"statistics callback {callback!r} failed"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
