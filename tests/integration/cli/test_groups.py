"""`cursus group …`: looking, moving with a preview, deleting."""

from __future__ import annotations

import signal

import pytest

from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def committed(cli: Cli, group: str) -> dict[tuple[str, int], int]:
    found = (await cli.ok("group", "describe", group, "-o", "json")).json
    return {(part["topic"], part["partition"]): part["committed_offset"] for part in found["partitions"]}


async def test_lag_is_shown_for_people_and_programs(cli: Cli) -> None:
    topic = await cli.topic(*"abc")
    await cli.ok("consume", topic, "--group", "lagging", "--count", "1")
    shown = (await cli.ok("group", "describe", "lagging")).text.splitlines()
    assert shown[0].startswith("group lagging: empty, 0 members")
    assert "lag 2 in 1 partition" in shown[0]
    assert shown[2].split() == ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "BEHIND", "MEMBER"]
    assert shown[3].split()[:5] == [topic, "0", "1", "3", "2"]
    listed = (await cli.ok("group", "list", "-o", "json")).json
    assert {"group": "lagging", "lag_records": 2}.items() <= next(g for g in listed if g["group"] == "lagging").items()
    assert "lagging" in (await cli.ok("group", "list")).text


async def test_a_reset_moves_to_every_kind_of_place(cli: Cli) -> None:
    topic = await cli.topic(*"abcdef")
    await cli.ok("consume", topic, "--group", "moving")
    for place, expected in (("start", 0), ("4", 4), ("-1", 5), ("@-1h", 0), ("end", 6)):
        changed = (await cli.ok("group", "reset", "moving", "--to", place, "--yes", "-o", "json")).json
        assert changed["done"] is True
        assert [change["after"] for change in changed["changes"]] == [expected]
        assert await committed(cli, "moving") == {(topic, 0): expected}


async def test_without_yes_a_reset_is_only_shown(cli: Cli) -> None:
    topic = await cli.topic(*"abc")
    await cli.ok("consume", topic, "--group", "shown")
    shown = await cli.run("group", "reset", "shown", "--to", "1")
    assert shown.status == 1
    assert "--yes" in shown.stderr
    assert shown.text.splitlines()[1].split() == [topic, "0", "3", "1", "-2"]
    programs = await cli.run("group", "reset", "shown", "--to", "1", "-o", "json")
    assert (programs.status, programs.json["done"], programs.json["changes"][0]["after"]) == (1, False, 1)
    assert await committed(cli, "shown") == {(topic, 0): 3}


async def test_a_group_can_be_moved_to_where_another_is_or_was(cli: Cli) -> None:
    topic, other = await cli.topic(partitions=2), await cli.topic("x")
    for partition in ("0", "1"):
        await cli.ok("publish", topic, "-p", partition, "-v", "a", "-v", "b")
    for name in (topic, other):
        await cli.ok("consume", name, "--group", "model")
    saved = cli.home / "saved.json"
    saved.write_bytes((await cli.ok("group", "describe", "model", "-o", "json")).stdout)
    before = await committed(cli, "model")

    await cli.ok("group", "reset", "copy", "--like", "model", "--topic", topic, "--yes")
    assert await committed(cli, "copy") == {place: at for place, at in before.items() if place[0] == topic}

    await cli.ok("group", "reset", "model", "--to", "start", "--topic", topic, "--partition", "1", "--yes")
    assert await committed(cli, "model") == {**before, (topic, 1): 0}
    await cli.ok("group", "reset", "model", "--file", str(saved), "--yes")
    assert await committed(cli, "model") == before

    saved.write_text(f"{topic} 0 1\n")
    await cli.ok("group", "reset", "model", "--file", str(saved), "--yes")
    assert await committed(cli, "model") == {**before, (topic, 0): 1}


async def test_what_cannot_be_reset_is_refused(cli: Cli) -> None:
    topic = await cli.topic("a")
    for arguments, status in (
        (("--to", "start"), 1),
        (("--to", "99", "--topic", topic), 1),
        (("--to", "start", "--topic", "nowhere"), 1),
        (("--like", "nobody"), 1),
        (("--file", "missing.json"), 1),
        ((), 2),
        (("--to", "start", "--partition", "0"), 2),
    ):
        refused = await cli.run("group", "reset", "nothing", *arguments, "--yes")
        assert refused.status == status, (arguments, refused)
        assert refused.stderr.count("\n") == 1


async def test_a_group_that_reads_cannot_be_moved_or_deleted(cli: Cli) -> None:
    topic = await cli.topic("a")
    async with cli.terminal("consume", topic, "--group", "busy", "--follow") as reader:
        await reader.shows("a\n")
        for arguments in (("reset", "busy", "--topic", topic, "--to", "start", "--yes"), ("delete", "busy", "--yes")):
            refused = await cli.run("group", *arguments)
            assert refused.status == 1
            assert "(GROUP_NOT_EMPTY); stop its members first" in refused.stderr
        members = (await cli.ok("group", "describe", "busy", "-o", "json")).json["members"]
        assert [(one["client_id"], len(one["partitions"])) for one in members] == [("cursus-cli", 1)]
        assert all(0 < one["joined_ms"] <= one["last_heartbeat_ms"] for one in members)
        reader.type("\x03")
        assert await reader.ended() == 0
    # It left, and committed what it had printed.
    assert await committed(cli, "busy") == {(topic, 0): 1}
    await cli.ok("group", "delete", "busy", "--yes")
    assert (await cli.run("group", "describe", "busy")).status == 1


async def test_a_member_can_be_removed(cli: Cli) -> None:
    topic = await cli.topic("a")
    async with cli.terminal("consume", topic, "--group", "removed", "--follow") as reader:
        await reader.shows("a\n")
        (member,) = (await cli.ok("group", "describe", "removed", "-o", "json")).json["members"]
        asked = await cli.run("group", "remove-member", "removed", member["member_id"])
        assert (asked.status, "(NOT_CONFIRMED)" in asked.stderr) == (1, True)
        reader.signal(signal.SIGSTOP)  # it hangs, and cannot come back by itself
        done = await cli.ok("group", "remove-member", "removed", member["member_id"], "--yes", "-o", "json")
        assert done.json == {"group": "removed", "removed": [member["member_id"]]}
        assert (await cli.ok("group", "describe", "removed", "-o", "json")).json["members"] == []
        reader.signal(signal.SIGCONT)
    for arguments in ((member["member_id"],), ("--instance", "nobody")):
        refused = await cli.run("group", "remove-member", "removed", *arguments, "--yes")
        assert (refused.status, "(MEMBER_NOT_FOUND)" in refused.stderr) == (1, True)
    assert (await cli.run("group", "remove-member", "removed")).status == 2
