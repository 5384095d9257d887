"""A real broker for tests, without containers. Needs the extra `testing`, which brings the broker.

    with Broker() as broker:
        with Producer(broker.address) as producer:
            ...
        broker.kill()
        broker.restart()

By default the broker is a process of its own; `Broker(in_process=True)` runs it on the clients' own event loop, starts
faster, and has switches for a slow disk, for refusals and, with `can_lose_power=True`, for power loss. Either way it
keeps its address over restarts and its data until the block is left.

For pytest there are the fixtures `cursus_broker` and `cursus_topic`: see `plugin.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from cursus_grpc.testing._in_process import InProcessBroker
from cursus_grpc.testing._process import BrokerFailed, BrokerProcess

__all__ = ["Broker", "BrokerFailed"]


class _Running(Protocol):
    def start(self, port: int) -> str: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...
    def log(self) -> str: ...


class Broker:
    """A broker with a data directory and a port of its own. `flags` are those of `cursus-broker`."""

    def __init__(
        self,
        *flags: str,
        in_process: bool = False,
        can_lose_power: bool = False,
        data_dir: Path | None = None,
    ) -> None:
        """`can_lose_power` needs `in_process`; it keeps all data in memory besides, so use it for small tests. Without
        a `data_dir` a temporary one is made and removed."""
        if can_lose_power and not in_process:
            raise ValueError("only a broker in process can lose its power")
        self._temporary = tempfile.TemporaryDirectory(prefix="cursus-") if data_dir is None else None
        self.data_dir = data_dir if data_dir is not None else Path(self._temporary.name if self._temporary else "")
        self._in_process = InProcessBroker(self.data_dir, flags, can_lose_power) if in_process else None
        self._broker: _Running = self._in_process or BrokerProcess(self.data_dir, flags)
        self._address = ""

    @property
    def address(self) -> str:
        """HOST:PORT, the same over all restarts."""
        return self._address

    def start(self) -> Self:
        """Raises BrokerFailed, with the end of its log, if it does not come up."""
        port = int(self._address.rpartition(":")[2]) if self._address else 0
        self._address = self._broker.start(port)
        return self

    def stop(self) -> None:
        """End it in good order. Fine if it is not running."""
        self._broker.stop()

    def kill(self) -> None:
        """End it at once: SIGKILL for a process; in process all connections break, with nothing finished."""
        self._broker.kill()

    def restart(self) -> None:
        """Start it again on the same data and port, after stopping it if it runs."""
        self._broker.stop()
        self.start()

    def log(self) -> str:
        """What it has logged so far; empty in process, where it logs with the rest of the process."""
        return self._broker.log()

    # Faults, in process only

    def power_loss(self, seed: int = 0) -> None:
        """Cut the power and start again: what was not synced is there, missing or torn, as the seed decides."""
        faulty = self._faulty()
        faulty.power_loss(seed)
        self.start()

    def slow_disk(self, delay_ms: float) -> None:
        """Every sync takes this much longer from now on. 0: no longer."""
        self._faulty().slow_disk(delay_ms)

    def refuse(self, reason: str, times: int = 1, **metadata: str) -> None:
        """Refuse the next `times` batches that are published, with a reason such as `WRITE_TIMEOUT`."""
        self._faulty().refuse(reason, times, metadata)

    def _faulty(self) -> InProcessBroker:
        if self._in_process is None:
            raise ValueError("this switch needs Broker(in_process=True)")
        return self._in_process

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._broker.stop()
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()
