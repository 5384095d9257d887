"""Logs that are cut, by damage, below what was read or committed: the command says so and goes on."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cursus_grpc import Admin, Producer, TopicPartition
from cursus_grpc.testing import Broker
from tests.harness.damage import cut_log
from tests.harness.terminal import CURSUS, command_environment, run_piped
from tests.harness.waiting import DEADLINE_S


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a topic `t` of 25 records, each a batch of its own."""
    with Broker(data_dir=tmp_path) as running:
        with Admin(running.address) as admin:
            admin.create_topic("t", 1)
        publish(running, range(25))
        yield running


def publish(broker: Broker, values: range, prefix: str = "") -> None:
    with Producer(broker.address, acks="all") as producer:
        for value in values:
            producer.send("t", f"{prefix}{value}").result()


def lose(broker: Broker, tmp_path: Path) -> None:
    broker.kill()
    cut_log(tmp_path, "t", 5)
    broker.start()


async def test_a_moved_offset_is_shown_for_people_and_programs(broker: Broker, tmp_path: Path) -> None:
    environment = command_environment(tmp_path, CURSUS_BROKER=broker.address)
    with Admin(broker.address) as admin:
        admin.commit_offsets("g", {TopicPartition("t", 0): 25})
    before = await run_piped([*CURSUS, "group", "describe", "g"], environment)
    assert "MOVED FROM" not in before.text
    await asyncio.to_thread(lose, broker, tmp_path)
    after = await run_piped([*CURSUS, "group", "describe", "g"], environment)
    head, row, explanation = after.text.splitlines()[2:5]
    assert head.split("  ")[-2:] == ["MOVED FROM", "MEMBER"]
    assert row.split() == ["t", "0", "5", "5", "0", "-", "25", "-"]
    assert explanation.startswith("MOVED FROM is what was committed when power loss or damage cut the log")
    (part,) = (await run_piped([*CURSUS, "group", "describe", "g", "-o", "json"], environment)).json["partitions"]
    assert (part["committed_offset"], part["truncated_from"], part["next_offset"]) == (5, 25, 5)


async def test_a_reader_of_a_log_that_is_cut_says_so_and_goes_on(broker: Broker, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(*CURSUS, "consume", "t", "--follow", "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=command_environment(tmp_path, CURSUS_BROKER=broker.address),
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE_S):
            lines = [json.loads(await process.stdout.readline()) for _ in range(25)]
            await asyncio.to_thread(lose, broker, tmp_path)
            await asyncio.to_thread(publish, broker, range(3), "new ")
            lines += [json.loads(await process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT)
            _, talk = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert [line["offset"] for line in lines] == [*range(25), 5, 6, 7]
    assert [line["value"] for line in lines[25:]] == ["new 0", "new 1", "new 2"]
    assert "warning: t[0]: the log was cut at offset 5, by power loss or damage, after 25 was reached" in talk.decode()
    assert process.returncode == 0
