"""`cursus segments inspect` on the data directory of a real broker: sound, flipped, torn, incomplete."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio

from cursus_proto.v1 import publish_service_pb2 as publish_pb
from cursus_proto.v1.records_pb2 import CODEC_ZSTD, Record
from tests.harness.clients import Client
from tests.harness.processes import BrokerProcess
from tests.harness.terminal import CURSUS, Outcome, command_environment, run_piped

pytestmark = pytest.mark.asyncio(loop_scope="function")

RECORDS = 40


@pytest_asyncio.fixture
async def stopped(tmp_path: Path) -> Path:
    """A data directory with a topic `orders`: one partition, an entry a record, several segments, closed cleanly."""
    data = tmp_path / "data"
    async with (
        BrokerProcess.start(data, "--log-segment-bytes", "2048") as broker,
        Client.connect(broker.grpc) as client,
    ):
        await client.create_topic("orders")
        for at in range(RECORDS):
            await client.publish("orders", [b"record %03d %s" % (at, b"x" * 100)])
    return data


async def cursus(home: Path, *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Outcome:
    outcome = await run_piped([*CURSUS, *arguments], env or command_environment(home), stdin)
    assert outcome.status in (0, 1), outcome
    return outcome


async def inspect(data: Path, *arguments: str) -> Outcome:
    return await cursus(data.parent, "segments", "inspect", str(data), *arguments)


def segment(data: Path, number: int) -> Path:
    return data / "logs" / "orders" / f"partition_0_segment_{number}.log"


async def entries(data: Path, number: int) -> list[dict[str, int]]:
    """The entries of a segment, as the command itself says."""
    lines = (await inspect(segment(data, number), "--entries", "-o", "json")).json_lines
    return [line for line in lines if line["kind"] == "entry"]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


async def test_a_sound_directory_has_no_damage_and_every_record(stopped: Path) -> None:
    told = await inspect(stopped, "--entries", "-o", "json")
    lines = told.json_lines
    assert told.status == 0
    assert lines[-1] == {"kind": "summary", "segments": lines[-1]["segments"], "records": RECORDS, "damage": 0}
    assert lines[-1]["segments"] > 1
    assert {line["index"] for line in lines if line["kind"] == "segment"} == {"ok"}
    offsets = [line["base_offset"] for line in lines if line["kind"] == "entry"]
    assert offsets == sorted(offsets)
    assert (offsets[0], sum(line["record_count"] for line in lines if line["kind"] == "entry")) == (0, RECORDS)


async def test_a_flipped_byte_is_named_by_file_position_and_offset(stopped: Path) -> None:
    victim, following = (await entries(stopped, 1))[2:4]
    path = segment(stopped, 1)
    # In the middle of the payload: the header is sound, the payload's checksum is not.
    flip(path, (victim["position"] + following["position"] + 80) // 2)
    told = await inspect(stopped, "-o", "json")
    assert told.status == 1
    [damage] = [line for line in told.json_lines if line["kind"] == "damage"]
    assert (damage["file"], damage["position"], damage["offset"]) == (
        str(path),
        victim["position"],
        victim["base_offset"],
    )
    assert (damage["next_position"], damage["next_offset"]) == (following["position"], following["base_offset"])
    assert "payload checksum" in damage["cause"]

    shown = await inspect(stopped)
    assert shown.status == 1
    assert f"{path}: byte {victim['position']}, offset {victim['base_offset']}: payload checksum differs" in shown.text
    assert "1 damaged place" in shown.stderr


@pytest.mark.parametrize("at", [0, 5, 15, 30, 60])
async def test_a_flipped_byte_in_a_header_costs_only_its_entry(stopped: Path, at: int) -> None:
    victim, following = (await entries(stopped, 1))[1:3]
    flip(segment(stopped, 1), victim["position"] + at)
    [damage] = [line for line in (await inspect(stopped, "-o", "json")).json_lines if line["kind"] == "damage"]
    assert (damage["position"], damage["offset"]) == (victim["position"], victim["base_offset"])
    assert (damage["next_position"], damage["next_offset"]) == (following["position"], following["base_offset"])


async def test_records_are_shown_with_null_and_empty_told_apart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    garbage = publish_pb.PublishRequest(
        topic="orders", partition=0, codec=CODEC_ZSTD, record_count=2, compressed_records=b"not zstd"
    )
    async with BrokerProcess.start(data) as broker, Client.connect(broker.grpc) as client:
        await client.create_topic("orders")
        await client.publish("orders", [Record(key=b"a"), Record(key=b"b", value=b""), Record(value=b"\xff")])
        await client.publishing.Publish(garbage)
    told = await inspect(data, "--records", "-o", "json")
    shown = [line for line in told.json_lines if line["kind"] == "record"]
    assert [(line["offset"], line["key"], line.get("value", "absent")) for line in shown] == [
        (0, "a", None),
        (1, "b", ""),
        (2, None, "absent"),
    ]
    assert shown[2]["value_base64"] == "/w=="
    [unreadable] = [line for line in told.json_lines if line["kind"] == "unreadable"]
    assert "undecodable" in unreadable["cause"]
    assert (told.status, told.json_lines[-1]["damage"]) == (0, 0)
    text = (await inspect(data, "--records")).text
    assert '"key": "a", "value": null}' in text
    assert '"key": "b", "value": ""}' in text


async def test_several_damages_are_all_found(stopped: Path) -> None:
    flip(segment(stopped, 0), (await entries(stopped, 0))[1]["position"] + 70)
    second = segment(stopped, 2)
    flip(second, 20)
    checkpoint = second.with_name("partition_0.checkpoint")
    checkpoint.write_bytes(checkpoint.read_bytes().replace(b"1", b"2", 1))
    found = [line["file"] for line in (await inspect(stopped, "-o", "json")).json_lines if line["kind"] == "damage"]
    assert found == [str(checkpoint), str(segment(stopped, 0)), str(second)]


async def test_a_missing_segment_is_damage(stopped: Path) -> None:
    segment(stopped, 1).unlink()
    told = await inspect(stopped, "-o", "json")
    causes = [line["cause"] for line in told.json_lines if line["kind"] == "damage"]
    assert causes[0] == "the segment is missing"
    assert told.status == 1


async def test_an_end_that_was_synced_is_damage_and_not_a_torn_tail(stopped: Path) -> None:
    last = max((stopped / "logs" / "orders").glob("*.log"), key=lambda path: int(path.stem.rpartition("_")[2]))
    size = last.stat().st_size
    with last.open("ab") as file:
        file.truncate(size - 10)
    told = await inspect(stopped, "-o", "json")
    [line] = [line for line in told.json_lines if line["kind"] in ("damage", "torn_tail")]
    assert (line["kind"], line["file"], line["cause"]) == ("damage", str(last), "the file ends within an entry")


async def test_a_tail_nobody_synced_is_called_torn(stopped: Path) -> None:
    last = max((stopped / "logs" / "orders").glob("*.log"), key=lambda path: int(path.stem.rpartition("_")[2]))
    size = last.stat().st_size
    with last.open("ab") as file:
        file.write(b"\0" * 30)
    told = await inspect(stopped, "-o", "json")
    [line] = [line for line in told.json_lines if line["kind"] in ("damage", "torn_tail")]
    assert (line["kind"], line["position"], line["offset"]) == ("torn_tail", size, RECORDS)


async def test_only_what_was_asked_for_is_walked(stopped: Path) -> None:
    refused = await inspect(stopped, "--topic", "nowhere")
    assert (refused.status, refused.stdout) == (1, b"")
    one = await inspect(segment(stopped, 1), "-o", "json")
    assert (one.status, one.json_lines[-1]["segments"]) == (0, 1)
    of_topic = await inspect(stopped / "logs" / "orders")
    assert of_topic.status == 0
    assert "orders" in of_topic.text


async def test_a_running_broker_is_mentioned(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with BrokerProcess.start(data) as broker:
        env = command_environment(tmp_path, CURSUS_BROKER=broker.grpc)
        await cursus(tmp_path, "topic", "create", "live", "-p", "1", env=env)
        assert "a broker runs on this directory" in (await inspect(data)).stderr
