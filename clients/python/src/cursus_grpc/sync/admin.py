"""The blocking admin client: every method of AsyncAdmin, where it is described, run on the shared loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from cursus_grpc._admin import AsyncAdmin
from cursus_grpc._faces import described_by
from cursus_grpc._loop_thread import LoopThread
from cursus_grpc.types import (
    TLS,
    BrokerInfo,
    ClusterInfo,
    CommittedOffset,
    GroupDescription,
    GroupSummary,
    ListedOffset,
    OffsetAndMetadata,
    OffsetChange,
    PartitionInfo,
    Place,
    ProducerState,
    TopicConfig,
    TopicDescription,
    TopicInfo,
    TopicPartition,
)


@described_by(AsyncAdmin)
class Admin:
    """Creates, looks up, changes and deletes topics and groups. For any number of threads.

    >>> with Admin(broker.address) as admin:
    ...     topic = admin.create_topic("shipments", partitions=2)
    ...     print(topic.name, topic.partition_count)
    shipments 2
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        tls: TLS | None = None,
        request_timeout_s: float = 30.0,
        client_id: str = "cursus-python",
    ) -> None:
        self._admin = AsyncAdmin(bootstrap, tls=tls, request_timeout_s=request_timeout_s, client_id=client_id)
        self._run = LoopThread.shared().run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._run(self._admin.close())

    def connect(self, timeout_s: float = 2.0) -> None:
        self._run(self._admin.connect(timeout_s))

    def create_topic(self, name: str, partitions: int | None = None, config: TopicConfig | None = None) -> TopicInfo:
        return self._run(self._admin.create_topic(name, partitions, config))

    def delete_topic(self, name: str) -> None:
        self._run(self._admin.delete_topic(name))

    def list_topics(self) -> list[TopicInfo]:
        return self._run(self._admin.list_topics())

    def describe_topic(self, name: str) -> TopicDescription:
        return self._run(self._admin.describe_topic(name))

    def update_topic(self, name: str, config: TopicConfig | None = None, reset_fields: Sequence[str] = ()) -> TopicInfo:
        return self._run(self._admin.update_topic(name, config, reset_fields))

    def add_partitions(self, name: str, partitions: int) -> TopicInfo:
        return self._run(self._admin.add_partitions(name, partitions))

    def list_offsets(
        self, topic: str, at: Place, partitions: Collection[int] = (), *, sync: bool = False
    ) -> dict[int, ListedOffset]:
        return self._run(self._admin.list_offsets(topic, at, partitions, sync=sync))

    def find_truncations(self, positions: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int]:
        return self._run(self._admin.find_truncations(positions))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        return self._run(self._admin.delete_records(topic, before))

    def reopen_partition(self, topic: str, partition: int) -> tuple[bool, PartitionInfo]:
        """Have the broker open a partition anew; see `AsyncAdmin.reopen_partition`."""
        return self._run(self._admin.reopen_partition(topic, partition))

    def describe_producers(
        self, topic: str, partition: int, producer_ids: Collection[bytes]
    ) -> dict[bytes, ProducerState]:
        return self._run(self._admin.describe_producers(topic, partition, producer_ids))

    def release_producers(self, topic: str, partition: int, epochs: Mapping[bytes, int]) -> int:
        return self._run(self._admin.release_producers(topic, partition, epochs))

    def list_groups(self) -> list[GroupSummary]:
        return self._run(self._admin.list_groups())

    def describe_group(self, group: str) -> GroupDescription:
        return self._run(self._admin.describe_group(group))

    def delete_group(self, group: str) -> None:
        self._run(self._admin.delete_group(group))

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] = ()
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._run(self._admin.fetch_offsets(group, partitions))

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        self._run(self._admin.commit_offsets(group, offsets))

    def reset_offsets(
        self, group: str, to: Mapping[str | TopicPartition, Place], *, dry_run: bool = False
    ) -> list[OffsetChange]:
        return self._run(self._admin.reset_offsets(group, to, dry_run=dry_run))

    def remove_member(self, group: str, *, member_id: str = "", instance_id: str = "") -> None:
        self._run(self._admin.remove_member(group, member_id=member_id, instance_id=instance_id))

    def describe_cluster(self, topics: Iterable[str] = ()) -> ClusterInfo:
        return self._run(self._admin.describe_cluster(topics))

    def broker_info(self) -> BrokerInfo:
        return self._run(self._admin.broker_info())
