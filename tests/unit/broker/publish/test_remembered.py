"""One producer, batch after batch."""

from __future__ import annotations

import pytest

from cursus_broker.log.api import EntryHeader, Offset
from cursus_broker.publish.remembered import REMEMBERED_BATCHES, Remembered
from cursus_proto import chain
from cursus_proto.records import checksum


def header(first: int, payload: bytes, *, count: int = 1, epoch: int = 1, offset: int = 0) -> EntryHeader:
    return EntryHeader(Offset(offset), count, 7_000, len(payload), checksum(payload), 0, 0, b"p", epoch, first)


def noted(*headers: EntryHeader, windowed: bool = False) -> Remembered:
    producer = Remembered(headers[0].producer_epoch)
    for one in headers:
        producer.note(one, windowed=windowed, sequences=())
    return producer


def test_the_checksum_is_the_one_of_the_contract() -> None:
    """The example in publish_service.proto."""
    batches = [header(0, b"a"), header(1, b"bc", count=2), header(3, b"def", count=3)]
    assert [noted(*batches[:end]).checksum for end in (1, 2, 3)] == [0x99D1641A, 0x686767E2, 0xE4D06016]


def test_the_checksum_tells_other_bytes_other_cuts_and_another_order() -> None:
    headers = [header(0, b"a", count=2), header(2, b"b", count=2)]
    others = [
        [header(0, b"a", count=2), header(2, b"c", count=2)],
        [header(0, b"a", count=3), header(3, b"b", count=1)],
        [header(0, b"b", count=2), header(2, b"a", count=2)],
    ]
    assert len({noted(*one).checksum for one in (headers, *others)}) == 4


def test_each_epoch_has_a_checksum_of_its_own() -> None:
    producer = noted(header(0, b"a"), header(1, b"b"), header(0, b"c", epoch=2))
    assert (producer.epoch, producer.next_sequence) == (2, 1)
    assert producer.checksum == chain.extend(chain.EMPTY, 0, 1, checksum(b"c"))


@pytest.mark.parametrize("first", [1, 5])
def test_what_does_not_begin_at_zero_has_no_checksum(first: int) -> None:
    producer = noted(header(first, b"a"), header(first + 1, b"b"))
    assert (producer.next_sequence, producer.checksum) == (first + 2, None)


def test_windowed_sequences_have_no_checksum_also_if_strict_ones_follow() -> None:
    producer = noted(header(0, b"a"), windowed=True)
    assert producer.checksum is None
    producer.note(header(0, b"b"), windowed=False, sequences=())
    assert producer.checksum is None


def test_batches_that_are_missing_end_the_checksum_and_what_was_remembered_before_them() -> None:
    """Retention removed them before they were counted."""
    producer = noted(header(0, b"a"), header(3, b"b"))
    assert (producer.next_sequence, producer.checksum, producer.oldest_sequence) == (4, None, 3)
    assert producer.find(0, 1) is None


@pytest.mark.parametrize("epoch", [1, 0])
def test_one_that_began_again_had_been_forgotten(epoch: int) -> None:
    """A log that is read back shows what the broker stored when it did not know the producer any more."""
    producer = noted(header(0, b"a"), header(1, b"b"), header(0, b"c", epoch=epoch))
    assert (producer.epoch, producer.next_sequence) == (epoch, 1)
    assert producer.checksum == chain.extend(chain.EMPTY, 0, 1, checksum(b"c"))
    assert producer.find(1, 1) is None


def test_it_is_found_with_its_place_among_the_newest_only() -> None:
    producer = noted(*(header(number, b"%d" % number, offset=number + 10) for number in range(REMEMBERED_BATCHES + 1)))
    assert producer.oldest_sequence == 1
    assert producer.find(0, 1) is None
    found = producer.find(1, 1)
    assert found is not None
    assert found == (1, 1, 11, checksum(b"1"), 1, 7_000)


def test_it_is_the_same_when_it_was_stored() -> None:
    strict = noted(*(header(number, b"%d" % number, offset=number) for number in range(100)))
    windowed = noted(header(4, b"a", count=3), header(9, b"b"), windowed=True)
    for producer, is_windowed in ((strict, False), (windowed, True)):
        restored = Remembered.restored(producer.stored(b"p"))
        assert restored.stored(b"p") == producer.stored(b"p")
        for one in (restored, producer):
            one.note(header(100, b"next"), windowed=is_windowed, sequences=())
        assert restored.stored(b"p") == producer.stored(b"p")
