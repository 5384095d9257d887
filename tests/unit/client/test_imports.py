"""What a start imports. Processor time at the start is mostly this, and unlike seconds it can be counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("grpc", "google.protobuf", "asyncio", "rich", "uvloop", "yaml", "urllib.request", "cursus_transport", "ssl")
"""What a command that speaks to no broker has no use for."""


def loaded(code: str, home: Path, **variables: str) -> set[str]:
    """The modules there are after this code has run in a process of its own."""
    script = (
        f"import json, sys\ntry:\n    {code}\nfinally:\n    print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CURSUS_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**env, "HOME": str(home), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def command(*arguments: str) -> str:
    return f"from cursus_grpc.cli.app import run; run({list(arguments)!r})"


def test_the_package_alone_imports_nothing_of_grpc(tmp_path: Path) -> None:
    """Spark's workers import it for a TopicPartition."""
    for code in ("import cursus_grpc", "from cursus_grpc import TopicPartition, CursusError, errors, types"):
        assert loaded(code, tmp_path).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--version",),
        ("--help",),
        ("completion", "bash"),
        ("config", "show"),
        *((name, "--help") for name in ("topic", "publish", "consume", "group", "top", "bench", "doctor", "metadata")),
        ("topic", "apply", "--help"),
        ("group", "reset", "--help"),
        ("segments", "inspect", "--help"),
    ],
)
def test_a_command_that_asks_no_broker_imports_no_client(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert loaded(command(*arguments), tmp_path).isdisjoint(HEAVY)


def test_completing_an_option_imports_no_client(tmp_path: Path) -> None:
    words = {"_CURSUS_COMPLETE": "bash_complete", "COMP_WORDS": "cursus topic describe --out", "COMP_CWORD": "3"}
    assert loaded(command(), tmp_path, **words).isdisjoint(HEAVY)


def test_the_version_needs_no_command(tmp_path: Path) -> None:
    assert not [name for name in loaded(command("--version"), tmp_path) if name.startswith("cursus_grpc.cli.topic")]


def test_a_listing_into_a_pipe_imports_what_it_asks_with_and_no_more(tmp_path: Path) -> None:
    modules = loaded(command("topic", "list", "--broker", "127.0.0.1:1"), tmp_path)
    assert "cursus_grpc._admin" in modules
    assert modules.isdisjoint(("rich", "yaml", "urllib.request"))
    assert modules.isdisjoint(("cursus_grpc._producer", "cursus_grpc._consumer_core", "cursus_grpc.cli.groups"))
