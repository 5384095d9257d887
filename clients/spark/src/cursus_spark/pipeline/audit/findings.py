"""What an audit looks for, what it found, and how bad that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cursus_grpc.cli.output import duration, moment, plural


class Severity(Enum):
    """What a finding means for the outcome."""

    VIOLATION = "violation"
    """The log does not hold what was promised: the job ends with status 3."""
    NOTE = "note"
    """Worth knowing, and legal."""
    OFF = "off"
    """Not looked for."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked for."""

    name: str
    default: Severity
    title: str
    meaning: str


CHECKS: Final[Mapping[str, Check]] = {
    check.name: check
    for check in (
        Check(
            "unreadable",
            Severity.VIOLATION,
            "Records that cannot be read",
            "The broker holds these offsets to be there and cannot hand them out: its files are damaged, or a batch is "
            "missing from them.",
        ),
        Check(
            "offset-gaps",
            Severity.VIOLATION,
            "Offsets that are missing",
            "Within the retained range every offset has a record. What retention or DeleteRecords took from the front "
            "is no gap.",
        ),
        Check(
            "sequence-duplicates",
            Severity.VIOLATION,
            "Records stored twice",
            "The same sequence of the same producer and epoch is in the partition more than once.",
        ),
        Check(
            "sequence-conflicts",
            Severity.VIOLATION,
            "Numbers used twice",
            "The same sequence of the same producer and epoch stands for different records: two producers run under "
            "one identity.",
        ),
        Check(
            "sequence-gaps",
            Severity.VIOLATION,
            "Sequences that are missing",
            "A producer numbers its records without gaps. Between two that are here, some are not. Producers of the "
            "older protocol that are judged by a window may leave some out.",
        ),
        Check(
            "sequence-order",
            Severity.VIOLATION,
            "Sequences out of order",
            "A producer's records lie in another order than it sent them in.",
        ),
        Check(
            "content-duplicates",
            Severity.VIOLATION,
            "Equal anonymous records within the window",
            "Single records that nobody numbered are recognised by their content for a while. These were not: the "
            "topic or its producer has that switched off, or the broker had too many to remember.",
        ),
        Check(
            "content-repeats",
            Severity.NOTE,
            "Equal anonymous records beyond the window",
            "An equal record came again when the broker had forgotten the first. It may be a repetition that was "
            "too late, or another event that looks the same.",
        ),
        Check(
            "append-order",
            Severity.VIOLATION,
            "Append times that go back",
            "The broker's clock stood earlier than at the batch before: reads by time are not exact around it.",
        ),
        Check(
            "timestamp-order",
            Severity.NOTE,
            "Timestamps that go back",
            "Producers stated a time before that of an earlier record of the partition. Streams by event time count "
            "these as late.",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Example:
    """One place where something was found."""

    partition: int
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """All that one check found."""

    check: Check
    severity: Severity
    count: int
    """Of records, missing ones included."""
    by_partition: Mapping[int, int]
    examples: tuple[Example, ...]

    def line(self) -> str:
        places = ", ".join(map(str, sorted(self.by_partition)[:_SHOWN]))
        more = "…" if len(self.by_partition) > _SHOWN else ""
        return f"{self.check.title}: {plural(self.count, 'record')}, partition {places}{more}"

    def document(self) -> dict[str, object]:
        return {
            "check": self.check.name,
            "severity": self.severity.value,
            "count": self.count,
            "by_partition": {str(partition): count for partition, count in sorted(self.by_partition.items())},
            "examples": [{"partition": one.partition, "offset": one.offset, "text": one.text} for one in self.examples],
        }


_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Hit:
    """One row that a check answered. What `first`, `second` and `third` are depends on the check."""

    check: str
    partition: int
    offset: int
    count: int
    producer: bytes | None = None
    epoch: int | None = None
    first: int = 0
    second: int = 0
    third: int = 0

    def example(self) -> Example:
        return Example(self.partition, self.offset, _SENTENCES[self.check](self))


def _who(hit: Hit) -> str:
    return f"{shown_bytes(hit.producer or b'')} in epoch {hit.epoch}"


def _span(begin: int, end: int, what: str) -> str:
    return f"{what} {begin:,}" if end - begin == 1 else f"{what}s {begin:,} to {end - 1:,}"


def _some(hit: Hit, what: str) -> str:
    """All of a span, or so many of it."""
    span = _span(hit.first, hit.second, what)
    return span if hit.count == hit.second - hit.first else f"{hit.count:,} of the {span}"


def _where(hit: Hit) -> str:
    return " before this" if hit.count == hit.second - hit.first else " in this batch"


_SENTENCES: Final = {
    "offset-gaps": lambda hit: f"{_some(hit, 'offset')} missing",
    "sequence-duplicates": lambda hit: (
        f"{_span(hit.first, hit.first + hit.count, 'sequence')} of {_who(hit)} also at offset {hit.second:,}"
    ),
    "sequence-conflicts": lambda hit: (
        f"{_span(hit.first, hit.first + hit.count, 'sequence')} of {_who(hit)}, other records at offset {hit.second:,}"
    ),
    "sequence-gaps": lambda hit: f"{_some(hit, 'sequence')} of {_who(hit)} missing{_where(hit)}",
    "sequence-order": lambda hit: (
        f"sequence {hit.first:,} of {_who(hit)} lies before the one in front of it, at offset {hit.second:,}"
    ),
    "content-duplicates": lambda hit: (
        f"equal to offset {hit.first:,} of partition {hit.third}, {duration(hit.second / 1_000)} before"
    ),
    "content-repeats": lambda hit: (
        f"equal to offset {hit.first:,} of partition {hit.third}, {duration(hit.second / 1_000)} before"
    ),
    "append-order": lambda hit: (
        f"stored at {moment(hit.second)}, {duration((hit.first - hit.second) / 1_000)} before the batch in front of it"
    ),
    "timestamp-order": lambda hit: (
        f"{plural(hit.count, 'record')} behind an earlier one, by up to {duration(hit.first / 1_000)}; here the first"
    ),
}


def shown_bytes(value: bytes) -> str:
    """An identity for people: as text where it is some, else in hexadecimal.

    >>> shown_bytes(b"spark/batch/1"), shown_bytes(bytes([0, 255]))
    ('spark/batch/1', '0x00ff')
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text else f"0x{value.hex()}"
