from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.log.api import Batch
from cursus_broker.log.entry import (
    CONTROL_BYTES,
    BadEntry,
    candidates,
    check_control,
    check_data,
    crc32c,
    pack_control,
    pack_header,
    stored_bytes,
    synced_before,
    take,
    unpack_header,
)
from tests.unit.broker.log.support import batch_of

BATCHES = st.builds(
    lambda payload, count, producer_id, sequence, epoch, codec: Batch(
        payload, count, crc32c(payload), codec, 3, producer_id, epoch, sequence
    ),
    st.binary(max_size=200),
    st.integers(1, 2**32 - 1),
    st.binary(max_size=40),
    st.integers(-1, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 255),
)


def packed(batch: Batch, offset: int = 0) -> bytes:
    return pack_header(batch, offset, 1_700_000_000_000, 0) + batch.payload


@given(BATCHES, st.integers(0, 2**62))
def test_an_entry_is_read_as_it_was_written(batch: Batch, offset: int) -> None:
    content = packed(batch, offset)
    header = unpack_header(content, 0, len(content))
    assert header is not None
    assert stored_bytes(header) == len(content)
    (entry,) = take(memoryview(content), 0, len(content), offset, offset, 10**6).entries
    assert entry.payload == batch.payload
    assert (header.base_offset, header.append_time_ms, header.record_count) == (
        offset,
        1_700_000_000_000,
        batch.record_count,
    )
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (
        batch.producer_id,
        batch.producer_epoch,
        batch.first_sequence,
    )
    assert (header.codec, header.flags, header.payload_crc) == (batch.codec, 3, batch.payload_crc)


@given(BATCHES, st.data())
def test_any_flipped_bit_is_noticed(batch: Batch, data: st.DataObject) -> None:
    content = bytearray(packed(batch))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        taken = take(memoryview(content), 0, len(content), 0, 0, 10**6)
    except BadEntry:
        return
    assert taken.entries == []


def test_the_bytes_do_not_change_by_accident() -> None:
    """These bytes are on disks. A change needs a new version number."""
    batch = Batch(b"payload", 2, crc32c(b"payload"), codec=1, producer_id=b"id", producer_epoch=5, first_sequence=6)
    assert (pack_header(batch, 7, 8, 4) + batch.payload).hex() == (
        "00000043"  # length
        "01010000"  # version, codec, flags
        "00000002"  # record_count
        "0000000000000007"  # base_offset
        "0000000000000008"  # append_time
        "0000000000000004"  # synced_before
        "0000000000000005"  # producer_epoch
        "0000000000000006"  # first_sequence
        "0002"  # producer_id_bytes
        "f4e36970"  # payload_crc
        "f90cfa63"  # header_crc
        "6964"
        "7061796c6f6164"
    )


def test_the_control_entry_carries_base_and_creation() -> None:
    content = pack_control(1000, 99, 900)
    assert len(content) == CONTROL_BYTES
    header = unpack_header(content, 0, len(content))
    assert header is not None
    check_control(header, 0)
    assert (header.base_offset, header.append_time_ms, synced_before(content, 0)) == (1000, 99, 900)
    with pytest.raises(BadEntry, match="control"):
        check_data(header, 0, 1000)


def test_a_sound_entry_in_the_wrong_place_is_refused() -> None:
    content = memoryview(packed(batch_of(b"x"), 5))
    with pytest.raises(BadEntry, match="offset 5 where 4"):
        take(content, 0, len(content), 4, 4, 100)


def test_taking_stops_before_the_limit_but_takes_one() -> None:
    content = memoryview(b"".join(packed(batch_of(bytes(50)), offset) for offset in range(4)))
    size = len(content) // 4
    assert len(take(content, 0, len(content), 0, 0, 1).entries) == 1
    assert len(take(content, 0, len(content), 0, 0, 2 * size).entries) == 2
    assert [entry.header.base_offset for entry in take(content, 0, len(content), 0, 2, 10**6).entries] == [2, 3]


def test_what_lies_before_a_bad_place_is_taken_and_the_place_is_met_next() -> None:
    sound = b"".join(packed(batch_of(b"x"), offset) for offset in range(2))
    content = memoryview(sound + packed(batch_of(b"x"), 7))
    taken = take(content, 0, len(content), 0, 0, 10**6)
    assert [entry.header.base_offset for entry in taken.entries] == [0, 1]
    assert (taken.position, taken.next_offset) == (len(sound), 2)
    with pytest.raises(BadEntry, match="offset 7 where 2"):
        take(content, taken.position, len(content), 2, 2, 10**6)


def test_a_buffer_that_ends_within_an_entry_tells_how_much_is_needed() -> None:
    content = memoryview(packed(batch_of(bytes(500), producer_id=b"p" * 30)))
    for end in range(len(content)):
        taken = take(content, 0, end, 0, 0, 10**6)
        assert taken.entries == []
        assert end < taken.needed_bytes <= len(content)
    # A passed over entry may end beyond the buffer; the next one begins there.
    assert take(content, 0, 200, 0, 1, 10**6).position == len(content)


def test_candidates_finds_entries_in_rubble() -> None:
    rubble = bytes(range(256)) * 8
    first, second = packed(batch_of(b"a"), 2**32 - 1), packed(batch_of(b"b"), 2**32 + 1)
    content = rubble + first + rubble + second + rubble
    found = [position for position, _ in candidates(content, 2**32 - 5)]
    assert found == [len(rubble), 2 * len(rubble) + len(first)]
    assert [header.base_offset for _, header in candidates(content, 2**32)] == [2**32 + 1]
