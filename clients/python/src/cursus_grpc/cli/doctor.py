"""`cursus doctor`: what stands between here and a working broker, and what to do about it. It changes nothing."""

from __future__ import annotations

import os
import platform
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final, Literal

import click

from cursus_grpc import Admin, CursusError
from cursus_grpc.cli.connection import Connection, file_path
from cursus_grpc.cli.failures import HINTS, REFUSED
from cursus_grpc.cli.output import duration, json_document, size
from cursus_grpc.cli.session import CONNECT_S, Command, Session, pass_session
from cursus_grpc.types import BrokerInfo

State = Literal["ok", "warning", "failed"]

_MARKS: Final[dict[State, tuple[str, str]]] = {
    "ok": ("ok     ", "green"),
    "warning": ("warning", "yellow"),
    "failed": ("failed ", "red"),
}
_CLOCK_WARN_S: Final = 1.0
_DISK_WARN, _DISK_FAIL = 0.10, 0.02
_HEALTH_PORT: Final = 9081
_MAX_BODY: Final = 4096


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `advice` is empty if there is nothing to do."""

    check: str
    state: State
    detail: str
    advice: str = ""


@click.command(cls=Command)
@click.option("--health", metavar="URL", help="The broker's health page. Default: port 9081 of its host.")
@pass_session
def doctor(session: Session, health: str | None) -> int:
    """Check connection, health, disk, clock and versions.

    Says what to do about what is wrong. Status 1 if something failed.
    """
    findings: list[Finding] = []
    for finding in examine(session, health):
        findings.append(finding)
        if not session.json:
            _print(finding)
    if session.json:
        json_document(
            [{"check": one.check, "state": one.state, "detail": one.detail, "advice": one.advice} for one in findings]
        )
    return REFUSED if any(one.state == "failed" for one in findings) else 0


def _print(finding: Finding) -> None:
    mark, colour = _MARKS[finding.state]
    click.echo(f"{click.style(mark, fg=colour)}  {finding.check:<10} {finding.detail}")
    if finding.advice:
        click.echo(f"{'':21}{click.style('do:', bold=True)} {finding.advice}")


def examine(session: Session, health: str | None) -> Iterator[Finding]:
    """Everything, from near to far. What cannot be looked at because something before it failed is left out."""
    yield _software()
    connection = session.connection
    path, _ = file_path(session.flags, os.environ)
    used = f"file {path}" if path.exists() else f"no file {path}"
    speaks = "TLS" if connection.tls else "no TLS"
    yield Finding("settings", "ok", f"broker {connection.broker} ({connection.origins['broker']}), {speaks}; {used}")
    reachable = False
    for address in connection.broker.split(","):
        finding = connects(address.strip(), "connection")
        reachable |= finding.state == "ok"
        yield finding
    if not reachable:
        return
    with ExitStack() as closing:
        try:
            admin = closing.enter_context(session.admin())
            began_s = time.time()
            info = admin.broker_info()
        except CursusError as error:
            yield Finding("grpc", "failed", str(error), HINTS.get(error.reason, ""))
            return
        took_s = time.time() - began_s
        yield Finding(
            "grpc", "ok", f"answers in {took_s * 1000:.1f} ms, {'over TLS' if connection.tls else 'in the clear'}"
        )
        yield _health(connection, health)
        yield _versions(info)
        yield clock(info.now_ms / 1000, began_s, took_s)
        yield disk(info)
        yield from _advertised(admin, connection)
        yield _partitions(admin)


def _software() -> Finding:
    return Finding(
        "software",
        "ok",
        f"cursus-grpc {version('cursus-grpc')}, grpcio {version('grpcio')}, Python {platform.python_version()}"
        f" on {platform.system()}",
    )


def split_address(address: str) -> tuple[str, int]:
    """Host and port, the port 50051 if it is left out."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, "50051"
    return host.strip("[]"), int(port) if port.isdigit() else 50051


def connects(address: str, check: str) -> Finding:
    """Whether the name is known and somebody listens there."""
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Finding(check, "failed", f"{host} has no address: {error}", "check the name, or DNS and /etc/hosts")
    try:
        with socket.create_connection((host, port), CONNECT_S):
            pass
    except ConnectionRefusedError:
        return Finding(
            check,
            "failed",
            f"{host} is there, and nobody listens on port {port}",
            "start the broker, or correct the port",
        )
    except OSError as error:
        return Finding(
            check, "failed", f"{address} cannot be reached: {error}", "look for a firewall, or the wrong network"
        )
    return Finding(check, "ok", f"{address} accepts connections ({found[0][4][0]})")


def _health(connection: Connection, url: str | None) -> Finding:
    host, _ = split_address(connection.broker.split(",")[0].strip())
    shown = url or f"http://{f'[{host}]' if ':' in host else host}:{_HEALTH_PORT}/health"
    try:
        # The scheme is checked: urlopen would read files too.
        if not shown.startswith(("http://", "https://")):
            raise click.BadParameter("it begins with http:// or https://", param_hint="--health")
        with urllib.request.urlopen(shown, timeout=CONNECT_S) as answer:
            return Finding("health", "ok", f"{shown} says {answer.read(_MAX_BODY).decode(errors='replace').strip()}")
    except urllib.error.HTTPError as error:
        said = error.read(_MAX_BODY).decode(errors="replace").strip()
        return Finding("health", "failed", f"{shown} says {error.code} {said}", "look at the broker's log")
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        return Finding(
            "health", "warning", f"{shown} does not answer: {cause}", "if it is elsewhere, name it with --health URL"
        )


def _versions(info: BrokerInfo) -> Finding:
    ours = version("cursus-grpc")
    detail = f"broker {info.version}, this command {ours}, up {duration((info.now_ms - info.started_ms) / 1000)}"
    if info.version.split(".")[:2] == ours.split(".")[:2]:
        return Finding("versions", "ok", detail)
    return Finding("versions", "warning", detail, "update the older of the two")


def clock(broker_s: float, began_s: float, took_s: float) -> Finding:
    """How far the clocks are apart. The broker looked at its own somewhere within the call."""
    apart_s = broker_s - (began_s + took_s / 2)
    detail = f"the broker's clock is {abs(apart_s) * 1000:.0f} ms {'ahead' if apart_s > 0 else 'behind'}"
    if abs(apart_s) <= max(_CLOCK_WARN_S, took_s):
        return Finding("clock", "ok", detail)
    return Finding(
        "clock", "warning", detail, "synchronise both with NTP: @TIME and retention go by the broker's clock"
    )


def disk(info: BrokerInfo) -> Finding:
    """What is left on the broker's disk."""
    share = info.disk_free_bytes / info.disk_total_bytes if info.disk_total_bytes else 1.0
    detail = (
        f"{size(info.disk_free_bytes)} of {size(info.disk_total_bytes)} free, {size(info.log_bytes)} used by the log"
    )
    if share >= _DISK_WARN:
        return Finding("disk", "ok", detail)
    advice = "shorten retention (`cursus topic update --set retention_bytes=…`), delete topics, or add space"
    return Finding("disk", "failed" if share < _DISK_FAIL else "warning", detail, advice)


def _advertised(admin: Admin, connection: Connection) -> Iterator[Finding]:
    """Clients go on to the addresses that brokers name. A wrong one there is a connection that works once."""
    given = {address.strip() for address in connection.broker.split(",")}
    for broker in admin.describe_cluster().brokers:
        if broker.target not in given:
            finding = connects(broker.target, "advertised")
            if finding.state == "ok":
                yield finding
            else:
                advice = "set advertised_host and advertised_port of the broker to what clients can reach"
                yield Finding("advertised", "failed", finding.detail, advice)


def _partitions(admin: Admin) -> Finding:
    damaged: list[str] = []
    count = 0
    for topic in admin.list_topics():
        for part in admin.describe_topic(topic.name).partitions:
            count += 1
            if part.damage:
                damaged.append(f"{topic.name}[{part.partition}]: {part.damage}")
    if not damaged:
        return Finding("partitions", "ok", f"all {count:,} are served")
    shown = "; ".join(damaged[:3]) + (f" and {len(damaged) - 3} more" if len(damaged) > 3 else "")
    return Finding(
        "partitions", "failed", shown, "stop the broker and run `cursus segments inspect` on its data directory"
    )
