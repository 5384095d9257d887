"""`cursus consume` of a range whose log is cut while it is printed."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from cursus_grpc import Consumer, Record, TopicPartition
from cursus_grpc._records import BatchInfo, make_records
from cursus_grpc.cli.consume import Sink, _range
from cursus_grpc.cli.interrupt import Interrupt
from cursus_grpc.cli.session import Session
from cursus_grpc.errors import LogTruncated
from cursus_proto import records as record_sets
from cursus_proto.v1 import records_pb2

PLACE = TopicPartition("t", 0)


def records(word: str, offsets: range) -> Iterator[Record]:
    values = [f"{word} {offset}".encode() for offset in offsets]
    packed = record_sets.pack([records_pb2.Record(value=value) for value in values])
    return make_records(values, offsets, BatchInfo(PLACE, 0, offsets.start, packed, None))


class CutLog:
    """A consumer, and an admin, of a log that is cut at 3 when 5 of its 8 records were read, and has one more since."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def range(self, topic: str, partition: int, start: int, end: int) -> Iterator[Record]:
        self.asked.append((start, end))
        if len(self.asked) == 1:
            yield from records("old", range(start, 5))
            raise LogTruncated("the log was cut at offset 3: go on from 3", {"offset": "3", "leader_epoch": "2"})
        yield from records("new", range(start, end))

    def list_offsets(self, topic: str, place: Any, partitions: Any) -> dict[int, Any]:
        return {0: type("Listed", (), {"offset": 4})}

    @contextmanager
    def admin(self) -> Iterator[CutLog]:
        yield self


class Printed(Sink):
    """A sink that takes one record at a time, so that what was printed before the cut is known."""

    @property
    def room(self) -> int:
        return 1


def test_a_range_goes_on_at_the_cut_up_to_the_new_end(capsys: pytest.CaptureFixture[str]) -> None:
    log = CutLog()
    stream = io.BytesIO()
    with Interrupt.watched() as interrupt:
        sink = Printed(stream, lambda some: b"".join((one.value or b"") + b"\n" for one in some), interrupt, None)
        _range(cast("Session", log), cast("Consumer", log), PLACE, 0, 8, sink)
    # Not from the beginning again, and not up to an end that is gone.
    assert log.asked == [(0, 8), (3, 4)]
    assert stream.getvalue().split(b"\n") == [b"old 0", b"old 1", b"old 2", b"old 3", b"old 4", b"new 3", b""]
    assert capsys.readouterr().err == "warning: t[0]: the log was cut at offset 3: go on from 3\n"
