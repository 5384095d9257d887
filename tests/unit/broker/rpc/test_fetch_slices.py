"""A fetch of many partitions leaves the event loop to others, counted in partitions and not in seconds."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cursus_broker.app import Broker
from cursus_broker.consume.fetch import LOOKED_UP_TOGETHER
from cursus_broker.rpc.consume import ConsumeServicer
from cursus_broker.rpc.streams import Stopping
from cursus_broker.settings import BrokerSettings
from cursus_broker.topics.config import TopicConfig
from cursus_proto.v1 import consume_service_pb2 as pb

NAMED = 1_000


async def test_a_fetch_gives_others_a_turn_after_every_few_partitions(tmp_path: Path) -> None:
    async with Broker.open(BrokerSettings(data_dir=tmp_path / "data")) as broker:
        await broker.catalog.create("orders", 10, TopicConfig())
        servicer = ConsumeServicer(broker.catalog, 1_000, lambda _: None, lambda _: None, Stopping())
        parts = [pb.FetchPartition(topic="orders", partition=number % 10) for number in range(NAMED)]
        fetching = asyncio.ensure_future(servicer.fetch(pb.FetchRequest(partitions=parts), ""))
        turns = 0
        while not fetching.done():
            await asyncio.sleep(0)
            turns += 1
        assert len(pb.FetchResponse.FromString(await fetching).partitions) == NAMED
        # Reading the request, looking at the partitions and writing the answer.
        assert turns >= 3 * (NAMED // LOOKED_UP_TOGETHER)
