"""Consumers that lag or stand still: publishers do not notice, memory stays flat, and both read everything later.

Nothing here is timed. That publishers are not held up shows in their finishing the whole amount while the stopped
consumer has read nothing and the slow one has read a small part; if either could block them, the test would hang.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
import psutil
import pytest

from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_proto.v1 import publish_service_pb2 as pb
from cursus_proto.v1.records_pb2 import OFFSET_EDGE_EARLIEST, FlowGrant, OffsetSpec, RecordBatch
from tests.harness.clients import Client, publish_request, stored_records
from tests.harness.processes import BrokerProcess

if TYPE_CHECKING:
    ConsumeCall = grpc.aio.StreamStreamCall[consume_pb.ConsumeRequest, consume_pb.ConsumeResponse]

TOPIC: Final = "orders"
MIB: Final = 1024 * 1024
BATCHES: Final = 224
RECORDS: Final = 16
VALUE_BYTES: Final = 64 * 1024  # a batch is a mebibyte
TAIL_BYTES: Final = 32 * MIB
# The tail, the windows of the streams, what the transport holds for a reader that does not read, and slack.
MAX_GROWTH_BYTES: Final = TAIL_BYTES + 64 * MIB
IN_FLIGHT: Final = 6


def values_of(batch: int) -> list[bytes]:
    """Values that tell their batch, and do not compress or compare alike."""
    return [(b"%06d %03d " % (batch, record)).ljust(VALUE_BYTES, b"%d" % (batch % 10)) for record in range(RECORDS)]


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess.start(
        tmp_path / "data", "--consume-tail-bytes", str(TAIL_BYTES), "--log-segment-bytes", "16MiB"
    ) as process:
        yield process


class Consumer:
    """A Consume stream from the earliest offset on that follows the log and is read only when the test says so."""

    def __init__(self, call: ConsumeCall) -> None:
        self._call = call
        self.offset = 0

    @classmethod
    async def start(cls, client: Client, grant: FlowGrant | None = None) -> Consumer:
        call = client.consuming.Consume()
        start = consume_pb.ConsumeStart(topic=TOPIC, start_at=OffsetSpec(edge=OFFSET_EDGE_EARLIEST), grant=grant)
        await call.write(consume_pb.ConsumeRequest(start=start))
        started = await call.read()
        assert isinstance(started, consume_pb.ConsumeResponse)
        assert started.WhichOneof("response") == "started"
        return cls(call)

    async def grant(self, count: int) -> None:
        await self._call.write(consume_pb.ConsumeRequest(grant=FlowGrant(bytes=count)))

    async def read(self) -> int:
        """Read one response and check every record in it; answers how many bytes of values it held."""
        response = await self._call.read()
        assert isinstance(response, consume_pb.ConsumeResponse), "the stream ended"
        return sum(self._check(batch) for batch in response.batches.batches)

    def _check(self, batch: RecordBatch) -> int:
        assert batch.base_offset == self.offset
        values = [one.value for one in stored_records(batch)]
        assert values == values_of(self.offset // RECORDS)
        self.offset += len(values)
        return sum(map(len, values))


async def publish(client: Client, batches: range, broker: psutil.Process) -> AsyncIterator[int]:
    """Publish over a pipelined stream; yields the broker's resident bytes after every acknowledged batch."""
    flying: deque[asyncio.Future[pb.PublishOutcome | None]] = deque()
    async with client.publish_stream() as stream:
        for batch in batches:
            flying.append(await stream.send(publish_request(TOPIC, values_of(batch))))
            while len(flying) == IN_FLIGHT or (flying and batch == batches[-1]):
                outcome = await flying.popleft()
                assert outcome is not None
                assert outcome.HasField("published"), outcome.refused
                yield broker.memory_info().rss


@pytest.mark.slow
async def test_a_slow_and_a_stopped_consumer_hold_nobody_up_and_miss_nothing(broker: BrokerProcess) -> None:
    process = psutil.Process(broker.pid)
    async with (
        Client.connect(broker.grpc) as publishing,
        Client.connect(broker.grpc) as stopping,
        Client.connect(broker.grpc) as slowing,
    ):
        await publishing.create_topic(TOPIC)
        stopped = await Consumer.start(stopping)  # no credit needed: only the transport holds the broker back
        slow = await Consumer.start(slowing, FlowGrant(bytes=MIB))

        before = process.memory_info().rss
        peak, acknowledged = before, 0
        async for resident in publish(publishing, range(BATCHES), process):
            peak = max(peak, resident)
            acknowledged += 1
            if acknowledged % 16 == 0:  # one batch for every sixteen that are published
                await slow.grant(await slow.read())
        assert acknowledged == BATCHES
        assert stopped.offset == 0
        assert 0 < slow.offset <= BATCHES * RECORDS // 8
        assert peak - before < MAX_GROWTH_BYTES, f"grew by {(peak - before) / MIB:.0f} MiB"

        await slow.grant(2 * BATCHES * MIB)
        for consumer in (slow, stopped):
            while consumer.offset < BATCHES * RECORDS:
                await consumer.read()
                peak = max(peak, process.memory_info().rss)
        assert peak - before < MAX_GROWTH_BYTES, f"grew by {(peak - before) / MIB:.0f} MiB while they caught up"

        # Both have caught up and are live readers again.
        async for _ in publish(publishing, range(BATCHES, BATCHES + 1), process):
            pass
        for consumer in (slow, stopped):
            while consumer.offset < (BATCHES + 1) * RECORDS:
                await consumer.read()
