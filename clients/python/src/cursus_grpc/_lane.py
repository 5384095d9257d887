"""The way of batches to one partition: their sequence numbers, what is in flight, and what to do when it fails.

The broker stores a producer's batches strictly in sequence, starting at 0 for every epoch. A batch that comes again is
answered with its first offset, one that comes too early is refused. So a lane keeps its numbered batches in order and,
whenever something goes wrong, sends all of them again from the oldest on (`rewind`), with the same numbers and bytes.

Numbers are given at the first sending, so a batch that expires before leaves no gap. A number that can never be stored
(its batch was refused for good) is left behind by a new epoch, in which the later batches are numbered afresh: none of
them can have been stored in the old one, because the broker was still waiting for the number that never came.

A batch that expires while it may be stored is said to be so at once, but it stays in its place and is sent again as
long as a younger batch depends on it. One that is certainly not stored leaves its place, and with it the epoch. Once
all batches in flight have expired the lane forgets them and begins a new epoch; copies that still wander about are then
fenced off by the broker.

Nothing here does I/O, and time is passed in. Fates are returned as verdicts and not told to the batches, because that
runs the application's callbacks.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from cursus_grpc._batch import Batch
from cursus_grpc.errors import (
    BrokerFailed,
    CursusError,
    DeliveryTimeout,
    ProducerForgotten,
    SequenceConflict,
    SequenceGap,
    SequenceTooOld,
    StorageFailed,
)
from cursus_grpc.types import TopicPartition

# A broker knows a repeated batch again among the last 64 of a producer and partition.
MAX_IN_FLIGHT: Final = 32


class Verdict(NamedTuple):
    """What became of a batch: stored at an offset, or failed."""

    batch: Batch
    error: CursusError | None
    base_offset: int = -1
    append_time_ms: int = 0


class Lane:
    """One partition of one producer. The accumulator fills `open` and `sealed` under its lock; the rest belongs to the
    event loop."""

    def __init__(self, place: TopicPartition, max_in_flight: int) -> None:
        assert 1 <= max_in_flight <= MAX_IN_FLIGHT
        self.place = place
        self.open: Batch | None = None
        self.sealed: deque[Batch] = deque()
        self.queued = False
        """Whether the lane stands in a sender's queue of lanes that may have something to send."""
        self.leader = ""
        self.deadline = 0.0
        """Of the youngest batch."""
        self.in_flight: deque[Batch] = deque()
        """Numbered batches without an outcome, in sequence."""
        self.sent = 0
        """How many of them, from the front, are on the wire since the last rewind."""
        self.attempt = 0
        """Counts rewinds: an answer to an older attempt means nothing any more."""
        self.resume_at = 0.0
        """Nothing is sent before, after a refusal that asks for a pause."""
        self.failures = 0
        self._max_in_flight = max_in_flight
        self._epoch = 0
        self._next_sequence = 0
        self._acknowledged_offset = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return self.open is None and not self.sealed and not self.in_flight

    @property
    def waiting(self) -> bool:
        """Whether there is something to send, though perhaps not now. The caller holds the accumulator's lock."""
        return self.open is not None or bool(self.sealed) or self.must_resend()

    # Sending

    def must_resend(self) -> bool:
        """Whether a batch that was numbered before has to be sent, which comes before everything else."""
        return self.sent < len(self.in_flight)

    def has_room(self) -> bool:
        """Whether another batch may be numbered."""
        return len(self.in_flight) < self._max_in_flight

    def resend(self) -> Batch:
        """The next batch to send again."""
        batch = self.in_flight[self.sent]
        self._put_on_wire(batch)
        return batch

    def number(self, batch: Batch) -> None:
        """Send a batch for the first time."""
        assert not self.must_resend()
        batch.epoch, batch.first_sequence = self._epoch, self._next_sequence
        self._next_sequence += batch.count
        self.in_flight.append(batch)
        self._put_on_wire(batch)

    def _put_on_wire(self, batch: Batch) -> None:
        self.sent += 1
        batch.on_wire = True

    # Answers

    def acknowledge(self, batch: Batch, attempt: int, base_offset: int, append_time_ms: int) -> list[Verdict]:
        """The broker stored the batch, now or earlier. Raises UnlikelyAnswer if it cannot mean this one."""
        if not self._is_awaited(batch, attempt):
            return []
        if base_offset < self._acknowledged_offset:
            raise UnlikelyAnswer(
                f"offset {base_offset} for a batch of {self.place}, which has reached {self._acknowledged_offset}"
            )
        self._acknowledged_offset = base_offset + batch.count
        self._take_head()
        self.failures = 0
        return [] if batch.settled else [_decide(batch, None, base_offset, append_time_ms)]

    def refuse(self, batch: Batch, attempt: int, error: CursusError, pause_until: float) -> list[Verdict]:
        """The broker refused the batch."""
        if not self._is_awaited(batch, attempt):
            return []
        batch.last_failure = error
        if isinstance(error, ProducerForgotten):
            return self._forgotten(error)
        if batch.maybe_stored or isinstance(error, (StorageFailed, BrokerFailed)):
            # Written perhaps: now, with only the sync or the answer failed, or by an attempt whose connection broke.
            # Then those behind it may be written too, although this one was refused.
            self._doubt_sent()
        if error.retriable:
            self.failures += 1
            self.resume_at = pause_until
            self._rewind()
            return []
        if isinstance(error, SequenceGap):
            # Everything before was acknowledged, and the broker does not know of it: power loss took it back, or the
            # topic was made anew. In this epoch nothing can be stored any more.
            self._begin_epoch()
            return []
        self._take_head()
        if not isinstance(error, (SequenceConflict, SequenceTooOld)):
            # A conflict means that the number is taken, so the later ones have their place; otherwise it is missing.
            self._begin_epoch()
        return [] if batch.settled else [_decide(batch, error)]

    def _forgotten(self, error: ProducerForgotten) -> list[Verdict]:
        """The broker does not know what it has of the lane. What may be among it is not sent again: nobody would notice
        that it is stored twice. The rest begins a new epoch: behind this refusal nothing of the old one is stored."""
        doubtful = [] if error.never_known else [one for one in self.in_flight if one.maybe_stored and not one.settled]
        verdicts = [_decide(batch, _in_doubt(error)) for batch in doubtful]
        self._begin_epoch()
        return verdicts

    def connection_lost(self, error: CursusError) -> None:
        """The stream that carried the lane's batches is gone, and with it the answers."""
        self._doubt_sent()
        for batch in self.in_flight:
            batch.last_failure = error
        self._rewind()

    def expire(self, now: float) -> list[Verdict]:
        """Fail what has not been acknowledged in time. The caller holds the accumulator's lock."""
        verdicts: list[Verdict] = []
        one_is_not_stored = False
        for batch in self.in_flight:
            if batch.settled or batch.deadline > now:
                continue
            maybe_stored = batch.maybe_stored or batch.on_wire
            one_is_not_stored = one_is_not_stored or not maybe_stored
            verdicts.append(_decide(batch, _timed_out(batch, maybe_stored)))
        if one_is_not_stored:
            # What was just said of it has to stay true, so it is never sent again. Those behind it cannot have been
            # stored without it, and those before it, being older, have expired too: all begin anew.
            self._begin_epoch()
        self._forget_if_expired()
        while self.sealed and self.sealed[0].deadline <= now:
            batch = self.sealed.popleft()
            verdicts.append(_decide(batch, _timed_out(batch, False)))
        if self.open is not None and self.open.deadline <= now:
            batch, self.open = self.open, None
            verdicts.append(_decide(batch, _timed_out(batch, False)))
        return verdicts

    def abandon(self, error: CursusError) -> list[Verdict]:
        """Fail everything; nothing more is sent. The caller holds the accumulator's lock."""
        waiting = [*self.in_flight, *self.sealed, *([self.open] if self.open is not None else [])]
        verdicts: list[Verdict] = []
        for batch in waiting:
            if batch.settled:
                continue
            verdicts.append(_decide(batch, _in_doubt(error) if batch.maybe_stored or batch.on_wire else error))
        self.in_flight.clear()
        self.sealed.clear()
        self.open = None
        self.attempt += 1
        self.sent = 0
        return verdicts

    def next_deadline(self) -> float | None:
        """When to look for expired batches again. The caller holds the accumulator's lock."""
        waiting = [*self.in_flight, *self.sealed, *([self.open] if self.open is not None else [])]
        return min((batch.deadline for batch in waiting if not batch.settled), default=None)

    def _is_awaited(self, batch: Batch, attempt: int) -> bool:
        if attempt != self.attempt:
            return False
        # Answers come in the order of requests, and a failure ends the attempt: only the head can be answered.
        assert self.in_flight[0] is batch
        batch.on_wire = False
        return True

    def _take_head(self) -> None:
        self.in_flight.popleft()
        self.sent -= 1

    def _rewind(self) -> None:
        self.attempt += 1
        self.sent = 0
        for batch in self.in_flight:
            batch.on_wire = False
        self._forget_if_expired()

    def _doubt_sent(self) -> None:
        for index in range(self.sent):
            self.in_flight[index].maybe_stored = True

    def _forget_if_expired(self) -> None:
        """Expired batches are not sent again once nothing depends on them."""
        if self.in_flight and all(batch.settled for batch in self.in_flight):
            self.in_flight.clear()
            self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch += 1
        self._next_sequence = 0
        self._acknowledged_offset = 0
        self.attempt += 1
        self.sent = 0
        # Expired batches need no place in the new epoch: nothing in it depends on them.
        self.in_flight = deque(batch for batch in self.in_flight if not batch.settled)
        for batch in self.in_flight:
            batch.on_wire = False
            batch.epoch, batch.first_sequence = self._epoch, self._next_sequence
            self._next_sequence += batch.count


class UnlikelyAnswer(Exception):
    """An answer that cannot belong to the batch it came for: the stream is out of step and has to be given up."""


def _decide(batch: Batch, error: CursusError | None, base_offset: int = -1, append_time_ms: int = 0) -> Verdict:
    batch.settled = True
    return Verdict(batch, error, base_offset, append_time_ms)


def _in_doubt(cause: CursusError) -> DeliveryTimeout:
    error = DeliveryTimeout(f"{cause}; the record may have been stored", maybe_stored=True)
    error.__cause__ = cause
    return error


def _timed_out(batch: Batch, maybe_stored: bool) -> DeliveryTimeout:
    fate = "it may have been stored" if maybe_stored else "it was not stored"
    why = f": {batch.last_failure}" if batch.last_failure is not None else ""
    error = DeliveryTimeout(f"not acknowledged within the delivery timeout; {fate}{why}", maybe_stored)
    error.__cause__ = batch.last_failure
    return error
