"""The command in a real terminal: tables, progress, questions, completion, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.harness.terminal import CURSUS
from tests.harness.waiting import eventually
from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")


CTRL_C, CTRL_D = "\x03", "\x04"


async def test_a_table_is_drawn_to_fit_the_terminal(cli: Cli) -> None:
    name = await cli.topic("a")
    async with cli.terminal("topic", "list", columns=60) as terminal:
        assert await terminal.ended() == 0
        lines = terminal.text.splitlines()
    assert any("─" * 10 in line for line in lines)
    assert any(name in line for line in lines)
    assert max(map(len, lines)) <= 60


async def test_a_value_cannot_steer_the_terminal(cli: Cli) -> None:
    topic = await cli.topic()
    await cli.ok("publish", topic, stdin=b"\xff \x1b]0;title\x07 caf\xc3\xa9\n")
    async with cli.terminal("consume", topic) as terminal:
        assert await terminal.ended() == 0
        assert r"\xff \x1b]0;title\x07 café" in terminal.raw
        assert "\x1b]0" not in terminal.raw


async def test_publishing_a_file_shows_progress_and_leaves_a_summary(cli: Cli) -> None:
    topic = await cli.topic()
    path = cli.home / "many.txt"
    path.write_bytes(b"".join(b"%d\n" % at for at in range(200_000)))
    async with cli.terminal("publish", topic, str(path)) as terminal:
        assert await terminal.ended() == 0
        shown = terminal.text
    assert re.search(r"publishing .*━.* records", shown)
    assert "published 200,000 records" in shown
    # The bar is gone at the end, and the cursor is back.
    assert terminal.raw.rindex("\x1b[?25h") > terminal.raw.rindex("━")


async def test_records_can_be_typed(cli: Cli) -> None:
    topic = await cli.topic()
    async with cli.terminal("publish", topic) as terminal:
        await terminal.shows("Ctrl-D ends")
        terminal.type("hello\r")
        terminal.type(CTRL_D)
        assert await terminal.ended() == 0
        assert "published 1 record to" in terminal.text
        assert "━" not in terminal.text
    assert (await cli.ok("consume", topic)).text == "hello\n"


async def test_ctrl_c_while_typing_keeps_what_was_typed(cli: Cli) -> None:
    topic = await cli.topic()
    async with cli.terminal("publish", topic) as terminal:
        await terminal.shows("Ctrl-D ends")
        terminal.type("kept\r")

        async def stored() -> bool:
            return bool((await cli.ok("consume", topic)).stdout)

        is_stored: bool = await eventually(stored)
        assert is_stored
        terminal.type(CTRL_C)
        assert await terminal.ended() == 130
        assert "Traceback" not in terminal.text
        assert "published 1 record" in terminal.text
    assert (await cli.ok("consume", topic)).text == "kept\n"


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
async def test_following_shows_what_comes_and_ends_cleanly(cli: Cli, how: str) -> None:
    topic = await cli.topic("first")
    async with cli.terminal("consume", topic, "--follow", "--from", "-1") as terminal:
        await terminal.shows("first\n")
        await cli.ok("publish", topic, "--value", "second")
        await terminal.shows("second\n")
        if how == "ctrl-c":
            terminal.type(CTRL_C)
        else:
            terminal.signal(signal.SIGTERM)
        assert await terminal.ended() == 0
        assert "Traceback" not in terminal.text
        assert "2 records" in terminal.text


async def test_a_question_is_asked_before_something_is_lost(cli: Cli) -> None:
    topic = await cli.topic("a")
    async with cli.terminal("topic", "delete", topic) as terminal:
        await terminal.shows(r"Delete for good\? \[y/N\]")
        terminal.type("n\r")
        assert await terminal.ended() == 1
        assert "nothing was done" in terminal.text
    async with cli.terminal("topic", "delete", topic) as terminal:
        await terminal.shows("Delete for good")
        terminal.type("y\r")
        assert await terminal.ended() == 0


async def test_a_reset_is_previewed_and_then_done(cli: Cli) -> None:
    topic = await cli.topic(*"abc")
    await cli.ok("consume", topic, "--group", "asked")
    async with cli.terminal("group", "reset", "asked", "--to", "start") as terminal:
        shown = await terminal.shows("Move 1 of 1 offsets of asked")
        assert re.search(rf"{topic} +0 +3 +0 +-3", shown)
        terminal.type("y\r")
        assert await terminal.ended() == 0
    assert (await cli.ok("consume", topic, "--group", "asked", "--quiet")).text == "a\nb\nc\n"


async def test_a_watched_group_is_shown_again_until_ctrl_c(cli: Cli) -> None:
    topic = await cli.topic("a")
    await cli.ok("consume", topic, "--group", "watched")
    async with cli.terminal("group", "describe", "watched", "--watch", "--interval", "0.1") as terminal:
        await terminal.shows("lag 0 in 1 partition")
        await cli.ok("publish", topic, "--value", "b")
        await terminal.shows("lag 1 in 1 partition")
        terminal.type(CTRL_C)
        assert await terminal.ended() == 0


async def test_top_shows_rates_live(cli: Cli) -> None:
    topic = await cli.topic("a")
    async with cli.terminal("top", "--interval", "0.1") as terminal:
        await terminal.shows(rf"{topic} +1 +1 ")
        await cli.ok("publish", topic, "--value", "b")
        await terminal.shows(rf"{topic} +1 +2 ")
        terminal.type(CTRL_C)
        assert await terminal.ended() == 0


@pytest.mark.parametrize("arguments", [("top", "--interval", "60"), ("group", "describe", "left", "--watch")])
async def test_q_leaves_a_live_view_and_the_terminal_as_it_was(cli: Cli, arguments: tuple[str, ...]) -> None:
    await cli.ok("consume", await cli.topic("a"), "--group", "left")
    script = (
        f"stty > before; {' '.join((*CURSUS, *arguments))}; echo status $?; stty > after; cmp before after && echo same"
    )
    async with cli.shell(["bash", "-c", f"cd {cli.home}; {script}"]) as terminal:
        await terminal.shows("LAG")
        terminal.type("x")
        terminal.type("q")
        assert await terminal.ended() == 0
        assert re.search(r"status 0\nsame\n", terminal.text), terminal.text


async def test_ctrl_c_while_the_command_starts_says_nothing(cli: Cli) -> None:
    """It printed the traceback of whatever was being imported."""
    # The interrupt comes while the first module of the command is loaded, as if typed just then.
    hook = cli.home / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        # As a terminal starts it: what runs in the background ignores the signal, and so do its children.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == os.environ['INTERRUPT_AT']:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
    )
    # Before there is a command the signal ends the process, as it ends any; then the command says what happened.
    for module, status, said in (
        ("cursus_grpc.cli.app", -signal.SIGINT, ""),
        ("click", -signal.SIGINT, ""),
        ("cursus_grpc._admin", 130, "error: interrupted"),
    ):
        env = {**cli.env, "PYTHONPATH": str(hook), "INTERRUPT_AT": module}
        told = await Cli(cli.broker, env, cli.home).run("topic", "list")
        assert (told.status, told.stderr.strip()) == (status, said)


async def test_tab_completes_commands_options_and_topics(cli: Cli) -> None:
    await cli.ok("topic", "create", "completable", "-p", "1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{cli.env['PATH']}"
    here = Cli(cli.broker, {**cli.env, "PATH": path, "PS1": "ready> "}, cli.home)
    async with here.shell(["bash", "--norc", "--noprofile", "-i"]) as shell:
        await shell.shows("ready> ")
        shell.type('eval "$(cursus completion bash)"; echo load""ed\r')
        await shell.shows("loaded")
        shell.type("cursus topic des\t")
        await shell.shows("cursus topic describe ")
        shell.type("compl\t")
        await shell.shows("cursus topic describe completable")
        shell.type("--out\t")
        await shell.shows("--output ")
        shell.type('json > completed.json; echo do""ne\r'.replace("completed.json", str(cli.home / "completed.json")))
        await shell.shows("\ndone")
    assert json.loads((cli.home / "completed.json").read_text())["name"] == "completable"


@pytest.mark.parametrize("before", [True, False])
async def test_names_come_from_the_broker_that_was_typed(cli: Cli, before: bool) -> None:
    """The flags used to be lost on the way, and only the environment's broker was asked."""
    name = await cli.topic("a")
    broker = ("--broker", cli.broker.grpc)
    words = ["cursus", *(broker if before else ()), "topic", "describe", *(() if before else broker), name[:5]]
    env = {key: value for key, value in cli.env.items() if key != "CURSUS_BROKER"}
    asked = {"_CURSUS_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    assert f"plain,{name}" in (await Cli(cli.broker, {**env, **asked}, cli.home).ok()).text.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_there_is_a_completion_script_for_each_shell(cli: Cli, shell: str) -> None:
    assert "_CURSUS_COMPLETE" in (await cli.ok("completion", shell)).text
