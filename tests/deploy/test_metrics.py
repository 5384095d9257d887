"""docs/metrics.md against what both services export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.harness.gateway import running_stack
from tests.harness.http import get

PAGE: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
_ROW: Final = re.compile(r"\| `(\w+)` \| (\w+) \| [\w, ]*\| \S.*\|")


def documented(service: str) -> dict[str, str]:
    """Types by name, of the rows in the section of a service."""
    section = PAGE.read_text().split(f"## {service}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    found = [_ROW.fullmatch(row) for row in rows]
    assert all(found), [row for row, match in zip(rows, found, strict=True) if not match]
    names = [match[1] for match in found if match]
    assert len(names) == len(set(names)), "a metric has two rows"
    return {match[1]: match[2] for match in found if match}


def exported(exposition: str) -> dict[str, str]:
    lines = [line.split() for line in exposition.splitlines() if line.startswith("# TYPE ")]
    return {name: kind for _, _, name, kind in lines if not name.endswith("_created")}


@pytest.mark.parametrize("service", ["Broker", "Gateway"])
async def test_the_page_of_metrics_has_what_is_exported_and_nothing_else(tmp_path: Path, service: str) -> None:
    async with running_stack(tmp_path) as stack:
        process = stack.broker if service == "Broker" else stack.gateway
        _, exposition = await get(process.address("metrics"), "/metrics")
    assert exported(exposition) == documented(service)
