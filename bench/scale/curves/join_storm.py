"""Many members that join one large group at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

from bench.scale import clients
from bench.scale.curve import Curve, Round, Stage, doubling
from bench.setting import topics
from cursus_proto.v1 import consume_service_pb2 as consume_pb
from cursus_transport import Channel, StreamCall

PARTITIONS: Final = 2_000
CHANNELS: Final = 8


@asynccontextmanager
async def prepare(stage: Stage, size: int) -> AsyncIterator[Round]:
    async with stage.broker() as broker, topics(broker.address) as admin:
        await admin.create("shared", PARTITIONS)
        numbers = count()

        async def one() -> float:
            group = f"storm-{next(numbers)}"
            channels = [Channel(broker.address) for _ in range(CHANNELS)]
            try:
                before = broker.cpu_seconds()
                changed = asyncio.Event()
                shares = [_Share(channels[number % CHANNELS], changed) for number in range(size)]
                await asyncio.gather(*(share.join(group) for share in shares))
                async with asyncio.TaskGroup() as tasks:
                    following = [tasks.create_task(share.follow()) for share in shares]
                    while sum(share.owned for share in shares) < PARTITIONS or not all(s.complete for s in shares):
                        await changed.wait()
                        changed.clear()
                    for task in following:
                        task.cancel()
                return (broker.cpu_seconds() - before) / size * 1e6
            finally:
                for channel in channels:
                    await channel.close()

        yield one


class _Share:
    """A member that acknowledges whatever it is given."""

    def __init__(self, channel: Channel, changed: asyncio.Event) -> None:
        self._changed = changed
        self.owned = 0
        self.complete = False
        self._call: StreamCall[bytes, bytes] = channel.stream_stream(clients.SUBSCRIBE)()

    async def join(self, group: str) -> None:
        start = consume_pb.SubscribeStart(group=group, topics=["shared"])
        await self._call.write(consume_pb.SubscribeRequest(start=start).SerializeToString())

    async def follow(self) -> None:
        while True:
            answer = consume_pb.SubscribeResponse.FromString(bytes(await self._call.read()))
            if answer.WhichOneof("response") == "assignment":
                self.owned, self.complete = len(answer.assignment.partitions), answer.assignment.complete
                self._changed.set()
                ack = consume_pb.AssignmentAck(generation=answer.assignment.generation)
                await self._call.write(consume_pb.SubscribeRequest(assignment_ack=ack).SerializeToString())


CURVE: Final = Curve(
    "scale-join-storm",
    "Members that join one group at once",
    "members",
    "processor time until everybody has his share, for each member, in µs",
    doubling(10, 500),
    80,
    prepare,
    (),
    [f"One group of {PARTITIONS:,} partitions, over {CHANNELS} connections; nothing is published."],
)
