"""One segment file by itself: walking it, and finding a place in it by whatever index there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.api import MANY_RECORDS, EntryHeader
from cursus_broker.log.entry import CONTROL_BYTES, BadEntry, pack_header, unpack_header
from cursus_broker.log.files import RealFiles
from cursus_broker.log.resources import Resources
from cursus_broker.log.segment import Segment, read_control, store_index, walk
from cursus_broker.log.settings import LogSettings
from tests.unit.broker.log.support import batch_of


@pytest.fixture
def resources() -> Resources:
    return Resources.of(RealFiles(), LogSettings(index_interval_bytes=1000))


def write(resources: Resources, segment: Segment, payload: bytes, producer_id: bytes = b"") -> EntryHeader:
    batch = batch_of(payload, 2, producer_id)
    head = pack_header(batch, segment.next_offset, 1000 + segment.next_offset, 0)
    header = unpack_header(head, 0, len(head))
    assert header is not None
    size = len(head) + len(payload)
    segment.write(resources, (head, payload), size)
    segment.note(header, size, resources.settings.index_interval_bytes)
    return header


@pytest.fixture
def segment(resources: Resources, tmp_path: Path) -> Segment:
    """Entries of very different sizes, some with a producer id longer than what a walk reads at once."""
    made = Segment.create(resources, f"{tmp_path}/partition_0_segment_3.log", 3, 500, 77, 400)
    for number in range(30):
        write(resources, made, bytes([number]) * (number**3), b"p" * (20_000 if number % 10 == 5 else number))
    return made


def test_a_new_segment_knows_its_base_and_age(resources: Resources, segment: Segment) -> None:
    with resources.pool.lease(segment.path) as handle:
        control = read_control(resources.files, handle.descriptor)
    assert (control.base_offset, control.append_time_ms) == (500, 77)


@pytest.mark.parametrize("payloads", [True, False])
def test_a_walk_meets_every_entry(resources: Resources, segment: Segment, payloads: bool) -> None:
    with resources.pool.lease(segment.path) as handle:
        found = list(
            walk(resources.files, handle.descriptor, 500, CONTROL_BYTES, segment.size_bytes, payloads=payloads)
        )
    assert [header.base_offset for _, header, _ in found] == list(range(500, 560, 2))
    assert [header.payload_bytes for _, header, _ in found] == [number**3 for number in range(30)]


def test_a_walk_stops_at_the_position_of_the_first_bad_entry(resources: Resources, segment: Segment) -> None:
    with resources.pool.lease(segment.path) as handle:
        for size_bytes in (segment.size_bytes - 1, CONTROL_BYTES + 10):
            with pytest.raises(BadEntry) as caught:
                list(walk(resources.files, handle.descriptor, 500, CONTROL_BYTES, size_bytes, payloads=True))
            assert CONTROL_BYTES <= caught.value.position < size_bytes


@pytest.mark.parametrize("max_bytes", [1, 500, 10**6])
def test_every_offset_is_found_with_and_without_the_cache(
    resources: Resources, segment: Segment, max_bytes: int
) -> None:
    assert segment.index is not None
    store_index(resources.files, segment, segment.index)
    segment.index = None
    for offset in range(500, 560):
        taken = segment.read(resources, None, offset, max_bytes, MANY_RECORDS, segment.size_bytes, False)
        first = taken.entries[0].header
        assert first.base_offset <= offset < first.next_offset
        assert taken.entries[0].payload == bytes([(offset - 500) // 2]) * first.payload_bytes


def test_a_lost_index_is_rebuilt_from_the_log(resources: Resources, segment: Segment) -> None:
    grown, segment.index = segment.index, None
    assert grown is not None
    rebuilt = segment.load_index(resources)
    assert (rebuilt.offsets, rebuilt.positions, rebuilt.times) == (grown.offsets, grown.positions, grown.times)
    assert resources.files.exists(segment.index_path)


def test_a_file_that_became_shorter_is_damage(resources: Resources, segment: Segment) -> None:
    with resources.pool.lease(segment.path, writable=True) as handle:
        resources.files.truncate(handle.descriptor, segment.size_bytes - 5)
    with pytest.raises(PartitionDamaged):
        segment.read(resources, None, 559, 100, MANY_RECORDS, segment.size_bytes, False)
