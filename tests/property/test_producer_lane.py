"""A lane of the Python producer against the broker's own producer ledger, over streams that break at any moment.

The model has what makes retries hard: several batches in flight, answers that never come, streams that the client has
given up and the broker goes on reading, refusals that left the batch stored or not, batches that expire on the way.
Whatever happens, a partition holds each batch at most once and in order, and every verdict is true.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cursus_broker.errors import CursusError as BrokerError
from cursus_broker.log.api import Batch as LogBatch
from cursus_broker.log.api import EntryHeader, Offset
from cursus_broker.publish.producers import ProducerLedger, Repeated
from cursus_grpc._batch import Batch
from cursus_grpc._lane import Lane, Verdict
from cursus_grpc.errors import (
    REASONS,
    BrokerUnreachable,
    CursusError,
    DeliveryTimeout,
    RecordTooLarge,
    StorageFailed,
    WriteTimeout,
)
from cursus_grpc.types import TopicPartition

TIMEOUT_S = 100.0
IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class Message:
    """A batch as it is on the wire: its number is part of what was sent."""

    batch: Batch
    attempt: int
    epoch: int
    first_sequence: int
    count: int
    refusal: str


@dataclass(slots=True)
class Stream:
    """What a stream carries: requests the broker has not read, answers the client has not."""

    requests: deque[Message] = field(default_factory=deque)
    answers: deque[tuple[Message, int | CursusError]] = field(default_factory=deque)


class Partition:
    """The broker's side: the real ledger, and a log that is a list of batches."""

    def __init__(self) -> None:
        self.ledger = ProducerLedger()
        self.stored: list[Batch] = []
        self.base_offsets: list[int] = []
        self.next_offset = 0

    def publish(self, message: Message) -> int | CursusError:
        """The base offset, or why not."""
        if message.refusal == "too large":
            return RecordTooLarge("too large")
        if message.refusal == "busy":
            return WriteTimeout("busy")
        batch = LogBatch(b"", message.count, 0, 0, 0, b"p", message.epoch, message.first_sequence)
        try:
            verdict = self.ledger.judge_strict(batch)
        except BrokerError as error:
            return REASONS[error.reason](str(error), error.metadata)
        if isinstance(verdict, Repeated):
            assert verdict.stored is not None
            return int(verdict.stored.base_offset)
        base_offset = self.next_offset
        header = EntryHeader(
            Offset(base_offset), message.count, 0, 0, 0, 0, 0, b"p", message.epoch, message.first_sequence
        )
        self.ledger.record(header, windowed=False)
        self.stored.append(message.batch)
        self.base_offsets.append(base_offset)
        self.next_offset += message.count
        return StorageFailed("not synced") if message.refusal == "disk" else base_offset


class LaneMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane(TopicPartition("t", 0), IN_FLIGHT)
        self.partition = Partition()
        self.stream = Stream()
        self.forsaken: list[Stream] = []
        self.batches: list[Batch] = []
        self.hopeless: set[int] = set()
        self.verdicts: dict[int, Verdict] = {}
        self.now = 0.0

    @rule(count=st.integers(1, 3), hopeless=st.sampled_from([False] * 5 + [True]))
    def collect(self, count: int, hopeless: bool) -> None:
        batch = Batch(TopicPartition("t", 0), self.now, self.now + TIMEOUT_S)
        batch.count = count
        self.batches.append(batch)
        self.lane.sealed.append(batch)
        if hopeless:
            self.hopeless.add(id(batch))

    @rule(refusal=st.sampled_from(["", "", "", "busy", "disk"]))
    def send(self, refusal: str) -> None:
        if self.lane.must_resend():
            batch = self.lane.resend()
        elif self.lane.sealed and self.lane.has_room():
            batch = self.lane.sealed.popleft()
            self.lane.number(batch)
        else:
            return
        if id(batch) in self.hopeless:
            refusal = "too large"
        self.stream.requests.append(
            Message(batch, self.lane.attempt, batch.epoch, batch.first_sequence, batch.count, refusal)
        )

    @precondition(lambda self: self.stream.requests)
    @rule()
    def broker_reads(self) -> None:
        message = self.stream.requests.popleft()
        self.stream.answers.append((message, self.partition.publish(message)))

    @precondition(lambda self: self.forsaken)
    @rule(which=st.integers(0, 10))
    def broker_reads_a_forsaken_stream(self, which: int) -> None:
        stream = self.forsaken[which % len(self.forsaken)]
        if stream.requests:
            self.partition.publish(stream.requests.popleft())

    @precondition(lambda self: self.stream.answers)
    @rule()
    def client_reads(self) -> None:
        message, outcome = self.stream.answers.popleft()
        if isinstance(outcome, int):
            self._note(self.lane.acknowledge(message.batch, message.attempt, outcome, 0))
        else:
            self._note(self.lane.refuse(message.batch, message.attempt, outcome, 0.0))

    @precondition(lambda self: not self._begins_on_the_way())
    @rule()
    def broker_forgets(self) -> None:
        """The producer was crowded out by others. Not while the first batch of an epoch is on its way: a forgotten
        producer that begins at 0 is a new one, and no broker could tell."""
        self.partition.ledger.forget_idle(before_ms=1, most=1)

    def _begins_on_the_way(self) -> bool:
        requests = [message for stream in (self.stream, *self.forsaken) for message in stream.requests]
        sequences = [one.first_sequence for one in self.lane.in_flight] + [one.first_sequence for one in requests]
        return 0 in sequences

    @rule()
    def connection_breaks(self) -> None:
        self.forsaken.append(self.stream)
        self.stream = Stream()
        self.lane.connection_lost(BrokerUnreachable("broken"))

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self._note(self.lane.expire(self.now))

    def _note(self, verdicts: list[Verdict]) -> None:
        for verdict in verdicts:
            assert id(verdict.batch) not in self.verdicts
            self.verdicts[id(verdict.batch)] = verdict

    @invariant()
    def each_batch_is_stored_once_and_in_order(self) -> None:
        order = {id(batch): index for index, batch in enumerate(self.batches)}
        indexes = [order[id(batch)] for batch in self.partition.stored]
        assert indexes == sorted(set(indexes))

    @invariant()
    def what_was_acknowledged_lies_where_it_was_said_to(self) -> None:
        places = {id(batch): at for batch, at in zip(self.partition.stored, self.partition.base_offsets, strict=True)}
        for key, verdict in self.verdicts.items():
            if verdict.error is None:
                assert places[key] == verdict.base_offset

    def teardown(self) -> None:
        """Whatever happened, a time without failures settles everything."""
        for _ in self._until_settled():
            self.send("")
            if self.stream.requests:
                self.broker_reads()
            if self.stream.answers:
                self.client_reads()
        for stream in self.forsaken:
            while stream.requests:
                self.partition.publish(stream.requests.popleft())
        self.each_batch_is_stored_once_and_in_order()
        stored = {id(batch) for batch in self.partition.stored}
        for batch in self.batches:
            error = self.verdicts[id(batch)].error
            if isinstance(error, DeliveryTimeout):
                assert error.maybe_stored or id(batch) not in stored
            elif error is not None:
                assert id(batch) in self.hopeless
                assert id(batch) not in stored

    def _until_settled(self) -> Iterator[None]:
        steps = 20 * (len(self.batches) + len(self.stream.answers) + len(self.stream.requests)) + 100
        for _ in range(steps):
            if len(self.verdicts) == len(self.batches):
                return
            yield
        raise AssertionError("some batches are never settled")


TestLane = LaneMachine.TestCase
TestLane.settings = settings(max_examples=300, stateful_step_count=60)
