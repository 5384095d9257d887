"""What an operator may choose. One frozen tree, read once by `__main__.py`; every part receives only its own branch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cursus_broker.log.settings import LogSettings
from cursus_service.logging import LogFormat, LogLevel
from cursus_service.settings import KIB, MIB, Profiles, Unit, section, setting

_MINUTE_MS: Final = 60_000
_DAY_MS: Final = 24 * 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True)
class TopicSettings:
    default_partitions: int = setting(4, help="Partitions of a topic whose creator does not say.", minimum=1)
    auto_create: bool = setting(False, help="Create a missing topic when something is published to it.")
    max_topic_partitions: int = setting(10_000, help="Most partitions one topic may have.", minimum=1)
    max_partitions: int = setting(50_000, help="Most partitions all topics may have together.", minimum=1)
    retention_ms: int = setting(
        7 * _DAY_MS,
        help="Delete segments whose newest record is older. -1 keeps them. A topic may say otherwise.",
        unit=Unit.MILLISECONDS,
        minimum=-1,
    )
    retention_bytes: int = setting(
        -1,
        help="Delete the oldest segments of a partition that is larger. -1: no limit. A topic may say otherwise.",
        unit=Unit.BYTES,
        minimum=-1,
    )
    retention_check_ms: int = setting(
        30_000, help="How often retention looks at the segments.", unit=Unit.MILLISECONDS, minimum=100
    )


@dataclass(frozen=True, slots=True)
class PublishSettings:
    max_batch_bytes: int = setting(
        64 * MIB, help="Largest record set accepted.", unit=Unit.BYTES, minimum=KIB, maximum=128 * MIB
    )
    max_batch_records: int = setting(1_000_000, help="Most records in one set.", minimum=1, maximum=50_000_000)
    max_unpacked_bytes: int = setting(
        128 * MIB,
        help="Most bytes a compressed set may unpack to, where the broker has to look into it.",
        unit=Unit.BYTES,
        minimum=KIB,
    )
    unpacking_bytes: int = setting(
        512 * MIB,
        help="Memory all publishers share for sets the broker looks into; further ones wait.",
        unit=Unit.BYTES,
        minimum=MIB,
    )
    window_bytes: int = setting(
        8 * MIB,
        help="Unanswered bytes a publish stream may have before it is no longer read.",
        unit=Unit.BYTES,
        minimum=1,
    )
    buffer_bytes: int = setting(
        64 * MIB,
        help="Unsynced bytes a partition may have before its publishers wait for the disk.",
        unit=Unit.BYTES,
        minimum=0,
    )
    write_timeout_ms: int = setting(
        5_000,
        help="How long a publisher waits for a full buffer before it is refused.",
        unit=Unit.MILLISECONDS,
        minimum=1,
    )
    dedup_window_ms: int = setting(
        30 * _MINUTE_MS,
        help="How long the content of anonymous single records is remembered.",
        unit=Unit.MILLISECONDS,
        minimum=0,
    )
    dedup_max_entries: int = setting(
        250_000, help="Most contents remembered per topic; beyond it the oldest is forgotten early.", minimum=1
    )
    dedup_total_entries: int = setting(
        1_000_000,
        help="Most contents remembered by all topics together, about 210 bytes each; beyond it one of the largest"
        " topics forgets its oldest early.",
        minimum=1,
    )
    cleanup_interval_ms: int = setting(
        60_000, help="How often forgotten contents are cleaned up.", unit=Unit.MILLISECONDS, minimum=10
    )
    producer_idle_ms: int = setting(
        7 * _DAY_MS,
        help="Forget a producer's sequence numbers when it has sent nothing for this long.",
        unit=Unit.MILLISECONDS,
        minimum=1_000,
    )


@dataclass(frozen=True, slots=True)
class ConsumeSettings:
    tail_records: int = setting(
        10_000, help="Newest records of a partition kept in memory for live readers.", minimum=0
    )
    tail_bytes: int = setting(
        64 * MIB, help="Memory all partitions share for their newest records.", unit=Unit.BYTES, minimum=0
    )
    response_bytes: int = setting(
        MIB, help="Bytes of record sets gathered into one response.", unit=Unit.BYTES, minimum=1, maximum=32 * MIB
    )


@dataclass(frozen=True, slots=True)
class GroupSettings:
    max_groups: int = setting(10_000, help="Most consumer groups.", minimum=1)
    max_members: int = setting(1_000, help="Most members of one group.", minimum=1)


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    keepalive_ms: int = setting(
        30_000, help="Ping a silent connection this often.", unit=Unit.MILLISECONDS, minimum=1_000
    )
    keepalive_timeout_ms: int = setting(
        10_000, help="Close a connection that does not answer a ping.", unit=Unit.MILLISECONDS, minimum=100
    )
    client_ping_interval_ms: int = setting(
        5_000, help="Clients that ping more often than this are disconnected.", unit=Unit.MILLISECONDS, minimum=0
    )
    max_request_bytes: int = setting(
        4 * MIB, help="Largest request that carries no records.", unit=Unit.BYTES, minimum=64 * KIB, maximum=64 * MIB
    )
    max_streams_per_connection: int = setting(10_000, help="Concurrent calls on one connection.", minimum=1)
    max_inflated_bytes: int = setting(
        256 * MIB,
        help="What gRPC-compressed requests may be inflated to at one time, all together; a call beyond it is refused.",
        unit=Unit.BYTES,
        minimum=MIB,
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    cert: Path | None = setting(None, help="PEM certificate chain of the broker. With the key it switches TLS on.")
    key: Path | None = setting(None, help="PEM private key of the broker.")
    client_ca: Path | None = setting(
        None, help="PEM certificates of authorities; clients then have to show a certificate of one of them."
    )

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS needs both tls.cert and tls.key")
        if self.client_ca is not None and self.cert is None:
            raise ValueError("tls.client_ca needs tls.cert and tls.key")


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    level: LogLevel = setting(LogLevel.INFO, help="Least severity that is logged.")
    format: LogFormat = setting(LogFormat.CONSOLE, help="How log lines look.")


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    data_dir: Path = setting(Path("data"), help="Directory of everything the broker keeps.")
    log_dir: Path | None = setting(None, help="Directory of the segment files. Default: `logs` in the data directory.")
    host: str = setting("127.0.0.1", help="Address to listen on, for all three ports. 0.0.0.0 for all interfaces.")
    grpc_port: int = setting(50051, help="Port for gRPC. 0 picks a free one.", minimum=0, maximum=65535)
    health_port: int = setting(9081, help="Port for /health, /live and /ready. 0 picks one.", minimum=0, maximum=65535)
    metrics_port: int = setting(9101, help="Port for /metrics. 0 picks a free one.", minimum=0, maximum=65535)
    advertised_host: str = setting("", help="Host that clients are told to use. Default: the listening address.")
    advertised_port: int = setting(
        0, help="Port that clients are told to use. 0: the gRPC port.", minimum=0, maximum=65535
    )
    broker_id: int = setting(0, help="Number of this broker.", minimum=0)
    grace_ms: int = setting(
        10_000, help="How long running calls may go on after SIGTERM.", unit=Unit.MILLISECONDS, minimum=0
    )
    log: LogSettings = section(LogSettings, help="The segment files.")
    topics: TopicSettings = section(TopicSettings, help="Topics and their defaults.")
    publish: PublishSettings = section(PublishSettings, help="Publishing.")
    consume: ConsumeSettings = section(ConsumeSettings, help="Consuming.")
    groups: GroupSettings = section(GroupSettings, help="Consumer groups.")
    grpc: GrpcSettings = section(GrpcSettings, help="The gRPC transport.")
    tls: TlsSettings = section(TlsSettings, help="TLS and mutual TLS for gRPC.")
    logging: LoggingSettings = section(LoggingSettings, help="The broker's own log.")

    @property
    def segment_dir(self) -> Path:
        return self.log_dir if self.log_dir is not None else self.data_dir / "logs"


PROFILES: Final[Profiles] = {
    # The seeds' examples: batch 1000, linger 200 ms, queue 10000, timeout 5 s.
    "throughput": {
        "log.flush_records": 1_000,
        "log.linger_ms": 200,
        "publish.buffer_bytes": 256 * MIB,
        "publish.window_bytes": 32 * MIB,
        "publish.write_timeout_ms": 5_000,
        "consume.tail_records": 10_000,
        "consume.response_bytes": 4 * MIB,
    },
    # Batch 100, linger 10 ms, queue 1000, timeout 1 s.
    "latency": {
        "log.flush_records": 100,
        "log.linger_ms": 10,
        "publish.buffer_bytes": 16 * MIB,
        "publish.window_bytes": 2 * MIB,
        "publish.write_timeout_ms": 1_000,
        "consume.tail_records": 10_000,
        "consume.response_bytes": 256 * KIB,
    },
    # Batch 50, linger 50 ms, queue 100, timeout 0.5 s.
    "memory": {
        "log.flush_records": 50,
        "log.linger_ms": 50,
        "log.open_files": 64,
        "publish.buffer_bytes": 4 * MIB,
        "publish.window_bytes": MIB,
        "publish.write_timeout_ms": 500,
        "publish.dedup_max_entries": 10_000,
        "publish.dedup_total_entries": 50_000,
        "consume.tail_records": 1_000,
        "consume.tail_bytes": 8 * MIB,
        "consume.response_bytes": 256 * KIB,
    },
}
