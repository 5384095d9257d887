"""ClusterService on the wire: one broker leads everything, and says so."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from cursus_broker import __version__
from cursus_broker.errors import PartitionDamaged
from cursus_broker.topics.catalog import Catalog
from cursus_broker.topics.partition import Partition
from cursus_proto.v1 import cluster_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this broker is to its clients."""

    broker_id: int
    cluster_id: str
    host: str
    port: int
    started_ms: int


class ClusterServicer:
    def __init__(self, catalog: Catalog, identity: Identity, data_dir: Path, max_batch_bytes: int) -> None:
        self._catalog = catalog
        self._identity = identity
        self._data_dir = data_dir
        self._max_batch_bytes = max_batch_bytes

    async def get_metadata(self, request: pb.GetMetadataRequest, _: str) -> pb.GetMetadataResponse:
        me = self._identity
        wanted = set(request.topics)
        response = pb.GetMetadataResponse(
            cluster_id=me.cluster_id,
            brokers=[pb.BrokerAddress(broker_id=me.broker_id, host=me.host, port=me.port)],
        )
        for topic in self._catalog.topics():
            if wanted and topic.name not in wanted:
                continue
            response.topics.add(
                name=topic.name,
                topic_id=str(topic.id),
                partitions=[
                    pb.PartitionMetadata(partition=number, leader_id=me.broker_id, leader_epoch=_epoch(partition))
                    for number, partition in enumerate(topic.partitions)
                ],
            )
        return response

    async def get_broker_info(self, _request: pb.GetBrokerInfoRequest, _: str) -> pb.GetBrokerInfoResponse:
        disk = shutil.disk_usage(self._data_dir)
        topics = self._catalog.topics()
        return pb.GetBrokerInfoResponse(
            version=__version__,
            broker_id=self._identity.broker_id,
            cluster_id=self._identity.cluster_id,
            started_ms=self._identity.started_ms,
            now_ms=time.time_ns() // 1_000_000,
            max_batch_bytes=self._max_batch_bytes,
            topic_count=len(topics),
            partition_count=self._catalog.total_partitions,
            disk_free_bytes=disk.free,
            disk_total_bytes=disk.total,
            log_bytes=sum(one.log.size_bytes for topic in topics for one in topic.healthy()),
        )


def _epoch(partition: Partition | PartitionDamaged) -> int:
    """0 for a log that could not be opened: it is in no epoch."""
    return 0 if isinstance(partition, PartitionDamaged) else partition.leader_epoch
