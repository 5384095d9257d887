"""docs/logs.md against the log calls in the code of the services."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "logs.md"
SECTIONS: Final = {"Both": "services/common", "Broker": "services/broker", "Gateway": "services/gateway"}

_ROW: Final = re.compile(r"\| `([\w.]+)` \| (debug|info|warning|error) \| \S.*\.(?: \S.*)? \|")
_LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}


@dataclass(frozen=True)
class LogCall:
    event: str | None
    """None if it is not a plain string: then nobody can look it up."""
    level: str
    place: str


def log_calls(source: str, file: str) -> Iterator[LogCall]:
    """Calls of a method named after a level on `log`, `_log` or an attribute called so."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS):
            continue
        owner = node.func.value
        name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
        if name in ("log", "_log"):
            first = node.args[0] if node.args else None
            event = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
            yield LogCall(event, _LEVELS[node.func.attr], f"{file}:{node.lineno}")


def calls_of(section: str) -> list[LogCall]:
    files = sorted((ROOT / SECTIONS[section] / "src").rglob("*.py"))
    found = [one for path in files for one in log_calls(path.read_text(), str(path.relative_to(ROOT)))]
    assert found, f"no log call was found below {SECTIONS[section]}"
    return found


def documented(section: str) -> dict[str, str]:
    """Levels by event."""
    text = PAGE.read_text().split(f"## {section}\n")[1].split("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    bad = [row for row in rows if not _ROW.fullmatch(row)]
    assert not bad, f"a row is `event`, level and a sentence that ends with a stop: {bad}"
    names = [row.split("`")[1] for row in rows]
    assert len(names) == len(set(names)), f"an event has two rows in {section}"
    return {match[1]: match[2] for row in rows if (match := _ROW.fullmatch(row))}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_of_log_events_has_what_is_logged_and_nothing_else(section: str) -> None:
    calls, page = calls_of(section), documented(section)
    logged = {one.event: one for one in calls}
    unnamed = [one.place for one in calls if one.event is None]
    assert not unnamed, f"the event of a log call is a plain string, its first argument: {unnamed}"
    missing = [f"| `{one.event}` | {one.level} | … |   ({one.place})" for one in calls if one.event not in page]
    assert not missing, f"add to section {section} of docs/logs.md:\n" + "\n".join(missing)
    gone = sorted(page.keys() - logged.keys())
    assert not gone, f"no code logs these any more, take them out of section {section} of docs/logs.md: {gone}"
    differ = [f"{one.place}: {one.event} is {one.level}" for one in calls if page[str(one.event)] != one.level]
    assert not differ, "docs/logs.md says another level:\n" + "\n".join(differ)


def test_a_log_call_is_recognised_however_it_is_written() -> None:
    source = 'log.info("a.b", x=1)\nself._log.exception(\n    "c.d",\n)\nmath.log(2)\n_log.warning(f"e{1}")\n'
    assert [(one.event, one.level) for one in log_calls(source, "module.py")] == [
        ("a.b", "info"),
        ("c.d", "error"),
        (None, "warning"),
    ]
