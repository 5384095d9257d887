"""Telling how far a job is: a line for every micro-batch of a stream, and the tasks of a batch job.

On a terminal the tasks are one line that is written over; elsewhere, as in the log of a pod, a line now and then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cursus_grpc.cli.output import duration, plural, say, stderr_console

_POLL_S: Final = 0.5
_LOG_EVERY: Final = 20
"""Polls between two lines where nothing can be written over."""

Describe = Callable[[dict[str, Any]], str]


def describe_batch(progress: dict[str, Any]) -> str:
    """A micro-batch in a line, from Spark's progress report of it."""
    took = progress.get("durationMs", {}).get("triggerExecution", 0) / 1_000
    return f"batch {progress['batchId']}: {plural(int(progress['numInputRows']), 'record')} in {duration(took)}"


def follow(query: StreamingQuery, describe: Describe = describe_batch) -> bool:
    """Wait for a stream to end, telling of each micro-batch that had rows. Answers False if it was asked to stop, by
    Ctrl-C or SIGTERM: it is then stopped between two steps and can be resumed. Raises what the stream failed with."""
    asked = threading.Event()

    def ask(_signal: int, _frame: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    told = -1
    try:
        while not query.awaitTermination(1):
            if asked.is_set():
                say("stopping; start it again to go on")
                query.stop()
                break
            told = _tell(query, told, describe)
        _tell(query, told, describe)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return not asked.is_set()


def _tell(query: StreamingQuery, told: int, describe: Describe) -> int:
    """Tell of the micro-batches after the one that was told last. Spark keeps the last hundred."""
    for report in query.recentProgress:
        if report["batchId"] > told and report["numInputRows"] > 0:
            say(describe(report))
            told = report["batchId"]
    return told


@contextmanager
def watched(spark: SparkSession, what: str, also: Callable[[], str] = str) -> Iterator[None]:
    """Show the tasks of the Spark jobs that run meanwhile, and what `also` tells, asked in another thread."""
    console = stderr_console()
    over = threading.Event()
    with console.status(what) as status:

        def watch() -> None:
            polls = 0
            while not over.wait(_POLL_S):
                polls += 1
                shown = ", ".join(part for part in (_tasks(spark), also()) if part)
                if console.is_terminal:
                    status.update(f"{what}: {shown}" if shown else what)
                elif shown and polls % _LOG_EVERY == 0:
                    say(f"{what}: {shown}")

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _tasks(spark: SparkSession) -> str:
    tracker = spark.sparkContext.statusTracker()
    stages = [info for one in tracker.getActiveStageIds() if (info := tracker.getStageInfo(one)) is not None]
    total = sum(one.numTasks for one in stages)
    return f"{sum(one.numCompletedTasks for one in stages)} of {total} tasks" if total else ""
