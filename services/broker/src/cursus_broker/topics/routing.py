"""Where records go that do not name their partition: by key, else in turn."""

from __future__ import annotations

from collections.abc import Sequence

from cursus_broker.topics.topic import Topic
from cursus_proto.partitioner import partition_for_key
from cursus_proto.v1.records_pb2 import Record


def route(topic: Topic, records: Sequence[Record]) -> dict[int, Sequence[int]]:
    """Indexes of the records for each partition, in order. Records without a key go together to the next in turn."""
    count = len(topic.partitions)
    in_turn: int | None = None
    routed: dict[int, list[int]] = {}
    for index, record in enumerate(records):
        if record.HasField("key"):
            partition = partition_for_key(record.key, count)
        else:
            if in_turn is None:
                in_turn = topic.next_in_turn()
            partition = in_turn
        routed.setdefault(partition, []).append(index)
    return dict(routed)
