"""What the pages of the languages tell people to paste prints what they say."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from cursus_grpc.testing import Broker
from tests.harness.languages import ROOT, Language
from tests.harness.terminal import command_environment, run_piped

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def first(blocks: list[tuple[str, str]], kind: str) -> str:
    return next(text for found, text in blocks if found == kind)


async def test_the_five_minutes_can_be_pasted(language: Language, tmp_path: Path) -> None:
    """The first block of commands, and the first block of text as what it prints."""
    blocks = BLOCK.findall((ROOT / "docs" / "clients" / f"{language.name}.md").read_text(encoding="utf-8"))
    with Broker(data_dir=tmp_path / "broker") as broker:
        # `make run` has a port that the programs know, and a test must not.
        script = re.sub(r"\b(publish|follow|member) --", rf"\1 --broker {broker.address} --", first(blocks, "sh"))
        env = command_environment(
            tmp_path,
            CURSUS_BROKER=broker.address,
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            # What the build has fetched and compiled before is there.
            HOME=os.environ["HOME"],
            XDG_CONFIG_HOME=str(tmp_path),
            **language.environment,
        )
        done = await run_piped(["bash", "-euo", "pipefail", "-c", f"exec 2>&1\n{script}"], env, cwd=ROOT)
    assert done.status == 0, done.text
    # What a terminal does not show: Maven resets colours that it never set.
    shown = re.sub(r"\x1b\[[0-9;]*m", "", done.text)
    # Partitions have no order among each other.
    assert sorted(shown.splitlines()) == sorted(first(blocks, "text").splitlines()), done.text
