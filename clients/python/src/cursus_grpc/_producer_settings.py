"""What a producer may be told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypedDict

from cursus_grpc._batch import DeliveryCallback
from cursus_grpc._channel import MIB
from cursus_grpc._convert import require_text
from cursus_grpc._lane import MAX_IN_FLIGHT
from cursus_grpc._partitioning import Partitioner
from cursus_grpc._wire import ACKS, CODECS
from cursus_grpc.types import TLS, Acks, Compression, ProducerStatistics


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of both producers. `ProducerSettings` has their meaning and defaults."""

    acks: Acks
    linger_ms: float
    batch_bytes: int
    batch_records: int
    compression: Compression
    buffer_bytes: int
    on_full: Literal["block", "raise"]
    max_block_s: float
    delivery_timeout_s: float
    request_timeout_s: float
    max_in_flight: int
    metadata_max_age_s: float
    on_delivery: DeliveryCallback | None
    partitioner: Partitioner | None
    on_statistics: Callable[[ProducerStatistics], object] | None
    statistics_interval_s: float
    client_id: str
    tls: TLS | None


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer works. Raises ValueError for what makes no sense."""

    acks: Acks = 1
    """When a record counts as delivered: 0 accepted, 1 written, "all" synced to disk."""
    linger_ms: float = 0.0
    """How long a batch that is not full waits for more records. 0: it leaves as soon as the stream is free."""
    batch_bytes: int = 256 * 1024
    batch_records: int = 10_000
    compression: Compression = "none"
    buffer_bytes: int = 32 * MIB
    """Encoded bytes of records that are not settled yet. When it is full, `send` does as `on_full` says."""
    on_full: Literal["block", "raise"] = "block"
    max_block_s: float = 60.0
    """How long `send` may wait for room in the buffer, if that is not longer than the delivery timeout."""
    delivery_timeout_s: float = 120.0
    """From `send` to the outcome, over all retries."""
    request_timeout_s: float = 30.0
    """How long a broker may leave a batch unanswered before its stream is given up and the batch sent again."""
    max_in_flight: int = 16
    """Unanswered batches of one partition. Order is kept whatever the number."""
    metadata_max_age_s: float = 30.0
    """How often partition counts and leaders are asked for again."""
    on_delivery: DeliveryCallback | None = None
    """Called for every record with its place or its error, on the client's own thread, which it must not block."""
    partitioner: Partitioner | None = None
    """Chooses the partition of records that name none; None: the key's, or any, a batch at a time."""
    on_statistics: Callable[[ProducerStatistics], object] | None = None
    """Called at the interval, on the client's own thread, which it must not block."""
    statistics_interval_s: float = 5.0
    client_id: str = "cursus-python"
    tls: TLS | None = None

    def __post_init__(self) -> None:
        if self.acks not in ACKS:
            raise ValueError(f"acks is 0, 1 or 'all', not {self.acks!r}")
        if self.compression not in CODECS:
            raise ValueError(f"compression is one of {', '.join(CODECS)}, not {self.compression!r}")
        if self.on_full not in ("block", "raise"):
            raise ValueError(f"on_full is 'block' or 'raise', not {self.on_full!r}")
        if self.linger_ms < 0 or self.max_block_s < 0:
            raise ValueError("linger_ms and max_block_s must not be negative")
        if min(self.batch_bytes, self.batch_records, self.buffer_bytes) < 1:
            raise ValueError("batch_bytes, batch_records and buffer_bytes must be positive")
        if min(self.delivery_timeout_s, self.request_timeout_s, self.metadata_max_age_s) <= 0:
            raise ValueError("delivery_timeout_s, request_timeout_s and metadata_max_age_s must be positive")
        if self.statistics_interval_s <= 0:
            raise ValueError("statistics_interval_s must be positive")
        require_text("client_id", self.client_id)
        if not 1 <= self.max_in_flight <= MAX_IN_FLIGHT:
            raise ValueError(f"max_in_flight is 1 to {MAX_IN_FLIGHT}, not {self.max_in_flight}")

    @property
    def longest_block_s(self) -> float:
        """How long `send` may keep its caller."""
        return min(self.max_block_s, self.delivery_timeout_s)
