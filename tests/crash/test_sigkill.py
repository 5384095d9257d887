"""SIGKILL under load, again and again: what was acknowledged is there once, in order, at its offset.

The moments are chosen by progress, not by a clock: a round kills the broker when a number of batches has been
acknowledged, while producers keep several batches in flight, so that the kill meets batches in every state. The
numbers come from a seeded generator.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cursus_broker.log.entry import CONTROL_BYTES, stored_bytes, unpack_header
from cursus_proto import chain
from cursus_proto import records as record_sets
from cursus_proto.v1 import publish_service_pb2 as pb
from tests.harness.clients import Client, PublishStream, StoredRecord, publish_request
from tests.harness.processes import BrokerProcess

TOPIC: Final = "orders"
PARTITIONS: Final = 3
ROUNDS: Final = 20
IN_FLIGHT: Final = 6
CUT_EVENT: Final = "log.recovery.cut"


@dataclass(slots=True)
class Sent:
    """A batch of a producer, always sent with the same bytes."""

    request: pb.PublishRequest
    values: list[bytes]
    offset: int | None = None
    """Where the broker said it lies; None while it is not acknowledged."""


@dataclass(slots=True)
class Load:
    """One producer of one partition. A numbered one sends again what was not acknowledged; an anonymous one cannot
    know whether that would store it twice, and goes on with new records."""

    name: str
    partition: int
    numbered: bool
    rng: random.Random
    sent: list[Sent] = field(default_factory=list)
    records: int = 0

    def again(self) -> Iterator[Sent]:
        """What has to be sent first after a broken stream."""
        return (one for one in self.sent if self.numbered and one.offset is None)

    def fresh(self) -> Sent:
        count = self.rng.randint(1, 8)
        values = [
            b"%s %d %s" % (self.name.encode(), self.records + index, self.rng.randbytes(self.rng.randint(0, 300)))
            for index in range(count)
        ]
        producer = pb.ProducerIdentity(id=self.name.encode(), first_sequence=self.records) if self.numbered else None
        acks = self.rng.choice((pb.ACKS_WRITTEN, pb.ACKS_ALL))
        request = publish_request(TOPIC, values, self.partition, acks, producer)
        # Nothing here is to be known by its content: a single record is stored however often it is sent.
        request.deduplication = pb.DEDUPLICATION_UNSPECIFIED if self.numbered else pb.DEDUPLICATION_NONE
        self.records += count
        self.sent.append(one := Sent(request, values))
        return one

    async def run(self, stream: PublishStream, progress: Progress) -> None:
        """Publish until the stream breaks, a few batches in flight."""
        again = self.again()
        flying: deque[tuple[Sent, asyncio.Future[pb.PublishOutcome | None]]] = deque()
        while True:
            while len(flying) < IN_FLIGHT:
                one = next(again, None) or self.fresh()
                flying.append((one, await stream.send(one.request)))
            one, answer = flying.popleft()
            outcome = await answer
            if outcome is None:
                return
            assert outcome.HasField("published"), outcome.refused
            (place,) = outcome.published.appended
            assert place.partition == self.partition
            assert place.record_count == len(one.values)
            one.offset = place.base_offset
            progress.acknowledged()

    async def check_checksum(self, client: Client) -> None:
        """What the broker says to have stored is what this producer would send again."""
        name = self.name.encode()
        request = pb.DescribeProducersRequest(topic=TOPIC, partition=self.partition, producer_ids=[name])
        (stored,) = (await client.publishing.DescribeProducers(request)).producers
        checksum = sequence = 0
        for sent in self.sent if self.numbered else ():
            if sequence < stored.next_sequence:
                packed = record_sets.checksum(sent.request.records.SerializeToString())
                checksum = chain.extend(checksum, sequence, len(sent.values), packed)
                sequence += len(sent.values)
        assert (stored.known, stored.next_sequence, stored.checksum) == (sequence > 0, sequence, checksum)

    def check(self, found: list[StoredRecord]) -> None:
        """Compare everything the partition holds with what this producer knows."""
        values = {one.offset: one.value for one in found}
        for sent in self.sent:
            if sent.offset is not None:
                assert [values[sent.offset + index] for index in range(len(sent.values))] == sent.values
        mine = [one.value for one in found if one.value.startswith(self.name.encode() + b" ")]
        known = [value for sent in self.sent for value in sent.values]
        if self.numbered:
            # Also what was not acknowledged is there without a gap, because its place is behind all that was.
            assert mine == known[: len(mine)]
        else:
            there = set(mine)
            assert len(there) == len(mine)
            assert mine == [value for value in known if value in there]


class Progress:
    """Tells when enough batches have been acknowledged."""

    def __init__(self, target: int) -> None:
        self._left = target
        self.reached = asyncio.Event()
        self.acknowledged(0)

    def acknowledged(self, count: int = 1) -> None:
        self._left -= count
        if self._left <= 0:
            self.reached.set()


async def round_of_load(broker: BrokerProcess, loads: list[Load], progress: Progress) -> None:
    """Publish with all producers, each on a stream of its own, and kill the broker when the progress is made."""
    async with Client.connect(broker.grpc) as client, asyncio.TaskGroup() as tasks:

        async def run(load: Load) -> None:
            async with client.publish_stream() as stream:
                opened.release()
                await load.run(stream, progress)

        opened = asyncio.Semaphore(0)
        for load in loads:
            tasks.create_task(run(load), name=load.name)
        for _ in loads:
            await opened.acquire()
        await progress.reached.wait()
        await broker.kill()


def active_segment(data_dir: Path, partition: int) -> Path:
    segments = (data_dir / "logs" / TOPIC).glob(f"partition_{partition}_segment_*.log")
    return max(segments, key=lambda path: int(path.stem.rsplit("_", 1)[1]))


def last_entry(content: bytes) -> tuple[int, int] | None:
    """Position and base offset of the last batch in a segment; None if it holds none."""
    position, last = CONTROL_BYTES, None
    while (header := unpack_header(content, position, len(content))) is not None:
        last = (position, int(header.base_offset))
        position += stored_bytes(header)
    return last


def tear(path: Path, promised_offset: int, rng: random.Random) -> None:
    """Leave a torn tail behind what was promised: half of the last batch if it was not, else half a batch more."""
    content = path.read_bytes()
    last = last_entry(content)
    if last is not None and last[1] >= promised_offset and rng.random() < 0.7:
        path.write_bytes(content[: rng.randrange(last[0] + 1, len(content))])
        return
    garbage = rng.randbytes(rng.randint(1, 2_000))
    if last is not None and rng.random() < 0.5:
        garbage = content[last[0] : rng.randrange(last[0] + 1, len(content))]
    path.write_bytes(content + garbage)


async def test_acknowledged_records_survive_twenty_kills_once_and_in_order(tmp_path: Path) -> None:
    rng = random.Random(20)
    data_dir = tmp_path / "data"
    loads = [
        Load(f"{kind}-{partition}", partition, kind == "numbered", random.Random(partition))
        for partition in range(PARTITIONS)
        for kind in ("numbered", "anonymous")
    ]
    # Small segments, so that rounds also end in and around a roll.
    async with BrokerProcess.start(data_dir, "--log-segment-bytes", "64KiB") as broker:
        async with Client.connect(broker.grpc) as client:
            await client.create_topic(TOPIC, PARTITIONS)
        seen_offsets = [0] * PARTITIONS
        for number in range(ROUNDS):
            await round_of_load(broker, loads, Progress(rng.randint(0, 120)))

            torn = rng.sample(range(PARTITIONS), rng.randint(0, 2) if number else 1)
            for partition in torn:
                promised = [
                    sent.offset + len(sent.values)
                    for load in loads
                    for sent in load.sent
                    if load.partition == partition and sent.offset is not None
                ]
                tear(active_segment(data_dir, partition), max([seen_offsets[partition], *promised]), rng)
            cuts = broker.log.count(CUT_EVENT)
            await broker.launch()
            # A kill in the middle of a write may tear a tail of its own accord.
            assert broker.log.count(CUT_EVENT) >= cuts + len(torn)

            async with Client.connect(broker.grpc) as client:
                for partition in range(PARTITIONS):
                    found = await client.read_all(TOPIC, partition)
                    assert [one.offset for one in found] == list(range(len(found)))
                    for load in loads:
                        if load.partition == partition:
                            load.check(found)
                            await load.check_checksum(client)
                    seen_offsets[partition] = len(found)
        await finish(broker, loads)


async def finish(broker: BrokerProcess, loads: list[Load]) -> None:
    """Send what is still open once more: then every batch of the numbered producers is there exactly once."""
    async with Client.connect(broker.grpc) as client, client.publish_stream() as stream:
        for load in loads:
            for sent in load.again():
                outcome = await stream.publish(sent.request)
                assert outcome is not None
                assert outcome.HasField("published"), outcome.refused
                sent.offset = outcome.published.appended[0].base_offset
        for load in loads:
            found = await client.read_all(TOPIC, load.partition)
            load.check(found)
            mine = sum(one.value.startswith(load.name.encode() + b" ") for one in found)
            assert mine == load.records or not load.numbered
