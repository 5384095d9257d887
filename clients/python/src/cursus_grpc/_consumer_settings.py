"""What a consumer may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from cursus_grpc._channel import MIB
from cursus_grpc._convert import STRATEGIES, require_text
from cursus_grpc.types import TLS, ConsumerStatistics, Reset, Strategy
from cursus_proto.bounds import MAX_UNPACKED_BYTES, MAX_UNPACKED_RECORDS, Bounds


class ConsumerOptions(TypedDict, total=False):
    """Keyword arguments of both consumers. `ConsumerSettings` has their meaning and defaults."""

    group: str | None
    reset: Reset
    auto_commit: bool
    auto_commit_interval_ms: float
    prefetch_bytes: int
    max_unpacked_bytes: int
    max_unpacked_records: int
    session_timeout_ms: int
    rebalance_timeout_ms: int
    strategy: Strategy | None
    instance_id: str
    on_statistics: Callable[[ConsumerStatistics], object] | None
    statistics_interval_s: float
    client_id: str
    request_timeout_s: float
    tls: TLS | None


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer works. Raises ValueError for what makes no sense."""

    group: str | None = None
    reset: Reset = "earliest"
    """Where to begin in a partition for which the group has committed nothing, or whose offset is not retained."""
    auto_commit: bool = True
    """Commit what was processed: at the interval, before partitions are given away, and on closing. Needs a group."""
    auto_commit_interval_ms: float = 5_000.0
    prefetch_bytes: int = 16 * MIB
    """Bytes received and not handed out yet. Exceeded by at most one response of the broker."""
    max_unpacked_bytes: int = MAX_UNPACKED_BYTES
    """What a compressed batch may unpack to. A larger one is not handed out: BatchTooLarge."""
    max_unpacked_records: int = MAX_UNPACKED_RECORDS
    """Records of a batch, together with their headers, likewise."""
    session_timeout_ms: int = 30_000
    """How long the group waits for a member whose connection broke."""
    rebalance_timeout_ms: int = 10_000
    """How long the application may take to come back for more records before a partition is taken from it."""
    strategy: Strategy | None = None
    """How the group shares partitions. None: as it does already; a new one moves as few as
    it can (`sticky`), unless a client of the older protocol is its first member (`modulo`)."""
    instance_id: str = ""
    """Static membership: a consumer that comes back under this name keeps its partitions."""
    on_statistics: Callable[[ConsumerStatistics], object] | None = None
    """Called at the interval, on the client's own thread, which it must not block."""
    statistics_interval_s: float = 5.0
    client_id: str = "cursus-python"
    request_timeout_s: float = 30.0
    tls: TLS | None = None

    def __post_init__(self) -> None:
        if self.reset not in ("earliest", "latest", "error"):
            raise ValueError(f"reset is 'earliest', 'latest' or 'error', not {self.reset!r}")
        if self.strategy is not None and self.strategy not in STRATEGIES:
            raise ValueError(f"strategy is one of {', '.join(STRATEGIES)}, not {self.strategy!r}")
        if self.auto_commit_interval_ms <= 0 or self.prefetch_bytes < 1 or self.request_timeout_s <= 0:
            raise ValueError("auto_commit_interval_ms, prefetch_bytes and request_timeout_s must be positive")
        if self.statistics_interval_s <= 0:
            raise ValueError("statistics_interval_s must be positive")
        if min(self.max_unpacked_bytes, self.max_unpacked_records) < 1:
            raise ValueError("max_unpacked_bytes and max_unpacked_records must be positive")
        if self.group == "":
            raise ValueError("group must not be empty")
        # Found out here: later it would be a broken message, on an event loop that nobody watches.
        for name in ("group", "instance_id", "client_id"):
            if (value := getattr(self, name)) is not None:
                require_text(name, value)

    @property
    def unpacked_within(self) -> Bounds:
        return Bounds(self.max_unpacked_bytes, self.max_unpacked_records)
