"""The services run on uvloop where it is installed, and on asyncio's own loop elsewhere: so do these tests, on both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        return factories
    return {**factories, "uvloop": uvloop.new_event_loop}
