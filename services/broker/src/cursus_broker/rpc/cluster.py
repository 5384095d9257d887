"""ClusterService on the wire: one broker leads everything, and says so."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cursus_broker import __version__
from cursus_broker.errors import PartitionDamaged
from cursus_broker.pace import Pace
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

    def __str__(self) -> str:
        """As the health page says it: what GetBrokerInfo answers, so that a client can compare the two."""
        return f"broker cluster={self.cluster_id} id={self.broker_id} started={self.started_ms}"


class ClusterServicer:
    def __init__(
        self,
        catalog: Catalog,
        identity: Identity,
        data_dir: Path,
        max_batch_bytes: int,
        is_disk_full: Callable[[], bool],
    ) -> None:
        self._is_disk_full = is_disk_full
        self._catalog = catalog
        self._identity = identity
        self._data_dir = data_dir
        self._max_batch_bytes = max_batch_bytes

    async def get_metadata(self, request: pb.GetMetadataRequest, _: str) -> pb.GetMetadataResponse:
        me = self._identity
        pace = Pace()
        response = pb.GetMetadataResponse(
            cluster_id=me.cluster_id,
            brokers=[pb.BrokerAddress(broker_id=me.broker_id, host=me.host, port=me.port)],
        )
        for topic in self._catalog.topics(request.topics or None):
            await pace.took(1 + len(topic.partitions))
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
        topics, pace, log_bytes = self._catalog.topics(), Pace(), 0
        for topic in topics:
            await pace.took(1 + len(topic.partitions))
            log_bytes += sum(one.log.size_bytes for one in topic.healthy())
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
            disk_full=self._is_disk_full(),
            log_bytes=log_bytes,
        )


def _epoch(partition: Partition | PartitionDamaged) -> int:
    """0 for a log that could not be opened: it is in no epoch."""
    return 0 if isinstance(partition, PartitionDamaged) else partition.leader_epoch
