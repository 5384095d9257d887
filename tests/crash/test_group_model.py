"""Groups and publishers through power loss, cuts and topics made anew, at random, against a model of what they owe.

What must hold, whatever happens:

- no record that acks all acknowledged is skipped by a group that commits what it has processed;
- what a group has committed lies within the log, and it has processed everything below;
- a consumer goes on where it was, record by record, unless it is told that its partition came anew or was cut.

A round follows from its seed as far as it is decided here; how the threads of clients and broker meet in between does
not. A failure prints the command that repeats the round. `make test-model ROUNDS=500` is the long form.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from cursus_broker.log.entry import CONTROL_BYTES
from cursus_grpc import END, Admin, Consumer, Delivery, Producer, TopicPartition
from cursus_grpc.errors import BrokerUnreachable, CommitFailed, LogTruncated, MemberNotFound
from cursus_grpc.testing._in_process import InProcessBroker
from cursus_grpc.types import Acks, OffsetAndMetadata

TOPICS: Final = {"orders": 2, "audit": 1}
GROUPS: Final = ("billing", "search")
MANY: Final = 2**40
"""An offset that no round comes to."""
ACKS: Final[Sequence[Acks]] = (0, 1, "all")
MAX_MEMBERS: Final = 3
STEPS: Final = 40
# Only acks all, commits and closing sync anything.
FLAGS: Final = ("--log-linger-ms", "60s", "--log-flush-records", "1000000")
# Far above what any round takes; it decides how long a failure takes to show, never whether a slow machine passes.
NEVER_S: Final = 60.0
MAX_TRIES: Final = 200

FIRST_SEED: Final = int(os.environ.get("MODEL_SEED", "0"))
ROUNDS: Final = int(os.environ.get("MODEL_ROUNDS", "12"))


@dataclass(slots=True)
class Sent:
    """A record on its way, or stored."""

    value: bytes
    place: TopicPartition
    acks: Acks
    delivery: Delivery
    kept_below: float = float("inf")
    """A disk that failed took what lies at or above this offset; 0 if the topic was deleted."""

    @property
    def is_owed(self) -> bool:
        """Whether nobody may skip it. To be asked when its outcome is known."""
        return (
            self.acks == "all"
            and self.delivery.exception(NEVER_S) is None
            and self.delivery.result(NEVER_S).offset < self.kept_below
        )


class Member:
    """A consumer of a group, which checks that it is given one record after the other."""

    def __init__(self, address: str, group: Group, auto_commit: bool) -> None:
        self.auto_commit = auto_commit
        self.first: dict[TopicPartition, int] = {}
        """Where it began in each partition it was assigned last."""
        self._group = group
        self._next: dict[TopicPartition, int] = {}
        self.consumer = Consumer(
            address,
            group=group.name,
            topics=TOPICS,
            auto_commit=auto_commit,
            auto_commit_interval_ms=20.0,
            rebalance_timeout_ms=1_000,
            on_assigned=self._assigned,
            on_truncated=self._truncated,
        )

    def _assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for place in partitions:
            self._next.pop(place, None)
            self.first.pop(place, None)

    def _truncated(self, place: TopicPartition, position: int, offset: int) -> None:
        assert self._next.get(place, position) == position > offset, f"{place}: cut at {offset}, not at {position}"
        self._next[place] = offset
        self._group.cuts += 1

    def poll(self, max_records: int) -> None:
        """Process what is there."""
        for record in self.consumer.poll_batch(max_records, timeout_s=0.005):
            place = TopicPartition(record.topic, record.partition)
            self.first.setdefault(place, record.offset)
            wanted = self._next.get(place, record.offset)
            if record.offset > wanted:
                # After a broken connection it may find that another member has gone on for it meanwhile.
                wanted = max(wanted, min(record.offset, self.consumer.committed([place])[place].offset or 0))
            assert record.offset == wanted, f"{self._group.name} at {place}: {record.offset} came, not {wanted}"
            self._next[place] = record.offset + 1
            self._group.processed.add(record.value or b"")

    def commit(self) -> None:
        # It may have lost a partition, its session or the broker, or a log was cut: then it is told, or tries again.
        with suppress(CommitFailed, LogTruncated, MemberNotFound, BrokerUnreachable):
            self.consumer.commit()

    def close(self) -> None:
        self.consumer.close(timeout_s=NEVER_S)


@dataclass(slots=True)
class Group:
    name: str
    members: list[Member] = field(default_factory=list)
    processed: set[bytes] = field(default_factory=set)
    cuts: int = 0
    """How often one of its members was told that a log was cut."""


class Round:
    """A broker, its clients, and what they owe each other."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self._directory = directory
        self._broker = InProcessBroker(directory, FLAGS, can_lose_power=True)
        self._address = self._broker.start(0)
        self._admin = Admin(self._address)
        self._producers = {acks: Producer(self._address, acks=acks, batch_records=3) for acks in ACKS}
        self._groups = [Group(name) for name in GROUPS]
        self._sent: list[Sent] = []
        self._closed_bytes: dict[Path, int] = {}
        for topic, partitions in TOPICS.items():
            self._admin.create_topic(topic, partitions)

    def run(self, steps: int) -> None:
        actions = {
            self.publish: 8,
            self.poll: 10,
            self.catch_up: 4,
            self.commit: 4,
            self.join: 4,
            self.leave: 2,
            self.lose_power: 3,
            self.lose_power_and_disk: 2,
            self.restart: 1,
            self.make_topic_anew: 1,
        }
        for action in self._rng.choices(list(actions), list(actions.values()), k=steps):
            action()
        self.settle()

    # What may happen

    def publish(self) -> None:
        acks = self._rng.choice(ACKS)
        topic = self._rng.choice(sorted(TOPICS))
        for _ in range(self._rng.randint(1, 8)):
            place = TopicPartition(topic, self._rng.randrange(TOPICS[topic]))
            value = b"%d" % len(self._sent)
            delivery = self._producers[acks].send(topic, value, partition=place.partition)
            self._sent.append(Sent(value, place, acks, delivery))
        if self._rng.random() < 0.7:
            self._producers[acks].flush(NEVER_S)

    def poll(self) -> None:
        for member in self._members():
            member.poll(self._rng.randint(1, 10))

    def catch_up(self) -> None:
        """Process what was published, or most of it."""
        for _ in range(20):
            self.poll()

    def commit(self) -> None:
        for member in self._members():
            if not member.auto_commit and self._rng.random() < 0.7:
                member.commit()

    def join(self) -> None:
        group = self._rng.choice(self._groups)
        if len(group.members) < MAX_MEMBERS:
            group.members.append(Member(self._address, group, auto_commit=self._rng.random() < 0.5))

    def leave(self) -> None:
        group = self._rng.choice(self._groups)
        if group.members:
            group.members.pop(self._rng.randrange(len(group.members))).close()

    def lose_power(self) -> None:
        self._broker.power_loss(self._rng.getrandbits(32))
        self._start_again()

    def lose_power_and_disk(self) -> None:
        """Power loss, and the end of one log is gone although it was synced. Above what was closed in good order the
        broker takes that for the usual torn end; below it would be damage."""
        place = self._rng.choice(sorted(self._ends()))
        before = self._admin.list_offsets(place.topic, END, [place.partition])[place.partition].leader_epoch
        self._broker.power_loss(self._rng.getrandbits(32))
        (path,) = self._directory.glob(f"**/{place.topic}/partition_{place.partition}_segment_0.log")
        size = path.stat().st_size
        self._broker.forget_end(path, self._rng.randint(self._closed_bytes.get(path, CONTROL_BYTES), size))
        self._start_again()
        cut = self._cut_since(place, before)
        for sent in self._sent:
            if sent.place == place:
                sent.kept_below = min(sent.kept_below, cut)

    def _cut_since(self, place: TopicPartition, epoch: int) -> int:
        """Where the log ended when it was opened: by now it may have grown again."""
        with Consumer(self._address) as consumer, pytest.raises(LogTruncated) as caught:
            list(consumer.range(*place, OffsetAndMetadata(MANY, leader_epoch=epoch), MANY + 1))
        return caught.value.offset

    def restart(self) -> None:
        self._broker.stop()
        self._closed_bytes = {path: path.stat().st_size for path in self._directory.glob("**/*_segment_0.log")}
        self._start_again()

    def make_topic_anew(self) -> None:
        topic = self._rng.choice(sorted(TOPICS))
        self._admin.delete_topic(topic)
        for sent in self._sent:
            if sent.place.topic == topic:
                sent.kept_below = 0
        self._closed_bytes = {path: size for path, size in self._closed_bytes.items() if path.parent.name != topic}
        if self._rng.random() < 0.5:
            self.poll()
        self._admin.create_topic(topic, TOPICS[topic])

    def _start_again(self) -> None:
        self._broker.start(int(self._address.rpartition(":")[2]))
        self._look_at_commits()

    @property
    def cuts(self) -> int:
        return sum(group.cuts for group in self._groups)

    def _members(self) -> list[Member]:
        return [member for group in self._groups for member in group.members]

    # What must hold

    def _ends(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic, part.partition): part.next_offset
            for topic in TOPICS
            for part in self._admin.describe_topic(topic).partitions
        }

    def _committed(self, group: Group) -> dict[TopicPartition, int]:
        return {place: one.offset or 0 for place, one in self._admin.fetch_offsets(group.name).items()}

    def _look_at_commits(self) -> None:
        """Everything committed is in the log, and everything below was processed."""
        committed = [(group, self._committed(group)) for group in self._groups]
        logs = self._read_logs()
        for group, offsets in committed:
            for place, offset in offsets.items():
                end = len(logs[place])
                assert offset <= end, f"{group.name} has committed {offset} at {place}, which ends at {end}"
                skipped = [value for value in logs[place][:offset] if value not in group.processed]
                assert not skipped, f"{group.name} has committed {offset} at {place} without {skipped}"

    def _read_logs(self) -> dict[TopicPartition, list[bytes]]:
        with Consumer(self._address) as consumer:
            return {place: [record.value or b"" for record in consumer.range(*place)] for place in self._ends()}

    def settle(self) -> None:
        """Nothing more happens: everything owed is there, every group comes to its end, and begins where it is."""
        for producer in self._producers.values():
            producer.flush(NEVER_S)
        owed = {sent.value: sent for sent in self._sent if sent.is_owed}
        logs = self._read_logs()
        for value, sent in owed.items():
            offset = sent.delivery.result().offset
            assert logs[sent.place][offset : offset + 1] == [value], f"{value!r} is not at {offset} of {sent.place}"
        for group in self._groups:
            if not group.members:
                group.members.append(Member(self._address, group, auto_commit=True))
            self._read_until(group, owed)
            for member in group.members:
                member.commit()
                member.close()
            group.members.clear()
        self._look_at_commits()
        places = sorted(logs)
        last = {b"last %d" % number: place for number, place in enumerate(places)}
        for value, place in last.items():
            self._producers["all"].send(place.topic, value, partition=place.partition).result(NEVER_S)
        for group in self._groups:
            committed = self._committed(group)
            group.members.append(Member(self._address, group, auto_commit=False))
            self._read_until(group, last)
            assert group.members[0].first == {place: committed.get(place, 0) for place in places}

    def _read_until(self, group: Group, owed: Collection[bytes]) -> None:
        deadline = time.monotonic() + NEVER_S
        while missing := set(owed) - group.processed:
            for member in group.members:
                member.poll(500)
            assert time.monotonic() < deadline, f"{group.name} never received {sorted(missing)}"

    def close(self) -> None:
        for member in self._members():
            member.close()
        for producer in self._producers.values():
            producer.close(NEVER_S)
        self._admin.close()
        self._broker.stop()


@contextmanager
def a_round(directory: Path, seed: int) -> Iterator[Round]:
    """Says how to repeat it if it fails."""
    played = Round(directory, seed)
    try:
        yield played
    except Exception as error:
        error.add_note(f"repeat this round with: make test-model MODEL_SEED={seed} ROUNDS=1")
        raise
    finally:
        played.close()


def seeds() -> Iterable[int]:
    return range(FIRST_SEED, FIRST_SEED + ROUNDS)


@pytest.mark.parametrize("seed", seeds())
def test_no_group_skips_what_acks_all_acknowledged(tmp_path: Path, seed: int) -> None:
    with a_round(tmp_path, seed) as played:
        played.run(STEPS)


def test_these_rounds_do_cut_logs_under_their_readers(tmp_path: Path) -> None:
    """Guards the test above: a disk that forgets nothing would prove nothing."""
    with a_round(tmp_path, 0) as played:
        played.join()
        for _ in range(MAX_TRIES):
            played.publish()
            played.catch_up()
            played.lose_power()
            if played.cuts:
                return
    pytest.fail("no reader was ever told of a cut")
