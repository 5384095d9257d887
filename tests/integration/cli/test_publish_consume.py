"""`cursus publish` and `cursus consume`: what goes in comes out, in every form and from every place."""

from __future__ import annotations

import json

import pytest

from tests.harness.terminal import CURSUS, run_piped
from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")

NASTY = b"\xff\xfe\x00 \x1b[31m caf\xc3\xa9 \r"


async def test_lines_come_back_byte_for_byte(cli: Cli) -> None:
    topic = await cli.topic()
    sent = b"one\n\n" + NASTY + b"\nlast without an end"
    await cli.ok("publish", topic, stdin=sent)
    read = await cli.ok("consume", topic)
    assert read.stdout == sent + b"\n"
    assert read.stderr == "4 records\n"


async def test_keys_choose_the_partition_and_come_back(cli: Cli) -> None:
    topic = await cli.topic(partitions=4)
    summary = (await cli.ok("publish", topic, "-K", ":", "-o", "json", stdin=b"ann:tea\nmia:coffee\nann:cake\n")).json
    assert (summary["records"], summary["failed"]) == (3, 0)
    assert sum(part["records"] for part in summary["partitions"]) == 3
    read = (await cli.ok("consume", topic, "-f", r"%k=%s %p\n")).text.splitlines()
    of_ann = [line for line in read if line.startswith("ann=")]
    assert [line.split()[0] for line in of_ann] == ["ann=tea", "ann=cake"]
    assert len({line.split()[1] for line in of_ann}) == 1


async def test_json_lines_copy_a_topic_whole(cli: Cli) -> None:
    topic, copy = await cli.topic(), await cli.topic()
    await cli.ok("publish", topic, "-k", "k", "-H", "a=1", "-H", "a=2", stdin=NASTY + b"\n")
    printed = (await cli.ok("consume", topic, "-o", "json")).stdout
    await cli.ok("publish", copy, "--format", "json", stdin=printed)
    again = (await cli.ok("consume", copy, "-f", "json")).json_lines
    [before], [after] = [json.loads(line) for line in printed.splitlines()], again
    assert after == {**before, "topic": copy}
    assert after["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]


async def test_null_and_empty_are_told_apart_in_every_form(cli: Cli) -> None:
    topic, copy = await cli.topic(), await cli.topic()
    lines = b'{"key": "a", "value": null, "headers": [{"name": "h", "value": null}]}\n{"key": "b", "value": ""}\n'
    await cli.ok("publish", topic, "--format", "json", stdin=lines)
    await cli.ok("publish", topic, "-K", ":", "-Z", stdin=b"c:\nd:tea\n")
    await cli.ok("publish", topic, "-k", "e", "-v", "", "--null")
    await cli.ok("publish", topic, "-k", "f", "-v", "")
    printed = await cli.ok("consume", topic, "--output", "json")
    values = [line["value"] for line in printed.json_lines]
    assert values == [None, "", None, "tea", None, ""]
    assert printed.json_lines[0]["headers"] == [{"name": "h", "value": None}]
    await cli.ok("publish", copy, "--format", "json", stdin=printed.stdout)
    assert [line["value"] for line in (await cli.ok("consume", copy, "-f", "json")).json_lines] == values
    assert (await cli.ok("consume", topic)).text == "\n\n\ntea\n\n\n"
    assert (await cli.ok("consume", topic, "-Z")).text == "NULL\n\nNULL\ntea\nNULL\n\n"
    assert (await cli.ok("consume", topic, "-f", "%k%S ")).text == "a-1 b0 c-1 d3 e-1 f0 "
    refused = await cli.run("publish", topic, "--format", "json", "--null", stdin=b"")
    assert (refused.status, "in JSON a null is" in refused.stderr) == (2, True)


async def test_a_bad_json_line_is_named_and_what_stood_before_it_is_kept(cli: Cli) -> None:
    topic = await cli.topic()
    refused = await cli.run("publish", topic, "--format", "json", stdin=b'{"value": "a"}\n{oops\n{"value": "c"}\n')
    assert refused.status == 1
    assert "stdin, line 2: not JSON" in refused.stderr
    assert (await cli.ok("consume", topic)).text == "a\n"


async def test_files_are_lines_or_records(cli: Cli) -> None:
    topic = await cli.topic()
    path = cli.home / "lines.txt"
    path.write_bytes(b"a\nb\n")
    await cli.ok("publish", topic, str(path), "-", stdin=b"c\n")
    await cli.ok("publish", topic, str(path), "--format", "file", "--compression", "zstd", "--acks", "all")
    values = [line["value"] for line in (await cli.ok("consume", topic, "-o", "json")).json_lines]
    assert values == ["a", "b", "c", "a\nb\n"]
    missing = await cli.run("publish", topic, str(path), str(cli.home / "missing"))
    assert (missing.status, missing.stderr.count("\n")) == (1, 1)
    assert len((await cli.ok("consume", topic, "-o", "json")).json_lines) == 4, (
        "nothing is published before all is found"
    )


async def test_a_rate_limit_stretches_the_publishing(cli: Cli) -> None:
    topic = await cli.topic()
    summary = (await cli.ok("publish", topic, "--rate", "50", "-o", "json", stdin=b"x\n" * 26)).json
    assert summary["records"] == 26
    assert summary["seconds"] >= 0.5


async def test_every_place_can_be_read_from(cli: Cli) -> None:
    topic = await cli.topic(*"abcdef")
    later = (await cli.ok("consume", topic, "-o", "json", "--from", "-1")).json_lines[0]["timestamp_ms"]
    for arguments, expected in (
        ((), "abcdef"),
        (("--from", "beginning"), "abcdef"),
        (("--from", "end"), ""),
        (("--from", "4"), "ef"),
        (("--from", "-2"), "ef"),
        (("--from", "-99"), "abcdef"),
        (("--from", "@-1h"), "abcdef"),
        (("--from", f"@{later + 1}"), ""),
        (("--until", "2"), "ab"),
        (("--from", "1", "--until", "-1"), "bcde"),
        (("--from", "2", "--count", "3"), "cde"),
        (("--count", "0"), ""),
        (("--from", "6"), ""),
        (("--partition", "0"), "abcdef"),
    ):
        read = (await cli.ok("consume", topic, *arguments)).text
        assert read.replace("\n", "") == expected, arguments


async def test_a_place_that_is_not_retained_is_refused_with_what_is(cli: Cli) -> None:
    refused = await cli.run("consume", await cli.topic("a"), "--partition", "7")
    assert "(PARTITION_NOT_FOUND)" in refused.stderr
    refused = await cli.run("consume", "nowhere", "--follow")
    assert "(TOPIC_NOT_FOUND)" in refused.stderr
    refused = await cli.run("consume", "nowhere", "--group", "g")
    assert "(TOPIC_NOT_FOUND)" in refused.stderr


@pytest.mark.parametrize("follow", [(), ("--follow",)], ids=["bounded", "following"])
async def test_an_offset_out_of_range_is_an_error_that_names_the_range(cli: Cli, follow: tuple[str, ...]) -> None:
    """With --follow the whole topic was printed, without it nothing, and the status was 0."""
    topic = await cli.topic(partitions=2)
    await cli.ok("publish", topic, "--partition", "0", "-v", "a", "-v", "b", "-v", "c")
    refused = await cli.run("consume", topic, "--from", "999999", *follow)
    assert (refused.status, refused.stdout) == (1, b"")
    held = f"{topic}[0] holds 0 to 2; {topic}[1] is empty, its next offset is 0 (OFFSET_OUT_OF_RANGE)"
    assert refused.stderr.startswith(f"error: there is no offset 999999: {held}; ")
    await cli.ok("topic", "trim-prefix", topic, "--before", "2", "--partition", "0", "--yes")
    refused = await cli.run("consume", topic, "--from", "1", "--partition", "0", *follow)
    assert (refused.status, refused.stdout) == (1, b"")
    assert f"there is no offset 1: {topic}[0] holds 2 to 2 (OFFSET_OUT_OF_RANGE)" in refused.stderr
    read = await cli.ok("consume", topic, "--from", "2", "--partition", "0", "--count", "1", *follow)
    assert read.text == "c\n"


async def test_several_topics_are_read_by_name_or_by_pattern(cli: Cli) -> None:
    one, two = await cli.topic("a"), await cli.topic("b", "c")
    read = await cli.ok("consume", two, one, two, "--format", r"%t %s\n")
    assert read.text.splitlines() == [f"{two} b", f"{two} c", f"{one} a"]
    assert read.stderr == "3 records of 2 partitions of 2 topics\n"
    pattern = f"({one}|{two})"
    assert sorted((await cli.ok("consume", "--regex", pattern)).text.split()) == ["a", "b", "c"]
    assert sorted((await cli.ok("consume", "-r", one, two, "--follow", "--count", "3")).text.split()) == ["a", "b", "c"]
    grouped = await cli.ok("consume", "--regex", one, two, "--group", "by-pattern")
    assert sorted(grouped.text.split()) == ["a", "b", "c"]
    assert sorted((await cli.ok("consume", one, two, "--group", "by-name")).text.split()) == ["a", "b", "c"]
    # A pattern is for the whole name.
    refused = await cli.run("consume", "--regex", one[:-1])
    assert (refused.status, "(TOPIC_NOT_FOUND)" in refused.stderr) == (1, True)
    assert (await cli.run("consume", "--regex", "(")).status == 2
    assert (await cli.run("consume", one, two, "--partition", "0")).status == 2


async def test_a_delimiter_separates_records(cli: Cli) -> None:
    topic = await cli.topic()
    await cli.ok("publish", topic, "--delimiter", r"\0", "--key-delimiter", r"\t", stdin=b"k\ta\nb\0k\tc\0")
    assert (await cli.ok("consume", topic, "--delimiter", "||")).stdout == b"a\nb||c||"
    assert (await cli.ok("consume", topic, "--format", r"%k=%s\x1e")).stdout == b"k=a\nb\x1ek=c\x1e"
    for arguments in (
        ("consume", topic, "--delimiter", "|", "--format", "json"),
        ("consume", topic, "--delimiter", r"\q"),
        ("publish", topic, "--delimiter", "|", "--format", "json"),
        ("publish", topic, "--delimiter", "|", "--value", "a"),
        ("publish", topic, "--format", "file", "--value", "a"),
    ):
        assert (await cli.run(*arguments)).status == 2, arguments


async def test_a_bad_line_is_told_with_what_was_published_before_it(cli: Cli) -> None:
    """There was no count, and unknown fields were dropped."""
    topic = await cli.topic()
    bad = b'{"value": "a"}\n{"value": "b", "kee": "x"}\n{"value": "c"}\n'
    refused = await cli.run("publish", topic, "--format", "json", stdin=bad)
    assert refused.status == 1
    assert refused.stderr.splitlines() == [
        f"published 1 record to {topic}, 1 B: partition 0 offset 0",
        "error: stdin, line 2: 'kee' is no field of a record; did you mean 'key'? (BAD_INPUT);"
        " what stands before it is published",
    ]
    told = await cli.run("publish", topic, "--format", "json", "-o", "json", stdin=bad)
    assert (told.status, told.json["records"]) == (1, 1)
    assert (await cli.ok("consume", topic)).text == "a\na\n"


async def test_values_on_the_command_line_may_be_json(cli: Cli) -> None:
    """--format json was ignored with --value, and the JSON itself was published."""
    topic = await cli.topic()
    await cli.ok("publish", topic, "-f", "json", "-v", '{"key": "k", "value": "a"}', "-v", '{"value": 7}')
    assert (await cli.ok("consume", topic, "-f", r"%k=%s\n")).text == "k=a\n=7\n"
    refused = await cli.run("publish", topic, "-f", "json", "-v", '{"value": 1}', "-v", "no")
    assert "error: --value, number 2: not JSON" in refused.stderr


async def test_a_large_record_is_taken_or_refused_by_the_limit_that_counts(cli: Cli) -> None:
    """Above 32 MiB the producer's own buffer refused it, and the advice was to raise limits of the broker."""
    topic = await cli.topic("small")
    large = cli.home / "large"
    large.write_bytes(b"x" * 33 * 1024 * 1024)
    assert "published 1 record" in (await cli.ok("publish", topic, "--format", "file", str(large))).stderr
    # One that reads a record and leaves while the large one is on its way has nothing to warn of.
    left = await cli.ok("consume", topic, "--group", "impatient", "--count", "1")
    assert (left.text, left.stderr) == ("small\n", "1 record\n")
    large.write_bytes(b"x" * 65 * 1024 * 1024)
    refused = await cli.run("publish", topic, "--format", "file", str(large))
    assert refused.stderr.splitlines() == [
        f"published nothing to {topic}",
        "error: a record has 68,157,440 bytes, and the broker takes at most 67,108,864 (RECORD_TOO_LARGE); split it, or"
        " raise the topic's max_value_bytes or the broker's publish.max_batch_bytes",
    ]
    large.unlink()


async def test_options_that_contradict_each_other_are_wrong_usage(cli: Cli) -> None:
    for arguments in (
        ("consume", "t", "--follow", "--until", "3"),
        ("consume", "t", "--group", "g", "--partition", "0"),
        ("consume", "t", "--group", "g", "--from", "3"),
        ("consume", "t", "--format", "yaml"),
        ("consume", "t", "--format", "%q"),
        ("consume", "t", "--from", "soon"),
        ("publish", "t", "file", "--value", "v"),
        ("publish", "t", "--key", "k", "--key-delimiter", ":"),
    ):
        refused = await cli.run(*arguments)
        assert refused.status == 2, refused


async def test_a_group_goes_on_where_it_stopped(cli: Cli) -> None:
    topic = await cli.topic(*"abcde")
    first = await cli.ok("consume", topic, "--group", "reader", "--count", "2")
    rest = await cli.ok("consume", topic, "--group", "reader")
    nothing = await cli.ok("consume", topic, "--group", "reader")
    assert (first.text, rest.text, nothing.text) == ("a\nb\n", "c\nd\ne\n", "")


async def test_a_reader_that_has_enough_ends_the_command_quietly(cli: Cli) -> None:
    topic = await cli.topic()
    await cli.ok("publish", topic, stdin=b"".join(b"line %d %s\n" % (at, b"x" * 100) for at in range(50_000)))
    script = f'{" ".join(CURSUS)} consume {topic} | head -1; echo "${{PIPESTATUS[@]}}"'
    outcome = await run_piped(["bash", "-c", script], cli.env)
    assert outcome.text.splitlines() == ["line 0 " + "x" * 100, "0 0"]
    assert outcome.stderr == ""


async def test_what_a_broken_pipe_swallowed_is_read_again_by_the_group(cli: Cli) -> None:
    topic = await cli.topic()
    await cli.ok("publish", topic, stdin=b"".join(b"%d\n" % at for at in range(20_000)))
    script = f"{' '.join(CURSUS)} consume {topic} --group picky | head -1"
    assert (await run_piped(["bash", "-c", script], cli.env)).text == "0\n"
    described = (await cli.ok("group", "describe", "picky", "-o", "json")).json
    committed = described["partitions"][0]["committed_offset"] if described["partitions"] else 0
    rest = (await cli.ok("consume", topic, "--group", "picky")).text.splitlines()
    assert rest == [str(at) for at in range(committed or 0, 20_000)]
    assert (committed or 0) < 20_000
