"""An application's own choice of partitions."""

from __future__ import annotations

from collections.abc import Callable

from cursus_grpc.errors import PartitionerFailed

Partitioner = Callable[[str, bytes | None, int], int | None]
"""Called with the topic, a record's key and the number of partitions, for records that name none. It may be called on
any thread, returns a partition, or None to leave the choice to the producer, and must not block."""


def chosen(partitioner: Partitioner, topic: str, key: bytes | None, partition_count: int) -> int | None:
    """Raises PartitionerFailed for what is no partition of the topic, and caused by what it raises."""
    try:
        partition = partitioner(topic, key, partition_count)
    except Exception as error:
        raise PartitionerFailed(f"the partitioner failed for topic {topic!r}: {error!r}", {"topic": topic}) from error
    if partition is None or (type(partition) is int and 0 <= partition < partition_count):
        return partition
    raise PartitionerFailed(
        f"the partitioner chose {partition!r} for topic {topic!r}, which has {partition_count}, numbered from 0",
        {"topic": topic},
    )
