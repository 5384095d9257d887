"""`cursus bench …`: how fast publishing, consuming and delivery are between here and a broker.

What a user of the library gets from one process, not what the broker can do: `make bench` in the repository measures
that.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, get_args

import click

from cursus_grpc.cli import completion, measured
from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.output import json_document, say, size, stderr_console
from cursus_grpc.cli.publish import Pace
from cursus_grpc.cli.session import Group, Session, pass_session
from cursus_grpc.errors import CursusError
from cursus_grpc.types import END, Acks, Compression, TopicPartition

if TYPE_CHECKING:
    from cursus_grpc import Admin, Consumer, Delivery

_SAMPLE_EVERY: Final = 100
_POLL_RECORDS: Final = 5_000
_SHOW_EVERY: Final = 5_000
_STAMP: Final = struct.Struct(">q")
_STALLED_S: Final = 30.0
"""Without a single record for this long a measurement is given up."""

_topic = click.argument("topic", required=False, shell_complete=completion.topics)
_records = click.option("--records", "-n", metavar="N", type=click.IntRange(min=1), default=500_000, show_default=True)
_size = click.option(
    "--size",
    "value_bytes",
    metavar="N",
    type=click.IntRange(min=8, max=16 * 2**20),
    default=100,
    show_default=True,
    help="Bytes of a value.",
)
_partitions = click.option(
    "--partitions",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Of the topic that is made for the measurement.",
)
_acks = click.option("--acks", type=click.Choice(["0", "1", "all"]), default="1", show_default=True)
_compression = click.option(
    "--compression", type=click.Choice(get_args(Compression)), default="none", show_default=True
)
_Bar = Callable[[int], None]
_Callback = Callable[["Delivery"], None]
_ACKS: Final[dict[str, Acks]] = {"0": 0, "1": 1, "all": "all"}


@click.group(cls=Group)
def bench() -> None:
    """Measure publishing, consuming and delivery.

    Without TOPIC a topic is made for the measurement and deleted afterwards.
    """


@bench.command()
@_topic
@_records
@_size
@_partitions
@_acks
@_compression
@click.option("--batch-bytes", metavar="N", type=click.IntRange(min=1), default=256 * 1024, show_default=True)
@click.option(
    "--linger",
    "linger_ms",
    metavar="N",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Milliseconds.",
)
@pass_session
def produce(
    session: Session,
    topic: str | None,
    records: int,
    value_bytes: int,
    partitions: int,
    acks: str,
    compression: Compression,
    batch_bytes: int,
    linger_ms: float,
) -> None:
    """Publish as fast as one process can, until all is acknowledged."""
    with session.admin() as admin, _borrowed(admin, topic, partitions) as name:
        seconds, latencies_ms = _fill(
            session, admin, name, records, value_bytes, _ACKS[acks], compression, batch_bytes, linger_ms
        )
    _tell(session, "produce", records, value_bytes, seconds, latencies_ms, "until acknowledged")


@bench.command()
@_topic
@_records
@_size
@_partitions
@pass_session
def consume(session: Session, topic: str | None, records: int, value_bytes: int, partitions: int) -> None:
    """Read records from the beginning of a topic; one made for the measurement is filled first."""
    with session.admin() as admin, _borrowed(admin, topic, partitions) as name:
        if topic is None:
            say("filling a topic first")
            _fill(session, admin, name, records, value_bytes, 1, "none", 256 * 1024, 0.0)
        parts = admin.describe_topic(name).partitions
        available = sum(part.next_offset - part.earliest_offset for part in parts)
        if not available:
            raise Failed(f"{name} holds no records", "publish some, or leave TOPIC out")
        wanted = min(records, available)
        with session.consumer() as consumer, _progress("reading", wanted) as bar:
            consumer.assign({TopicPartition(name, part.partition): part.earliest_offset for part in parts})
            latencies_ms: list[float] = []
            received = received_bytes = 0
            began = polled_at = time.perf_counter()
            while received < wanted:
                batch = consumer.poll_batch(min(_POLL_RECORDS, wanted - received), _STALLED_S)
                if not batch:
                    raise Failed(f"nothing came for {_STALLED_S:.0f} s", "`cursus doctor` checks the broker")
                received += len(batch)
                received_bytes += sum(len(record.value or b"") for record in batch)
                now = time.perf_counter()
                latencies_ms.append((now - polled_at) * 1000)
                polled_at = now
                bar(received)
            seconds = time.perf_counter() - began
    _tell(
        session,
        "consume",
        received,
        received_bytes // received,
        seconds,
        latencies_ms,
        f"poll of up to {_POLL_RECORDS:,}",
    )


@bench.command()
@_topic
@click.option(
    "--rate", metavar="N", type=click.FloatRange(min=1), default=1_000.0, show_default=True, help="Records a second."
)
@click.option("--records", "-n", metavar="N", type=click.IntRange(min=1), default=5_000, show_default=True)
@_size
@_acks
@pass_session
def latency(session: Session, topic: str | None, rate: float, records: int, value_bytes: int, acks: str) -> None:
    """Measure the time from send to receive at a steady rate, both ends in this process."""
    with session.admin() as admin, _borrowed(admin, topic, 1) as name:
        start = admin.list_offsets(name, END, [0])[0].next_offset
        with session.consumer() as consumer, _progress("delivering", records) as bar:
            consumer.assign({TopicPartition(name, 0): start})
            sender = _Sender(session, name, records, value_bytes, rate, _ACKS[acks])
            began = time.perf_counter()
            with sender:
                latencies_ms = _receive(consumer, records, sender, bar)
            seconds = time.perf_counter() - began
    _tell(session, "latency", records, value_bytes, seconds, latencies_ms, "send to receive")


class _Sender:
    """Sends stamped records at a steady rate from a thread of its own, for as long as the block lasts."""

    def __init__(self, session: Session, topic: str, records: int, value_bytes: int, rate: float, acks: Acks) -> None:
        self._producer = session.producer(acks=acks)
        self._topic, self._records, self._rate = topic, records, rate
        self._padding = b"x" * (value_bytes - _STAMP.size)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bench-sender", daemon=True)
        self.error: CursusError | None = None

    def __enter__(self) -> _Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        pace = Pace(self._rate)
        try:
            for _ in range(self._records):
                pace.wait()
                if self._stop.is_set():
                    return
                self._producer.send(self._topic, _STAMP.pack(time.perf_counter_ns()) + self._padding, partition=0)
        except CursusError as error:
            self.error = error


def _receive(consumer: Consumer, records: int, sender: _Sender, bar: _Bar) -> list[float]:
    latencies_ms: list[float] = []
    heard_at = time.monotonic()
    while len(latencies_ms) < records:
        batch = consumer.poll_batch(500, 1.0)
        now_ns = time.perf_counter_ns()
        latencies_ms.extend((now_ns - _STAMP.unpack_from(record.value or b"")[0]) / 1e6 for record in batch)
        bar(len(latencies_ms))
        if sender.error is not None:
            raise sender.error
        if batch:
            heard_at = time.monotonic()
        elif time.monotonic() - heard_at > _STALLED_S:
            raise Failed(f"nothing came for {_STALLED_S:.0f} s", "`cursus doctor` checks the broker")
    return latencies_ms[:records]


def _fill(
    session: Session,
    admin: Admin,
    topic: str,
    records: int,
    value_bytes: int,
    acks: Acks,
    compression: Compression,
    batch_bytes: int,
    linger_ms: float,
) -> tuple[float, list[float]]:
    """Publish, and answer the seconds it took and some records' time to their acknowledgement."""
    value = b"x" * value_bytes
    latencies_ms: list[float] = []
    before = _stored(admin, topic)
    with (
        session.producer(acks=acks, compression=compression, batch_bytes=batch_bytes, linger_ms=linger_ms) as producer,
        _progress("publishing", records) as bar,
    ):
        send = producer.send
        began = time.perf_counter()
        for at in range(records):
            delivery = send(topic, value)
            if at % _SAMPLE_EVERY == 0:
                delivery.add_done_callback(_timed(latencies_ms, time.perf_counter()))
                if at % _SHOW_EVERY == 0:
                    bar(at)
        producer.flush()
        seconds = time.perf_counter() - began
        delivery.result()
    stored = _stored(admin, topic) - before
    if stored < records:
        raise Failed(f"only {stored:,} of {records:,} records were stored", "`cursus doctor` checks the broker")
    return seconds, latencies_ms


def _timed(latencies_ms: list[float], sent_at: float) -> _Callback:
    def note(delivery: Delivery) -> None:
        latencies_ms.append((time.perf_counter() - sent_at) * 1000)

    return note


def _stored(admin: Admin, topic: str) -> int:
    return sum(part.next_offset for part in admin.describe_topic(topic).partitions)


@contextmanager
def _borrowed(admin: Admin, topic: str | None, partitions: int) -> Iterator[str]:
    """The topic asked for, or one of our own that goes again."""
    if topic is not None:
        yield topic
        return
    name = f"cursus-bench-{uuid.uuid4().hex[:8]}"
    admin.create_topic(name, partitions)
    try:
        yield name
    finally:
        with suppress(CursusError):
            admin.delete_topic(name)


@contextmanager
def _progress(what: str, total: int) -> Iterator[_Bar]:
    """A bar on stderr if that is a terminal; the callable is told how many are done."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stderr_console(),
        transient=True,
    ) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


def _tell(
    session: Session,
    what: str,
    records: int,
    value_bytes: int,
    seconds: float,
    latencies_ms: list[float],
    meaning: str,
) -> None:
    per_s = records / seconds
    if session.json:
        json_document(
            {
                "bench": what,
                "records": records,
                "value_bytes": value_bytes,
                "seconds": round(seconds, 4),
                "records_per_s": round(per_s, 1),
                "bytes_per_s": round(per_s * value_bytes, 1),
                "latency": measured.summary(latencies_ms),
            }
        )
        return
    click.echo(
        f"{records:,} records of {size(value_bytes)} in {seconds:.2f} s:"
        f" {per_s:,.0f} records/s, {size(per_s * value_bytes)}/s"
    )
    for line in measured.report(latencies_ms, meaning):
        click.echo(line)
