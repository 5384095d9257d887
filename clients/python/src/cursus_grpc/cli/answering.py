"""Who answers where a broker was looked for: one of its other ports, a gateway, or something else altogether.

Asked only when connecting has failed: what a peer says to two harmless questions tells more than that it did not speak
gRPC.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cursus_grpc.cli.connection import SERVICES
from cursus_grpc.cli.failures import Failed
from cursus_grpc.errors import BrokerUnreachable, TlsFailed

if TYPE_CHECKING:
    from cursus_grpc.cli.connection import Connection

BROKER_PORT: Final = 50051
IDENTITY: Final = "cursus-identity"
"""The header in which a health page says whose it is."""

_ASK_S: Final = 0.5
"""How long an answer may take. Whoever grants the command more time than usual grants it here too."""
_MAX_ASK_S: Final = 10.0
_MAX_BYTES: Final = 64 * 1024
_MAX_ASKED: Final = 3
_COMMAND: Final = b"HELP"


@dataclass(frozen=True, slots=True)
class Page:
    """An answer over HTTP/1."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def identity(self) -> dict[str, str]:
        """What the page says of itself: `service`, and of a broker `cluster`, `id` and `started`. Empty: nothing."""
        service, *facts = self.headers.get(IDENTITY, "").split()[:8] or [""]
        found = dict(fact.partition("=")[::2] for fact in facts)
        return {"service": service, **found} if service else {}


def split_address(address: str) -> tuple[str, int]:
    """Host and port, the port 50051 if it is left out."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(BROKER_PORT)
    return host.strip("[]"), int(port) if port.isdigit() else BROKER_PORT


def explained(error: BrokerUnreachable, connection: Connection, environ: Mapping[str, str]) -> Exception:
    """The same failure, or a better one: what answers at the addresses instead of a broker, and what to try."""
    if isinstance(error, TlsFailed) and connection.tls is None:
        others = [name for name in SERVICES if environ.get(name)]
        are = "are" if len(others) > 1 else "is"
        theirs = f" ({' and '.join(others)} {are} the services' own and not read here)" if others else ""
        address = connection.broker.split(",")[0].strip()
        return Failed(
            f"the broker at {address} speaks TLS, and this command was not told to",
            f"add --tls, and --tls-ca FILE if the authority is your own, or set CURSUS_CLI_TLS_CA{theirs}",
            error.reason,
        )
    patience_s = _ASK_S if connection.is_default("timeout") else min(connection.timeout_s, _MAX_ASK_S)
    for address in connection.broker.split(",")[:_MAX_ASKED]:
        found = who(address.strip(), patience_s)
        if found is not None:
            return Failed(
                f"{address.strip()} is {found}, and this command needs the gRPC port of a broker",
                f"that is {BROKER_PORT} unless the broker's settings say otherwise (grpc_port)",
                "NOT_A_BROKER",
            )
    return error


def who(address: str, patience_s: float = _ASK_S) -> str | None:
    """What listens there, in words that fit behind "is"; None if that cannot be told."""
    answer = _ask(address, patience_s, _http_question(address), lambda so_far: False)
    if answer is None:
        return None
    page = as_page(answer)
    if page is not None:
        if service := page.identity.get("service"):
            return f"the health port of a {service}"
        if b"metrics are at /metrics" in page.body:
            return "the metrics port of a broker or gateway"
        return "a web server (it speaks HTTP/1)"
    if _speaks_legacy(address, patience_s):
        return "a gateway, which speaks the TCP protocol"
    return None


def _http_question(address: str) -> bytes:
    host, _ = split_address(address)
    return f"GET /live HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("ascii", "replace")


def as_page(answer: bytes) -> Page | None:
    """What was said, if that is HTTP/1."""
    if not answer.startswith(b"HTTP/1."):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    pairs = (line.partition(":")[::2] for line in lines)
    return Page(status, {name.strip().lower(): value.strip() for name, value in pairs}, body)


def _speaks_legacy(address: str, patience_s: float) -> bool:
    """Whether a frame of the TCP protocol is answered with one: a length, and as much text."""
    answer = _ask(address, patience_s, (2 + len(_COMMAND)).to_bytes(4, "big") + b"\0\0" + _COMMAND, _is_frame)
    return answer is not None and _is_frame(answer) and _is_text(answer[4:])


def _is_frame(answer: bytes) -> bool:
    return len(answer) > 4 and len(answer) == 4 + int.from_bytes(answer[:4], "big")


def _is_text(content: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        return "\0" not in content.decode()
    return False


def _ask(address: str, patience_s: float, question: bytes, is_whole: Callable[[bytes], bool]) -> bytes | None:
    """What comes back, up to the end of the connection or until it is all. None from a peer that is silent, or not
    there: it has made us wait long enough."""
    answer = b""
    try:
        with socket.create_connection(split_address(address), patience_s) as peer:
            peer.sendall(question)
            while len(answer) < _MAX_BYTES and not is_whole(answer) and (part := peer.recv(_MAX_BYTES)):
                answer += part
    except (TimeoutError, UnicodeError):
        return answer or None
    except ConnectionResetError:
        return answer
    except OSError:
        return None
    return answer
