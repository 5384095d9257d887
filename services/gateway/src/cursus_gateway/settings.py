"""What an operator may choose. One frozen tree, read once by `__main__.py`; every part receives only its own branch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from cursus_service.logging import LogFormat, LogLevel
from cursus_service.settings import KIB, MIB, Unit, section, setting

_MINUTE_MS: Final = 60_000


class ReplyProfile(StrEnum):
    """How FETCH_OFFSET is answered, the one command whose clients cannot all be pleased by one answer."""

    BARE = "bare"
    OK = "ok"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    limit: int = setting(1_000, help="Connections served at once; further ones wait to be accepted.", minimum=1)
    backlog: int = setting(
        4_096, help="Connections the kernel keeps waiting, as far as its own limit allows.", minimum=1
    )
    read_deadline_ms: int = setting(
        5 * _MINUTE_MS,
        help="Close a connection that is stuck inside a frame or idle in the first generation's protocol.",
        unit=Unit.MILLISECONDS,
        minimum=100,
    )
    unanswered_bytes: int = setting(
        8 * MIB,
        help="Bytes of requests one connection may have unanswered before it is no longer read.",
        unit=Unit.BYTES,
        minimum=KIB,
    )
    large_frame_bytes: int = setting(
        256 * MIB,
        help="Memory all connections share for what has arrived of frames above 256 KiB; further ones wait.",
        unit=Unit.BYTES,
        minimum=64 * MIB,
    )
    write_buffer_bytes: int = setting(
        MIB, help="Unsent answers one connection may have before it has to read them.", unit=Unit.BYTES, minimum=KIB
    )


@dataclass(frozen=True, slots=True)
class UnpackingSettings:
    max_bytes: int = setting(
        128 * MIB,
        help="Most bytes a compressed frame (never above 64 MiB) or a stored record set may unpack to.",
        unit=Unit.BYTES,
        minimum=MIB,
    )
    max_records: int = setting(
        1_000_000, help="Most records, with their headers, in a stored record set that is unpacked.", minimum=1
    )
    shared_bytes: int = setting(
        512 * MIB,
        help="Memory all connections share for what is unpacked; further frames and sets wait for room.",
        unit=Unit.BYTES,
        minimum=4 * MIB,
    )


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    channels: int = setting(2, help="gRPC connections to a broker, each with one publish stream.", minimum=1)
    request_timeout_ms: int = setting(
        4_000,
        help="Longest time a request waits for the broker, retries included. Clients wait 5 s.",
        unit=Unit.MILLISECONDS,
        minimum=10,
    )
    pending_bytes: int = setting(
        32 * MIB, help="Unanswered bytes of one publish stream before its clients wait.", unit=Unit.BYTES, minimum=KIB
    )
    health_interval_ms: int = setting(
        1_000, help="How often the broker is asked whether it serves.", unit=Unit.MILLISECONDS, minimum=10
    )
    tls_ca: Path | None = setting(None, help="PEM certificates of authorities; switches TLS to the broker on.")
    tls_cert: Path | None = setting(None, help="PEM certificate the gateway shows to the broker.")
    tls_key: Path | None = setting(None, help="PEM private key of that certificate.")

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("a client certificate needs both tls_cert and tls_key")
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("a client certificate needs tls_ca")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    auto_create: bool = setting(True, help="Create a missing topic when a direct message is sent to it.")
    auto_create_partitions: int = setting(4, help="Partitions of a topic created that way.", minimum=1)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    session_timeout_ms: int = setting(
        30_000,
        help="How long a member lives without a sign of life.",
        unit=Unit.MILLISECONDS,
        minimum=1_000,
        maximum=600_000,
    )
    stream_autocommit: bool = setting(
        False, help="Commit the offset a member presents in STREAM or CONSUME, for clients that never commit."
    )
    stream_keepalive_ms: int = setting(
        4_000,
        help="Silence after which an open STREAM is sent a keepalive. Python clients give up after 5 s.",
        unit=Unit.MILLISECONDS,
        minimum=10,
    )


@dataclass(frozen=True, slots=True)
class TlsSettings:
    cert: Path | None = setting(None, help="PEM certificate chain. With the key, TLS and plain text share the port.")
    key: Path | None = setting(None, help="PEM private key.")

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS needs both tls.cert and tls.key")


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    level: LogLevel = setting(LogLevel.INFO, help="Least severity that is logged.")
    format: LogFormat = setting(LogFormat.CONSOLE, help="How log lines look.")


@dataclass(frozen=True, slots=True)
class Listen:
    port: int
    profile: ReplyProfile


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    broker: tuple[str, ...] = setting(("127.0.0.1:50051",), help="Brokers to begin with, HOST:PORT each.")
    host: str = setting("127.0.0.1", help="Address to listen on, for all ports. 0.0.0.0 for all interfaces.")
    port: int = setting(9000, help="Port of the TCP protocol. 0 picks a free one.", minimum=0, maximum=65535)
    health_port: int = setting(9080, help="Port for /health, /live and /ready. 0 picks one.", minimum=0, maximum=65535)
    metrics_port: int = setting(9100, help="Port for /metrics. 0 picks a free one.", minimum=0, maximum=65535)
    reply_profile: ReplyProfile = setting(ReplyProfile.AUTO, help="Reply profile of the main port.")
    listen: tuple[str, ...] = setting((), help="Further ports with a reply profile each, PORT:PROFILE. May repeat.")
    advertised_host: str = setting(
        "", help="Host that clients are told to use. Default: the address they connected to."
    )
    advertised_port: int = setting(
        0, help="Port that clients are told to use. 0: the one they connected to.", minimum=0, maximum=65535
    )
    enable_gzip: bool = setting(
        False, help="Expect gzip: messages that come plain are still stored, but counted, and logged once a connection."
    )
    grace_ms: int = setting(
        10_000, help="How long accepted requests may take after SIGTERM.", unit=Unit.MILLISECONDS, minimum=0
    )
    connections: ConnectionSettings = section(ConnectionSettings, help="Connections of clients.")
    unpacking: UnpackingSettings = section(UnpackingSettings, help="What is compressed, in frames and in stored sets.")
    upstream: UpstreamSettings = section(UpstreamSettings, help="The way to the broker.")
    topics: TopicSettings = section(TopicSettings, help="Topics.")
    groups: GroupSettings = section(GroupSettings, help="Consumer groups.")
    tls: TlsSettings = section(TlsSettings, help="TLS for clients.")
    logging: LoggingSettings = section(LoggingSettings, help="The gateway's own log.")

    def __post_init__(self) -> None:
        if not self.broker:
            raise ValueError("name at least one broker")
        for address in self.broker:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"broker must be HOST:PORT, not {address!r}")
        if ":" in self.advertised_host:
            raise ValueError("advertised_host must be a name or an IPv4 address: Java clients split at every colon")
        self.listens()

    def listens(self) -> tuple[Listen, ...]:
        """The main port and the further ones. Raises ValueError for one that is not PORT:PROFILE."""
        found = [Listen(self.port, self.reply_profile)]
        for item in self.listen:
            port, _, profile = item.rpartition(":")
            if not port.isdecimal() or int(port) > 65535 or profile not in list(ReplyProfile):
                raise ValueError(f"listen must be PORT:PROFILE with one of bare, ok, auto, not {item!r}")
            found.append(Listen(int(port), ReplyProfile(profile)))
        return tuple(found)
