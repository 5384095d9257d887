"""A broker on the clients' own event loop, with switches for faults.

It is the real one, `cursus_broker.app.serve`, over files that can be slow or lose what was not synced, and it asks here
before it admits a batch.
"""

from __future__ import annotations

import asyncio
import errno
import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import structlog

from cursus_broker import errors as broker_errors
from cursus_broker.app import serve
from cursus_broker.log.files import RealFiles
from cursus_broker.log.forgetful import ForgetfulFiles
from cursus_broker.publish.submission import Submission
from cursus_broker.settings import PROFILES, BrokerSettings
from cursus_grpc._loop_thread import LoopThread
from cursus_grpc.testing._process import START_S, STOP_S, BrokerFailed
from cursus_service.process import format_address
from cursus_service.settings import load

# Connections break at once when the broker ends: whoever tests wants to see that, not to wait for it.
_GRACE_MS: Final = "0"
_TAKEN_PAUSE_S: Final = 0.02


class SlowFiles(RealFiles):
    """The operating system's files, with syncs that take their time."""

    delay_s = 0.0

    def fdatasync(self, descriptor: int) -> None:
        time.sleep(self.delay_s)  # the log syncs in a thread of its own
        super().fdatasync(descriptor)


class SlowForgetfulFiles(ForgetfulFiles):
    """Files that power loss can take back, with syncs that take their time."""

    delay_s = 0.0

    def fdatasync(self, descriptor: int) -> None:
        time.sleep(self.delay_s)
        super().fdatasync(descriptor)


class InProcessBroker:
    def __init__(self, data_dir: Path, flags: Sequence[str], can_lose_power: bool) -> None:
        self._data_dir = data_dir / "data"
        self._flags = flags
        self._can_lose_power = can_lose_power
        self._files: SlowFiles | SlowForgetfulFiles | None = None
        self._refusals: deque[broker_errors.CursusError] = deque()
        self._loop = LoopThread.shared()
        self._stop: asyncio.Event | None = None
        self._serving: asyncio.Task[None] | None = None

    def start(self, port: int) -> str:
        """Start it, on a port of its choice if 0, and answer its address. Raises BrokerFailed."""
        assert self._serving is None, "started twice"
        _log_with_the_process()
        deadline = time.monotonic() + START_S
        while True:
            try:
                return self._start(port)
            except BrokerFailed as failed:
                # Somebody's outgoing connection may have got the port while nobody listened on it: even that of a
                # client that looks for this broker, which is then connected to itself until it finds out.
                if not _is_taken(failed) or time.monotonic() > deadline:
                    raise
            time.sleep(_TAKEN_PAUSE_S)

    def _start(self, port: int) -> str:
        settings = self._settings(port)
        files = self._open_files(settings)
        ready = _Ready()
        self._loop.run(self._launch(settings, files, ready))
        ready.event.wait(START_S)
        if not ready.address:
            cause = self._failure()
            raise BrokerFailed(f"the broker did not start: {cause}") from cause
        return ready.address

    def _settings(self, port: int) -> BrokerSettings:
        flags = ["--data-dir", str(self._data_dir), "--grpc-port", str(port), "--health-port", "0"]
        flags += ["--metrics-port", "0", "--grace-ms", _GRACE_MS, *self._flags]
        return load(BrokerSettings, flags, {}, program="cursus-broker", profiles=PROFILES).settings

    def _open_files(self, settings: BrokerSettings) -> SlowFiles | SlowForgetfulFiles:
        if self._files is None:
            settings.segment_dir.mkdir(parents=True, exist_ok=True)
            self._files = SlowForgetfulFiles(settings.segment_dir) if self._can_lose_power else SlowFiles()
        return self._files

    async def _launch(self, settings: BrokerSettings, files: SlowFiles | SlowForgetfulFiles, ready: _Ready) -> None:
        self._stop = asyncio.Event()
        self._serving = asyncio.create_task(
            serve(settings, self._stop, files, admit=self._admit, announce=ready.announce), name="cursus-broker"
        )
        self._serving.add_done_callback(lambda _: ready.event.set())

    def _admit(self, _submission: Submission) -> None:
        if self._refusals:
            raise self._refusals.popleft()

    def stop(self) -> None:
        if self._serving is not None:
            self._loop.run(self._end())

    def kill(self) -> None:
        self.stop()

    def log(self) -> str:
        return ""

    async def _end(self) -> None:
        assert self._stop is not None
        assert self._serving is not None
        self._stop.set()
        serving, self._serving = self._serving, None
        await asyncio.wait([serving], timeout=STOP_S)
        if not serving.done():
            serving.cancel()
        # Without power it cannot end in good order, and that is the point.
        await asyncio.gather(serving, return_exceptions=True)

    def _failure(self) -> BaseException | None:
        serving, self._serving = self._serving, None
        return serving.exception() if serving is not None and serving.done() else None

    def power_loss(self, seed: int) -> None:
        """Leaves the broker stopped, with the files power loss may have left."""
        files = self._files
        if not isinstance(files, SlowForgetfulFiles):
            raise ValueError("to lose power the broker has to be made with can_lose_power=True")
        files.cut_power_after(0)
        self.stop()
        files.power_loss(random.Random(seed))

    def forget_end(self, path: Path, size: int) -> None:
        """Cut a file of the stopped broker to this size, synced or not, as a failing disk may."""
        files = self._files
        assert files is not None, "not started"
        descriptor = files.open(str(path), writable=True)
        try:
            files.truncate(descriptor, size)
            files.fdatasync(descriptor)
        finally:
            files.close(descriptor)

    def slow_disk(self, delay_ms: float) -> None:
        assert self._files is not None, "not started"
        self._files.delay_s = delay_ms / 1000

    def refuse(self, reason: str, times: int, metadata: Mapping[str, str]) -> None:
        self._refusals.extend(make_refusal(reason, metadata) for _ in range(times))


def make_refusal(reason: str, metadata: Mapping[str, str]) -> broker_errors.CursusError:
    """A refusal with this reason. Raises ValueError for one that no broker gives."""
    pending = [broker_errors.CursusError]
    while pending:
        kind = pending.pop()
        if kind.reason == reason:
            refusal = kind.__new__(kind)  # each class has arguments of its own, which a test need not know
            broker_errors.CursusError.__init__(refusal, f"refused by the test with {reason}", **metadata)
            return refusal
        pending += kind.__subclasses__()
    raise ValueError(f"no broker refuses with {reason!r}")


def _is_taken(failed: BaseException | None) -> bool:
    """Whether it failed because its port is another's."""
    while failed is not None and not isinstance(failed, OSError):
        failed = failed.__cause__
    return failed is not None and failed.errno == errno.EADDRINUSE


class _Ready:
    """Where the broker listens, once it does."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.address = ""

    def announce(self, *, grpc: tuple[str, int], **_others: tuple[str, int]) -> None:
        self.address = format_address(*grpc)
        self.event.set()


def _log_with_the_process() -> None:
    """Send the broker's events to `logging` unless the process decided otherwise: by default they go to stdout."""
    if not structlog.is_configured():
        structlog.configure(
            processors=[structlog.stdlib.filter_by_level, structlog.processors.KeyValueRenderer(key_order=["event"])],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )
