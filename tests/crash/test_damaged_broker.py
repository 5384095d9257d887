"""Damage anywhere in a data directory: the broker starts or refuses precisely, never returns a wrong record, and serves
every partition that is not damaged itself.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import pytest_asyncio

from cursus_broker.app import Broker
from cursus_broker.errors import CursusError, PartitionDamaged
from cursus_broker.log.api import Offset
from cursus_broker.log.settings import LogSettings
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.topic import Topic
from cursus_proto import records as record_sets
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import topic_service_pb2 as topic_pb
from cursus_proto.v1.publish_service_pb2 import ACKS_ALL, ACKS_WRITTEN
from tests.harness.clients import Client
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess
from tests.harness.refusals import DATA_LOSS, refusal, refusal_of
from tests.harness.streams import ConsumeStream, Member
from tests.harness.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

CASES = 72
TOPIC = "orders"
PARTITIONS = 3
RECORDS_PER_PARTITION = 120
SEGMENT_BYTES = 2_048
KINDS = (".log", ".index", ".log", ".checkpoint")

Contents = dict[int, list[bytes]]


def value(partition: int, offset: int) -> bytes:
    """Different for every place, so that no record can pass for another."""
    return b"%d/%d " % (partition, offset) + random.Random(offset * PARTITIONS + partition).randbytes(40)


EXPECTED: Contents = {
    partition: [value(partition, offset) for offset in range(RECORDS_PER_PARTITION)] for partition in range(PARTITIONS)
}


async def fill(broker: BrokerProcess, logs: Path, *, kill: bool) -> None:
    """Several segments in every partition, some deleted again, and an end that was closed cleanly or not."""
    async with Client.connect(broker.grpc) as client:
        config = topic_pb.TopicConfig(segment_bytes=SEGMENT_BYTES)
        await client.create_topic(TOPIC, PARTITIONS, config)
        for partition, values in EXPECTED.items():
            for begin in range(0, len(values), 4):
                # The first half is synced, so that its segments are sealed; the rest may be torn.
                acks = ACKS_ALL if begin < len(values) // 2 else ACKS_WRITTEN
                await client.publish(TOPIC, values[begin : begin + 4], partition, acks)
        part = topic_pb.DeleteRecordsPartition(partition=1, before_offset=33)
        await client.topics.DeleteRecords(topic_pb.DeleteRecordsRequest(topic=TOPIC, partitions=[part]))
    if kill:
        # Sealing goes on behind the answers.
        await eventually(lambda: len(list(logs.glob("*.index"))) >= PARTITIONS)
        await broker.kill()
    else:
        await broker.terminate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def data_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data directories of a real broker that was stopped, and of one that was killed."""
    made = {}
    for end in ("stopped", "killed"):
        made[end] = tmp_path_factory.mktemp(end) / "data"
        broker = BrokerProcess.start(made[end], "--log-index-interval-bytes", "256")
        await broker.launch()
        await fill(broker, made[end] / "logs" / TOPIC, kill=end == "killed")
    return made


def choose(rng: random.Random, directory: Path, kind: str) -> list[Path]:
    """One or two files: the first of the kind asked for, the second of any."""
    files = sorted(path for path in directory.iterdir() if path.suffix in KINDS and path.stat().st_size)
    first = rng.choice([path for path in files if path.suffix == kind])
    others = [path for path in files if path != first]
    return [first, *rng.sample(others, rng.choice((0, 0, 1)))]


def damage(rng: random.Random, path: Path) -> str:
    """Change the file in one random way, and tell in which."""
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    match rng.randrange(6):
        case 0 | 1:
            content[at] ^= 1 << rng.randrange(8)
            how = f"bit flipped at {at}"
        case 2:
            del content[at:]
            how = f"cut at {at}"
        case 3:
            content[at : at + 64] = bytes(len(content[at : at + 64]))
            how = f"zeroed at {at}"
        case 4:
            content[at : at + 16] = rng.randbytes(16)
            how = f"overwritten at {at}"
        case _:
            del content[at : at + rng.randint(1, 100)]
            how = f"bytes taken out at {at}"
    path.write_bytes(content)
    return f"{path.name}: {how}"


async def examine(settings: BrokerSettings, hurt: set[int]) -> str:
    """Open the broker on the damaged directory, read everything, and tell how it went.

    Fails for a record that was never published, for a refusal that names no place, and for a partition that is not
    served although nothing of it was touched.
    """
    refusals: dict[int, PartitionDamaged] = {}
    async with Broker.open(settings) as broker:
        topic = broker.catalog.topic(TOPIC)
        for partition in range(PARTITIONS):
            try:
                await read_and_compare(topic, partition, complete=partition not in hurt)
            except PartitionDamaged as error:
                refusals[partition] = error
    assert refusals.keys() <= hurt, "a partition that was not touched is refused"
    for partition, refused in refusals.items():
        named = Path(refused.path)
        assert named.parent == settings.segment_dir / TOPIC
        assert f"partition_{partition}" in named.name
        assert int(refused.metadata["position"]) >= 0
    return "refused" if refusals else "served"


async def read_and_compare(topic: Topic, partition_id: int, *, complete: bool) -> None:
    partition = topic.partition(partition_id)
    offset = partition.earliest_offset
    while offset < partition.next_offset:
        for entry in await partition.read(offset, 1_000):
            values = [record.value for record in record_sets.unpack(entry.payload, entry.header.codec)]
            begin = entry.header.base_offset
            assert values == EXPECTED[partition_id][begin : begin + len(values)]
            offset = entry.header.next_offset
    if complete:
        assert partition.earliest_offset == (33 if partition_id == 1 else 0)
        assert partition.next_offset == RECORDS_PER_PARTITION


@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_no_damage_makes_the_broker_return_a_wrong_record(
    data_dirs: dict[str, Path], tmp_path: Path, end: str
) -> None:
    rng = random.Random(f"damage {end}")
    outcomes: Counter[str] = Counter()
    for case in range(CASES // 2):
        target = tmp_path / str(case)
        shutil.copytree(data_dirs[end], target)
        victims = choose(rng, target / "logs" / TOPIC, KINDS[case % len(KINDS)])
        described = [damage(rng, victim) for victim in victims]
        hurt = {int(victim.name.split("_")[1].split(".")[0]) for victim in victims}
        settings = BrokerSettings(data_dir=target, log=LogSettings(index_interval_bytes=256))
        try:
            outcomes[await examine(settings, hurt)] += 1
            # What a start repairs must be sound at the next one.
            await examine(settings, hurt)
        except Exception as error:
            raise AssertionError(f"case {case}, {described}: {error!r}") from error
        shutil.rmtree(target)
    assert outcomes["served"], "an index or an unsynced tail can be repaired"
    assert outcomes["refused"], "what was synced and sealed cannot"


async def test_a_damaged_partition_names_file_and_position_while_the_others_serve(
    data_dirs: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "data"
    shutil.copytree(data_dirs["stopped"], target)
    segment = target / "logs" / TOPIC / "partition_2_segment_1.log"
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    segment.with_suffix(".index").unlink()
    async with BrokerProcess.start(target) as broker, Client.connect(broker.grpc) as client:
        refused = refusal_of((await client.fetch(TOPIC, 2, 0)).error)
        assert refused == DATA_LOSS
        assert refused.metadata["file"] == f"{TOPIC}/{segment.name}"
        assert 0 < int(refused.metadata["position"]) < len(content)
        assert await refusal(client.publish(TOPIC, [b"x"], 2)) == DATA_LOSS
        call = client.consuming.Consume()
        await call.write(consume_pb.ConsumeRequest(start=consume_pb.ConsumeStart(topic=TOPIC, partition=2)))
        assert await refusal(call.read()) == DATA_LOSS
        described = await client.topics.DescribeTopic(topic_pb.DescribeTopicRequest(name=TOPIC))
        assert [bool(one.damage) for one in described.partitions] == [False, False, True]
        assert segment.name in described.partitions[2].damage
        assert segment.name in broker.log

        assert await client.read_values(TOPIC, 0) == EXPECTED[0]
        assert await client.read_values(TOPIC, 1) == EXPECTED[1][33:]
        assert (await client.publish(TOPIC, [b"more"], 0)).base_offset == RECORDS_PER_PARTITION
        for _ in range(4):
            assert (await client.publish(TOPIC, [b"in turn"] * 2, None)).partition != 2
        async with Member.join(client, "readers", TOPIC) as member:
            await member.until(lambda: (TOPIC, 2) in member.errors and len(member.received) == 2)
            assert refusal_of(member.errors[(TOPIC, 2)].error) == DATA_LOSS
        await client.topics.DeleteTopic(topic_pb.DeleteTopicRequest(name=TOPIC))
        await client.create_topic(TOPIC)
        assert (await client.publish(TOPIC, [b"fresh"])).base_offset == 0


async def damaged_partitions(broker: BrokerProcess) -> float:
    _, exposition = await get(broker.metrics, "/metrics")
    return samples(exposition).get(f'cursus_damaged_partitions{{topic="{TOPIC}"}}', 0)


async def test_a_topic_without_its_directory_is_damage_until_the_directory_is_back(
    data_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """As when a volume is not mounted."""
    target = tmp_path / "data"
    shutil.copytree(data_dirs["stopped"], target)
    directory = target / "logs" / TOPIC
    async with BrokerProcess.start(target) as broker:
        async with Client.connect(broker.grpc) as client:
            await client.create_topic("other")
            before = (await client.fetch(TOPIC, 0, 0)).leader_epoch
        await broker.terminate()
        directory.rename(tmp_path / "unmounted")
        # Twice: a start must not make what the next one would take for the log.
        for _ in range(2):
            await broker.launch()
            async with Client.connect(broker.grpc) as client:
                for partition in range(PARTITIONS):
                    refused = refusal_of((await client.fetch(TOPIC, partition, 0)).error)
                    assert refused == DATA_LOSS
                    assert refused.metadata["file"] == f"logs/{TOPIC}"
                assert await refusal(client.publish(TOPIC, [b"x"], 0)) == DATA_LOSS
                more = topic_pb.AddPartitionsRequest(name=TOPIC, partition_count=PARTITIONS + 1)
                assert await refusal(client.topics.AddPartitions(more)) == DATA_LOSS
                await client.publish("other", [b"served"])
                assert await damaged_partitions(broker) == PARTITIONS
                assert "partition.damaged" in broker.log
            assert not directory.exists()
            await broker.terminate()
        (tmp_path / "unmounted").rename(directory)
        await broker.launch()
        async with Client.connect(broker.grpc) as client:
            assert await client.read_values(TOPIC, 0) == EXPECTED[0]
            assert await damaged_partitions(broker) == 0
            # It may be another copy of the log: readers find out by the epoch.
            assert (await client.fetch(TOPIC, 0, 0)).leader_epoch > before


async def test_a_partition_without_any_file_is_damage_while_the_others_serve(
    data_dirs: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "data"
    shutil.copytree(data_dirs["killed"], target)
    for path in (target / "logs" / TOPIC).glob("partition_1[._]*"):
        path.unlink()
    async with BrokerProcess.start(target) as broker, Client.connect(broker.grpc) as client:
        refused = refusal_of((await client.fetch(TOPIC, 1, 0)).error)
        assert refused == DATA_LOSS
        assert refused.metadata["file"] == f"logs/{TOPIC}"
        assert await client.read_values(TOPIC, 0) == EXPECTED[0]
        assert await damaged_partitions(broker) == 1
        assert list((target / "logs" / TOPIC).glob("partition_1[._]*")) == []
        # The way out if the records are gone for good.
        await client.topics.DeleteTopic(topic_pb.DeleteTopicRequest(name=TOPIC))
        await client.create_topic(TOPIC, PARTITIONS)
        assert (await client.publish(TOPIC, [b"fresh"], 1)).base_offset == 0


async def test_damage_found_while_reading_ends_the_stream_with_its_place(
    data_dirs: dict[str, Path], tmp_path: Path
) -> None:
    """The segment is trusted at start, because its index says that it was sealed; the flipped bit shows when the entry
    is read.
    """
    target = tmp_path / "data"
    shutil.copytree(data_dirs["stopped"], target)
    segment = target / "logs" / TOPIC / "partition_0_segment_1.log"
    content = bytearray(segment.read_bytes())
    content[-10] ^= 1
    segment.write_bytes(content)
    async with BrokerProcess.start(target) as broker, Client.connect(broker.grpc) as client:
        async with ConsumeStream.open(client, TOPIC, 0, max_response_bytes=500) as stream:
            read: list[bytes] = []

            async def read_on() -> None:
                while (found := await stream.next()) is not None:
                    read.extend(one.value for one in found)

            refused = await refusal(read_on())
        assert refused == DATA_LOSS
        assert refused.metadata["file"] == f"{TOPIC}/{segment.name}"
        assert read == EXPECTED[0][: len(read)]
        assert read
        assert await client.read_values(TOPIC, 1) == EXPECTED[1][33:]


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5_000])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(random.Random(3).randbytes(path.stat().st_size))


def garble_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4_096:] = random.Random(4).randbytes(len(content) - 4_096)
    path.write_bytes(content)


def break_configuration(path: Path) -> None:
    """Sound for SQLite, and nonsense for us."""
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE topics SET config = '{broken'")
    connection.close()


def content_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("spoil", [remove, cut, empty, garble, garble_pages, break_configuration])
async def test_a_broker_refuses_to_start_without_sound_metadata(
    data_dirs: dict[str, Path], tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    """Also when it is asked twice: a supervisor starts a broker again at once."""
    target = tmp_path / "data"
    shutil.copytree(data_dirs["stopped"], target)
    database = target / "metadata.db"
    spoil(database)
    before = content_of(database)
    process = BrokerProcess.start(target)
    for _ in range(2):
        assert await process.expect_refusal() == 1
        assert "metadata" in process.log or "configuration" in process.log
        assert "Traceback" not in process.log
    # A database that is sound as such notes that it was opened; any other is left as it was.
    assert content_of(database) == before or spoil is break_configuration
    topics = [path.name for path in (target / "logs").iterdir() if path.is_dir()]
    assert topics == [TOPIC], "the logs are where they were"


async def test_a_log_directory_nobody_knows_is_set_aside_and_said(data_dirs: dict[str, Path], tmp_path: Path) -> None:
    """What a deletion that was interrupted leaves behind."""
    target = tmp_path / "data"
    shutil.copytree(data_dirs["stopped"], target)
    shutil.copytree(target / "logs" / TOPIC, target / "logs" / "unknown")
    async with BrokerProcess.start(target) as broker, Client.connect(broker.grpc) as client:
        listed = await client.topics.ListTopics(topic_pb.ListTopicsRequest())
        assert [topic.name for topic in listed.topics] == [TOPIC]
        (aside,) = (path for path in (target / "logs").iterdir() if path.name.startswith(".orphaned"))
        assert aside.name in broker.log
        assert (aside / "partition_0_segment_0.log").exists()
        await client.create_topic("unknown")
        assert await client.read_values("unknown") == []


async def test_a_start_that_is_refused_leaves_the_directory_unlocked(
    data_dirs: dict[str, Path], tmp_path: Path
) -> None:
    target = tmp_path / "data"
    shutil.copytree(data_dirs["stopped"], target)
    (target / "metadata.db").rename(tmp_path / "aside.db")
    settings = BrokerSettings(data_dir=target)
    with pytest.raises(CursusError, match="missing"):
        async with Broker.open(settings):
            pass
    (tmp_path / "aside.db").rename(target / "metadata.db")
    async with Broker.open(settings) as broker:
        entries = await broker.catalog.topic(TOPIC).partition(0).read(Offset(0), 1)
        assert entries[0].header.base_offset == 0
