"""What the README and docs/cli.md tell people to paste works when it is pasted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from cursus_grpc.cli.app import COMMANDS
from cursus_grpc.cli.connection import VARIABLES
from tests.harness.documents import ROOT, blocks, section
from tests.harness.processes import BrokerProcess
from tests.harness.terminal import Outcome, command_environment, run_piped


@dataclass(frozen=True)
class Visitor:
    """Somebody who follows the tour: in a directory that looks like the checkout, with a broker that runs."""

    broker: BrokerProcess
    directory: Path

    async def paste(self, script: str) -> Outcome:
        """Run it in a shell as it is, but for the ports: `make run` has fixed ones, and a test must not."""
        script = script.replace("localhost:9081", self.broker.health).replace("localhost:9101", self.broker.metrics)
        env = command_environment(self.directory, CURSUS_BROKER=self.broker.grpc)
        # With the errors at their place among the output, as a terminal shows them.
        return await run_piped(["bash", "-euo", "pipefail", "-c", f"exec 2>&1\n{script}"], env, cwd=self.directory)


@pytest_asyncio.fixture
async def visitor(tmp_path: Path) -> AsyncIterator[Visitor]:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    async with BrokerProcess.start(tmp_path / "data") as broker:
        yield Visitor(broker, tmp_path)


async def test_the_tour_can_be_pasted(visitor: Visitor) -> None:
    tour = section("README.md", "## A tour in five minutes")
    first, groups, python, _, curl = blocks(tour, "sh")  # the one of Spark is pasted in tests/spark
    here = f'export PATH="{visitor.directory}/.venv/bin:$PATH"\n'

    shown = await visitor.paste(first)
    assert (shown.status, shown.text) == (0, blocks(tour, "")[0])

    shown = await visitor.paste(here + groups)
    assert shown.status == 0, shown
    assert "lag 2 in" in shown.text
    assert shown.text.count('"value": ') == 3

    shown = await visitor.paste(here + python)
    assert shown.status == 0, shown
    assert re.search(r"^milk is at offset 2 of partition 0$", shown.text, re.MULTILINE)
    assert shown.text.count(" ordered ") >= 3

    shown = await visitor.paste(curl)
    assert shown.status == 0, shown
    assert shown.text.startswith("OK")
    assert "messages_processed_total" in shown.text


@pytest.mark.slow
async def test_every_example_of_the_command_line_works(visitor: Visitor) -> None:
    """The blocks of docs/cli.md, one after the other in one directory, as a reader would try them."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}$PATH"
    for script in blocks(text, "sh"):
        shown = await visitor.paste(f'export PATH="{path}"\n{script}')
        assert shown.status == 0, f"{script}\n{shown.text}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_documented(name: str) -> None:
    assert f"\n## cursus {name}" in (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_variable_of_the_command_is_documented() -> None:
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in (*VARIABLES.values(), "CURSUS_CLI_CONFIG", "CURSUS_CLI_PROFILE"):
        assert f"`{name}`" in text
