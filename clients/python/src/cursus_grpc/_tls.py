"""TLS: credentials for gRPC, and finding out why a handshake fails.

gRPC reports every failed handshake as UNAVAILABLE with a text for people. So when a broker cannot be reached,
`explain` shakes hands once more with Python's own TLS, which says what is wrong in types.
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from pathlib import Path
from typing import Final

from cursus_grpc.errors import TlsFailed
from cursus_grpc.types import TLS

_PROBE_S: Final = 2.0
_AGAIN_S: Final = 0.2


class _Ambiguous(TlsFailed):
    """What it looks like, if it looks like it again."""


def _pem(source: bytes | str | None) -> bytes | None:
    return Path(source).read_bytes() if isinstance(source, str) else source


async def explain(target: str, tls: TLS | None, timeout_s: float | None = None) -> TlsFailed | None:
    """What is wrong with TLS between us and the broker at `target`; None if that is not what is wrong, or if it did not
    show in time."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    try:
        async with asyncio.timeout(_PROBE_S if timeout_s is None else timeout_s):
            if tls is None:
                return await _plain_to_tls(host, int(port), target)
            failed = await _handshake(host, int(port), target, tls)
            if isinstance(failed, _Ambiguous):
                # A broker that is about to end looks the same, but not twice.
                await asyncio.sleep(_AGAIN_S)
                failed = await _handshake(host, int(port), target, tls)
            return None if failed is None else TlsFailed(str(failed))
    except (OSError, TimeoutError, EOFError):
        return None


async def _plain_to_tls(host: str, port: int, target: str) -> TlsFailed | None:
    # Not the default context: that one loads the system's certificates, tens of milliseconds of the event loop.
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    try:
        _, writer = await asyncio.open_connection(host, port, ssl=trusting)
    except ssl.SSLError:
        return None
    writer.close()
    return TlsFailed(f"the broker at {target} speaks TLS; the client was not told to (tls=TLS(...))")


async def _handshake(host: str, port: int, target: str, tls: TLS) -> TlsFailed | None:
    try:
        reader, writer = await asyncio.open_connection(
            host, port, ssl=context(tls), server_hostname=tls.server_name or host
        )
    except ssl.SSLCertVerificationError as error:
        return TlsFailed(f"the certificate of the broker at {target} is not trusted: {error.verify_message}")
    except ssl.SSLError as error:
        detail = error.reason or str(error)
        if detail == "WRONG_VERSION_NUMBER":
            return TlsFailed(f"the broker at {target} does not speak TLS")
        return TlsFailed(f"the TLS handshake with {target} failed: {detail}")
    try:
        # With TLS 1.3 a server refuses a client's certificate only after the client's side of the handshake is done.
        # A server that is content sends its HTTP/2 settings.
        await reader.readexactly(1)
    except ssl.SSLError as error:
        return TlsFailed(f"the broker at {target} refuses the client's certificate: {error.reason or error}")
    except (ConnectionError, asyncio.IncompleteReadError):
        wish = "refuses the client's certificate" if tls.cert is not None else "wants a client's certificate"
        return _Ambiguous(f"the broker at {target} ends the connection after the TLS handshake: it {wish}")
    finally:
        writer.close()
    return None


def context(tls: TLS) -> ssl.SSLContext:
    """Raises OSError if a file cannot be read or holds no certificate."""
    ca = _pem(tls.ca)
    made = ssl.create_default_context(cadata=ca.decode() if ca is not None else None)
    made.set_alpn_protocols(["h2"])
    cert, key = _pem(tls.cert), _pem(tls.key)
    if cert is not None and key is not None:
        # Python loads a chain from files only.
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "client.pem"
            path.touch(mode=0o600)
            path.write_bytes(key + b"\n" + cert)
            made.load_cert_chain(path)
    return made
