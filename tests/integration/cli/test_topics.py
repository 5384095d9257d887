"""`cursus topic …` against a real broker, for people and for programs."""

from __future__ import annotations

import pytest

from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_topic_lives_from_create_to_delete(cli: Cli) -> None:
    made = (
        await cli.ok("topic", "create", "life", "-p", "2", "--set", "retention_ms=1h", "--label", "a=b", "-o", "json")
    ).json
    assert (made["partition_count"], made["config"]) == (2, {"retention_ms": 3_600_000, "labels": {"a": "b"}})

    updated = (
        await cli.ok("topic", "update", "life", "--set", "segment_bytes=1MiB", "--reset", "retention_ms", "-o", "json")
    ).json
    assert updated["config"] == {"segment_bytes": 2**20, "labels": {"a": "b"}}

    assert (await cli.ok("topic", "add-partitions", "life", "4", "-o", "json")).json["partition_count"] == 4
    await cli.ok("publish", "life", "-v", "x", "-p", "3")
    described = (await cli.ok("-o", "json", "topic", "describe", "life")).json
    assert [part["next_offset"] for part in described["partitions"]] == [0, 0, 0, 1]

    assert (await cli.ok("topic", "delete", "life", "--yes", "-o", "json")).json == {"deleted": ["life"]}
    assert "life" not in [topic["name"] for topic in (await cli.ok("topic", "list", "-o", "json")).json]


async def test_piped_tables_are_plain_columns_of_full_width(cli: Cli) -> None:
    name = "n" * 200
    await cli.ok("topic", "create", name, "-p", "1")
    lines = (await cli.ok("topic", "list")).text.splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITIONS", "RECORDS", "SIZE", "CREATED"]
    assert any(line.startswith(name + " ") for line in lines)
    assert "\x1b" not in "".join(lines)
    described = (await cli.ok("topic", "describe", name)).text
    assert "PARTITION  EARLIEST  NEXT  SYNCED  RECORDS  SIZE  SEGMENTS" in described.replace("   ", "  ")


async def test_what_is_refused_is_one_line_with_a_hint_and_status_1(cli: Cli) -> None:
    name = await cli.topic(partitions=2)
    for arguments, reason in (
        (("topic", "create", name), "TOPIC_EXISTS"),
        (("topic", "create", "no/slash"), "INVALID_TOPIC_NAME"),
        (("topic", "describe", "nowhere"), "TOPIC_NOT_FOUND"),
        (("topic", "add-partitions", name, "1"), "INVALID_PARTITION_COUNT"),
        (("topic", "update", name, "--set", "segment_bytes=1"), "INVALID_TOPIC_CONFIG"),
    ):
        refused = await cli.run(*arguments)
        assert (refused.status, refused.stdout) == (1, b""), arguments
        assert refused.stderr.count("\n") == 1
        assert refused.stderr.startswith("error: ")
        assert f"({reason}); " in refused.stderr
        assert f'"reason": "{reason}"' in (await cli.run(*arguments, "-o", "json")).stderr


async def test_wrong_usage_is_one_line_and_status_2(cli: Cli) -> None:
    for arguments in (
        ("topic", "creat"),
        ("topic", "create"),
        ("topic", "create", "a", "--partitions", "none"),
        ("topic", "create", "a", "--set", "nonsense=1"),
        ("topic", "update", "a"),
        ("topic", "list", "--timeout", "soon"),
        ("topic", "list", "--broker", "a:b:c"),
        ("topic", "list", "--config", "/nonexistent"),
    ):
        refused = await cli.run(*arguments)
        assert (refused.status, refused.stdout) == (2, b""), arguments
        assert refused.stderr.count("\n") == 1, refused.stderr


async def test_without_a_verb_the_help_is_shown_as_talk(cli: Cli) -> None:
    for arguments in ((), ("topic",)):
        shown = await cli.run(*arguments)
        assert (shown.status, shown.stdout) == (2, b"")
        assert "Commands:" in shown.stderr


async def test_a_name_that_is_not_text_is_wrong_usage(cli: Cli) -> None:
    """A consumer of such a group used to wait for partitions for ever."""
    for arguments in (("topic", "describe", "\udcff"), ("consume", "orders", "--group", "g\udcff")):
        refused = await cli.run(*arguments)
        assert refused.status == 2
        assert "it is not UTF-8" in refused.stderr


async def test_creating_what_exists_is_fine_if_asked(cli: Cli) -> None:
    name = await cli.topic()
    again = await cli.ok("topic", "create", name, "--if-not-exists", "-o", "json")
    assert again.json["name"] == name


async def test_nothing_is_deleted_where_nobody_can_be_asked(cli: Cli) -> None:
    name = await cli.topic("one")
    refused = await cli.run("topic", "delete", name)
    assert refused.status == 1
    assert "--yes" in refused.stderr
    await cli.ok("topic", "describe", name)


async def test_a_broker_that_is_away_is_told_in_one_line(cli: Cli) -> None:
    for arguments in (("topic", "list"), ("publish", "a", "-v", "x"), ("consume", "a")):
        # Port 1 is nobody's.
        refused = await cli.run(*arguments, "--broker", "127.0.0.1:1", "--timeout", "0.5")
        assert refused.status == 1, refused
        assert "(BROKER_UNREACHABLE)" in refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr


async def test_debug_shows_the_traceback_and_nothing_else_does(cli: Cli) -> None:
    assert "Traceback" not in (await cli.run("topic", "describe", "nowhere")).stderr
    assert "Traceback" in (await cli.run("topic", "describe", "nowhere", "--debug")).stderr


async def test_the_configuration_file_names_the_broker(cli: Cli) -> None:
    path = cli.home / "named.yaml"
    path.write_text(f"broker: {cli.broker.grpc}\n")
    env = {name: value for name, value in cli.env.items() if name != "CURSUS_BROKER"}
    found = await Cli(cli.broker, {**env, "CURSUS_CLI_CONFIG": str(path)}, cli.home).ok("topic", "list", "-o", "json")
    assert isinstance(found.json, list)


async def test_a_description_shows_the_defaults_in_force(cli: Cli) -> None:
    topic = await cli.topic()
    await cli.ok("topic", "update", topic, "--set", "retention_ms=2d", "--set", "content_deduplication=off")
    lines = (await cli.ok("topic", "describe", topic)).text.splitlines()
    told = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines if "  " in line}
    assert told["retention_ms"] == "172800000, 2d00h"
    assert told["retention_bytes"] == "-1, no limit (default)"
    assert told["segment_bytes"] == "67108864, 64.0 MiB (default)"
    assert told["content_deduplication"] == "off"
    assert told["max_value_bytes"] == "no limit (default)"
    found = (await cli.ok("topic", "describe", topic, "-o", "json")).json
    assert found["config"] == {"retention_ms": 172_800_000, "content_deduplication": False}
    assert found["effective_config"] == {
        "retention_ms": 172_800_000,
        "retention_bytes": -1,
        "segment_bytes": 64 * 2**20,
        "segment_ms": 7 * 86_400_000,
        "content_deduplication": False,
        "min_value_bytes": 0,
        "max_value_bytes": None,
    }


async def test_the_oldest_records_are_trimmed_after_a_preview(cli: Cli) -> None:
    topic = await cli.topic(*"abcd")
    refused = await cli.run("topic", "trim-prefix", topic, "--before", "3")
    assert (refused.status, refused.text.split()[-5:]) == (1, ["0", "0", "3", "4", "3"])
    assert (await cli.ok("consume", topic, "--quiet")).text == "a\nb\nc\nd\n"
    preview = await cli.run("topic", "trim-prefix", topic, "--before", "3", "-o", "json")
    assert preview.json == {
        "topic": topic,
        "done": False,
        "partitions": [{"partition": 0, "earliest_offset": 0, "records": 3}],
    }
    done = await cli.ok("topic", "trim-prefix", topic, "--before", "-1", "--yes", "-o", "json")
    assert done.json["partitions"] == [{"partition": 0, "earliest_offset": 3, "records": 3}]
    assert (await cli.ok("consume", topic, "--quiet")).text == "d\n"
    again = await cli.ok("topic", "trim-prefix", topic, "--before", "beginning", "--yes")
    assert again.stderr == f"deleted 0 records of {topic}\n"
    for place in ("99", "0"):
        outside = await cli.run("topic", "trim-prefix", topic, "--before", place, "--yes")
        assert f"there is no offset {place}: {topic}[0] holds 3 to 3 (OFFSET_OUT_OF_RANGE)" in outside.stderr
