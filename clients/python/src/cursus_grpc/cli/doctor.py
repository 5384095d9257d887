"""`cursus doctor`: what stands between here and a working broker, and what to do about it. It changes nothing."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import click

from cursus_grpc.cli import answering
from cursus_grpc.cli.answering import split_address
from cursus_grpc.cli.connection import SERVICES, Connection, shown
from cursus_grpc.cli.failures import HINTS, REFUSED, Failed
from cursus_grpc.cli.output import duration, json_document, size
from cursus_grpc.cli.session import CONNECT_S, Command, Session, pass_session
from cursus_grpc.errors import CursusError
from cursus_grpc.types import BrokerInfo

if TYPE_CHECKING:
    from cursus_grpc import Admin

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
    yield _settings(connection)
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
        except Failed as error:
            yield Finding("grpc", "failed", str(error), error.hint)
            return
        except CursusError as error:
            yield Finding("grpc", "failed", str(error), HINTS.get(error.reason, ""))
            return
        took_s = time.time() - began_s
        yield Finding(
            "grpc", "ok", f"answers in {took_s * 1000:.1f} ms, {'over TLS' if connection.tls else 'in the clear'}"
        )
        yield _health(connection, health, info)
        yield _versions(info)
        yield clock(info.now_ms / 1000, began_s, took_s)
        yield disk(info)
        yield from _advertised(admin, connection)
        yield from _partitions(admin)


def _settings(connection: Connection) -> Finding:
    """What is in force; `cursus config show` has it in full."""
    file = connection.file
    used = f"file {file.path}" if file.exists else f"no file {file.path}"
    profile = f", profile {connection.profile}" if connection.profile else ""
    speaks = "TLS" if connection.tls else "no TLS"
    given = [shown(name) for name in connection.origins if name.startswith("tls_")]
    tls = f"{speaks} ({', '.join(given)})" if connection.tls and given else speaks
    ignored = [name for name in SERVICES if os.environ.get(name)]
    theirs = f"; {' and '.join(ignored)} in the environment are the services' own" if ignored else ""
    detail = f"broker {connection.broker} ({connection.origins['broker']}), {tls}; {used}{profile}{theirs}"
    return Finding("settings", "ok", detail)


def _software() -> Finding:
    from importlib.metadata import version

    return Finding(
        "software",
        "ok",
        f"cursus-grpc {version('cursus-grpc')}, grpcio {version('grpcio')}, Python {platform.python_version()}"
        f" on {platform.system()}",
    )


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


def _health(connection: Connection, url: str | None, info: BrokerInfo) -> Finding:
    """Whether the health page is well, and this broker's: another broker of the same host may have taken the port."""
    import urllib.error
    import urllib.request

    host, _ = split_address(connection.broker.split(",")[0].strip())
    page = url or f"http://{f'[{host}]' if ':' in host else host}:{_HEALTH_PORT}/health"
    try:
        # The scheme is checked: urlopen would read files too.
        if not page.startswith(("http://", "https://")):
            raise click.BadParameter("it begins with http:// or https://", param_hint="--health")
        with urllib.request.urlopen(page, timeout=CONNECT_S) as answer:
            said = answer.read(_MAX_BODY).decode(errors="replace").strip()
            found = answering.Page(200, {name.lower(): value for name, value in answer.headers.items()}, b"")
    except urllib.error.HTTPError as error:
        said = f"{error.code} {error.read(_MAX_BODY).decode(errors='replace').strip()}"
        found = answering.Page(error.code, {name.lower(): value for name, value in error.headers.items()}, b"")
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        return Finding(
            "health", "warning", f"{page} does not answer: {cause}", "if it is elsewhere, name it with --health URL"
        )
    return whose(found, page, said, info, named=url is not None)


def whose(found: answering.Page, url: str, said: str, info: BrokerInfo, *, named: bool) -> Finding:
    """What a health page is worth: nothing about this broker, unless it says that it is this broker's."""
    identity = found.identity
    ours = {"service": "broker", "cluster": info.cluster_id, "id": str(info.broker_id), "started": str(info.started_ms)}
    if identity == ours:
        if found.status == 200:
            return Finding("health", "ok", f"{url} says {said}")
        return Finding("health", "failed", f"{url} says {said}", "look at the broker's log")
    advice = "name the page of this broker with --health URL"
    if not identity:
        return Finding("health", "warning", f"{url} says {said}, and not whose health that is", advice)
    other = f"another {identity['service']}" if identity["service"] == "broker" else f"a {identity['service']}"
    cluster = f" (cluster {identity['cluster']}, broker {identity.get('id', '?')})" if identity.get("cluster") else ""
    this = f"cluster {info.cluster_id}, broker {info.broker_id}"
    detail = f"{url} is the page of {other}{cluster}, not of this broker ({this})"
    return Finding("health", "failed" if named else "warning", detail, advice)


def _versions(info: BrokerInfo) -> Finding:
    from importlib.metadata import version

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
    advice = "shorten retention (`cursus topic update --set retention_bytes=…`), delete topics, or add space"
    if info.disk_full:
        return Finding("disk", "failed", f"full, publishes are refused: {detail}", advice)
    if share >= _DISK_WARN:
        return Finding("disk", "ok", detail)
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


def _partitions(admin: Admin) -> Iterator[Finding]:
    """What is wrong with which partitions, each kind of trouble once."""
    damaged: list[str] = []
    refusing: list[str] = []
    cut: list[str] = []
    cut_records = count = 0
    for topic in admin.list_topics():
        for part in admin.describe_topic(topic.name).partitions:
            count += 1
            name = f"{topic.name}[{part.partition}]"
            if part.damage:
                damaged.append(f"{name}: {part.damage}")
            if part.refusal:
                refusing.append(f"{name}: {part.refusal}")
            if part.recovery_cut is not None:
                cut_records += part.recovery_cut.record_count
                cut.append(f"{name} at offset {part.recovery_cut.offset:,} ({part.recovery_cut.record_count:,})")
    if damaged:
        advice = "run `cursus segments inspect` on the broker's data directory; docs/operations.md, Corrupted segment"
        yield Finding("partitions", "failed", _shown(damaged), advice)
    if refusing:
        advice = "see to the disk, then `cursus partition reopen TOPIC PARTITION`"
        yield Finding("partitions", "failed", _shown(refusing), advice)
    if cut:
        detail = f"the last start cut off {cut_records:,} records or more: {_shown(cut)}"
        yield Finding("recovery", "warning", detail, "docs/operations.md, Recovery cut: was there power loss?")
    if not damaged and not refusing:
        yield Finding("partitions", "ok", f"all {count:,} are served")


def _shown(troubles: list[str]) -> str:
    return "; ".join(troubles[:3]) + (f" and {len(troubles) - 3} more" if len(troubles) > 3 else "")
