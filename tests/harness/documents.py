"""Documents as tests read them: their sections, and what they tell people to paste."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def section(path: str, title: str) -> str:
    """The text below a heading, up to the next one of its rank."""
    text = (ROOT / path).read_text(encoding="utf-8")
    rank = title.split(" ")[0]
    begin = text.index(f"\n{title}\n") + len(title) + 2
    end = text.find(f"\n{rank} ", begin)
    return text[begin : end if end > 0 else len(text)]


def blocks(text: str, language: str) -> list[str]:
    return [found[2] for found in _BLOCK.finditer(text) if found[1] == language]
