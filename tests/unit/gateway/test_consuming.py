"""CONSUME as frames of single messages, over several fetches, with a log that is cut between two of them."""

from __future__ import annotations

from typing import Any, cast

from google.rpc.error_details_pb2 import ErrorInfo

from cursus_gateway.consuming import Consuming
from cursus_gateway.dialect.commands import ConsumeAll
from cursus_gateway.epochs import ReadUpTo
from cursus_gateway.framing import frame
from cursus_gateway.membership import Membership
from cursus_gateway.settings import GroupSettings, UnpackingSettings
from cursus_gateway.unpacking import Unpacking
from cursus_gateway.upstream import Upstream
from cursus_proto import records as record_sets
from cursus_proto.cutting import Fetched, stored
from cursus_proto.internal.v1.opaque_pb2 import FetchedPartition, RecordBatch
from cursus_proto.v1 import consume_service_pb2 as pb
from cursus_proto.v1.records_pb2 import Record


class CutUpstream:
    """A log of three messages in epoch 1 that, once they were fetched, is cut at 1 and has `new` there in epoch 2."""

    timeout_s = 1.0

    def __init__(self) -> None:
        self.asked: list[tuple[int, int | None]] = []

    async def call(self, _method: object, request: pb.FetchRequest, **_how: Any) -> list[Fetched]:
        (part,) = request.partitions
        epoch = part.leader_epoch if part.HasField("leader_epoch") else None
        self.asked.append((part.offset, epoch))
        if len(self.asked) == 1:
            return [found(1, 0, [b"a", b"b", b"c"])]
        if epoch == 1:
            refused = FetchedPartition()
            metadata = {"offset": "1", "leader_epoch": "2", "requested": "3", "earliest": "0", "latest": "2"}
            refused.error.details.add().Pack(ErrorInfo(reason="LOG_TRUNCATED", domain="cursus", metadata=metadata))
            return [(refused, [])]
        return [found(2, 1, [b"new"]) if part.offset == 1 else found(2, part.offset, [])]


def found(epoch: int, base_offset: int, values: list[bytes]) -> Fetched:
    packed = record_sets.pack([Record(value=value) for value in values])
    batches = [RecordBatch(base_offset=base_offset, record_count=len(values), records=packed)] if values else []
    return FetchedPartition(leader_epoch=epoch), stored(batches)


class Commits:
    """Notes what is committed."""

    def __init__(self) -> None:
        self.made: list[dict[int, ReadUpTo]] = []

    async def commit(self, _topic: str, _group: str, offsets: dict[int, ReadUpTo]) -> None:
        self.made.append(offsets)


async def test_what_is_stored_behind_a_cut_is_sent_and_committed_in_its_epoch() -> None:
    upstream, commits = CutUpstream(), Commits()
    consuming = Consuming(
        cast("Upstream", upstream), cast("Membership", commits), Unpacking(UnpackingSettings()), GroupSettings()
    )
    sent = [part async for parts in consuming.consume_all(ConsumeAll("t", 0, 0), "g", 0) for part in parts]
    assert sent == [frame(payload) for payload in (b"a", b"b", b"c", b"new")]
    assert upstream.asked == [(0, None), (3, 1), (1, None), (2, 2)]
    assert commits.made == [{0: ReadUpTo(2, 2)}]
