"""Programs that are not Python's: in the checkout, on PATH, or in the cache outside of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tests.harness.containers import cache_directory

ROOT: Final = Path(__file__).parents[2]


def find_tool(name: str) -> str | None:
    """The program's path; None if there is none."""
    places = [ROOT / "tools" / "bin", cache_directory() / "bin"]
    return next((str(place / name) for place in places if (place / name).exists()), None) or shutil.which(name)
