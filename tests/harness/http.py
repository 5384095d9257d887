"""What a service answers over plain HTTP: health and metrics."""

from __future__ import annotations

import asyncio
import urllib.request
from urllib.error import HTTPError


async def get(address: str, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as response:
                return response.status, response.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()

    return await asyncio.to_thread(ask)


def samples(exposition: str) -> dict[str, float]:
    """Sample name with labels, as written, to value."""
    lines = [line for line in exposition.splitlines() if line and not line.startswith("#")]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
