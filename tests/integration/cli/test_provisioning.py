"""`cursus topic apply` against a real broker: what a file asks for, once and again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.harness.processes import BrokerProcess
from tests.harness.terminal import CURSUS, command_environment
from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def _apply(cli: Cli, *topics: object) -> list[tuple[str, str]]:
    done = await cli.ok("topic", "apply", "-", "-o", "json", stdin=json.dumps(topics).encode())
    return [(change["name"], change["outcome"]) for change in done.json]


async def test_a_file_is_made_true_once_and_then_changes_nothing(cli: Cli) -> None:
    orders = {"name": "applied", "partitions": 2, "settings": {"retention_ms": "7d"}, "labels": {"team": "kitchen"}}
    plain = {"name": "applied-plain"}
    assert await _apply(cli, orders, plain) == [("applied", "created"), ("applied-plain", "created")]
    assert await _apply(cli, orders, plain) == [("applied", "unchanged"), ("applied-plain", "unchanged")]

    more = {**orders, "partitions": 4, "settings": {"segment_bytes": 1048576.0}, "labels": {"team": "bar"}}
    assert await _apply(cli, more) == [("applied", "updated")]
    described = (await cli.ok("topic", "describe", "applied", "-o", "json")).json
    assert described["partition_count"] == 4
    # What the second file does not name has stayed.
    assert described["config"] == {"retention_ms": 604_800_000, "segment_bytes": 1_048_576, "labels": {"team": "bar"}}


async def test_a_topic_that_would_shrink_stops_everything(cli: Cli) -> None:
    name = await cli.topic(partitions=3)
    file = json.dumps({"topics": [{"name": "never-made"}, {"name": name, "partitions": 2}]}).encode()
    refused = await cli.run("topic", "apply", "-", stdin=file)
    assert refused.status == 1
    assert f"{name} has 3 partitions and cannot have 2 (SHRINKING_TOPIC); " in refused.stderr
    assert "never-made" not in [one["name"] for one in (await cli.ok("topic", "list", "-o", "json")).json]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ('{"topic": []}', "a JSON list of topics"),
        ('[{"partitions": 1}]', "topic 1: name is text"),
        ('[{"name": "a", "partitions": "4"}]', "partitions is a whole number from 1, not '4'"),
        ('[{"name": "a", "partition": 4}]', "there is no 'partition'; there are name, partitions, settings, labels"),
        ('[{"name": "a", "settings": {"retention": 1}}]', "there is no topic setting 'retention'"),
        ('[{"name": "a", "settings": ["x"]}]', "settings is an object of plain values"),
        ('[{"name": "a"}, {"name": "a"}]', "a is named twice"),
    ],
)
async def test_a_file_that_cannot_be_meant_is_wrong_usage(cli: Cli, content: str, words: str) -> None:
    refused = await cli.run("topic", "apply", "-", stdin=content.encode())
    assert (refused.status, refused.stdout) == (2, b"")
    assert words in refused.stderr


async def test_it_waits_for_a_broker_that_is_not_there_yet(tmp_path: Path) -> None:
    """The address is one a broker had before, so that nobody else listens there."""
    broker = BrokerProcess.start(tmp_path / "data")
    async with broker:
        address = broker.grpc
    process = await asyncio.create_subprocess_exec(
        *(*CURSUS, "topic", "apply", "-", "--wait", "300"),
        env=command_environment(tmp_path, CURSUS_BROKER=address),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(b'[{"name": "late", "partitions": 1}]')
    process.stdin.close()
    assert b"waiting for the broker" in await process.stderr.readline()
    async with BrokerProcess.start(tmp_path / "data", "--grpc-port", address.rpartition(":")[2]):
        rest = await process.stderr.read()
        assert await process.wait() == 0, rest
    assert b"topic late created, 1 partition" in rest
