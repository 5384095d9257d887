"""One topic: its partitions, its configuration and the content it has seen lately."""

from __future__ import annotations

from uuid import UUID

from cursus_broker.errors import PartitionDamaged, PartitionNotFound
from cursus_broker.publish.dedup import ContentWindow
from cursus_broker.publish.recall import Recall
from cursus_broker.topics.config import TopicConfig
from cursus_broker.topics.partition import Partition


class Topic:
    """A named set of partitions. A partition whose log is damaged keeps its place, but answers only with the damage."""

    def __init__(
        self,
        name: str,
        topic_id: UUID,
        config: TopicConfig,
        created_ms: int,
        partitions: list[Partition | PartitionDamaged],
        content: ContentWindow,
        recall: Recall | None = None,
    ) -> None:
        self.name = name
        self.id = topic_id
        self.config = config
        self.created_ms = created_ms
        self.partitions = partitions
        self.content = content
        self.recall = recall
        """To be waited for before `content` is asked; None for a topic that is new."""
        self._turn = 0

    def partition(self, partition_id: int) -> Partition:
        """Raises PartitionNotFound, PartitionDamaged."""
        if not 0 <= partition_id < len(self.partitions):
            raise PartitionNotFound(self.name, partition_id, len(self.partitions))
        partition = self.partitions[partition_id]
        if isinstance(partition, PartitionDamaged):
            raise partition
        return partition

    def healthy(self) -> list[Partition]:
        """The partitions that can be served."""
        return [partition for partition in self.partitions if isinstance(partition, Partition)]

    def next_in_turn(self) -> int:
        """The partition that records without a key go to now: each in its turn, damaged ones left out."""
        for _ in self.partitions:
            turn = self._turn % len(self.partitions)
            self._turn += 1
            if isinstance(self.partitions[turn], Partition):
                return turn
        return self._turn % len(self.partitions)
