"""A server's certificate, followed while the server runs: whoever renews it replaces the files, and that is all. And
what operators are told when something about TLS is wrong: which file and why, who was refused and why."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

CHECK_S: Final = 10.0

_LINE_EVERY_S: Final = 1.0
"""Refused handshakes are logged one a second at most: a scanner must not fill a disk."""


class TlsFileError(OSError):
    """A file of certificates or keys that cannot be used. The text names it, and what is wrong with it."""


def load_identity(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    """Let the context show this certificate. Raises TlsFileError; what OpenSSL says names neither file nor cause."""
    for file in (cert, key):
        if file is not None:
            _require_readable(file)
    # With its own key only, so that a certificate at fault is told from a key.
    try:
        probe = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        probe.load_verify_locations(cert)
    except ssl.SSLError as error:
        raise TlsFileError(f"{cert}: no PEM certificate in it ({_reason(error)})") from error
    try:
        context.load_cert_chain(cert, key, password=_refuse_password)
    except _Encrypted as error:
        raise TlsFileError(f"{key or cert}: the private key is encrypted; only plain keys are taken") from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsFileError(f"{key or cert}: the private key does not belong to the certificate {cert}") from error
        raise TlsFileError(f"{key or cert}: no PEM private key in it ({_reason(error)})") from error


def load_authorities(context: ssl.SSLContext, file: Path) -> None:
    """Let the context trust these. Raises TlsFileError."""
    _require_readable(file)
    try:
        context.load_verify_locations(file)
    except ssl.SSLError as error:
        raise TlsFileError(f"{file}: no PEM certificate in it ({_reason(error)})") from error


class _Encrypted(Exception):
    pass


def _refuse_password() -> str:
    """Asked for by OpenSSL, which would else ask at the terminal and wait."""
    raise _Encrypted


def _require_readable(file: Path) -> None:
    try:
        file.open("rb").close()
    except OSError as error:
        raise TlsFileError(f"{file}: cannot be read: {error.strerror or error}") from error


def _reason(error: ssl.SSLError) -> str:
    return (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")


class RefusedHandshakes:
    """Tells the log of TLS handshakes that failed, in measure."""

    def __init__(self, count: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        """`count` is called for each of them."""
        self._count = count
        self._clock = clock
        self._next_line = 0.0
        self._unsaid = 0

    def note(self, peer: str, error: Exception) -> None:
        self._count()
        now = self._clock()
        if now < self._next_line:
            self._unsaid += 1
            return
        self._next_line = now + _LINE_EVERY_S
        unsaid, self._unsaid = self._unsaid, 0
        cause = _reason(error) if isinstance(error, ssl.SSLError) else str(error) or type(error).__name__
        log.warning("tls.handshake.refused", peer=peer, cause=cause, **({"not_logged": unsaid} if unsaid else {}))


class CertificateWatch:
    """Loads the files of a TLS context, and loads them again when they change. Connections that are open keep what they
    began with."""

    def __init__(self, files: Sequence[Path], load: Callable[[ssl.SSLContext], None]) -> None:
        """`load` reads the files into a context, and raises OSError, which ssl.SSLError is. It may be called again on
        the same context. Raises what it raises."""
        self._files = tuple(files)
        self._load = load
        self._seen = self._look()
        self.context = self._made()
        load(self.context)

    async def run(self) -> None:
        """Look every few seconds. Runs until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await asyncio.to_thread(self.check)

    def check(self) -> bool:
        """Load the files if they have changed; True if they were. What cannot be loaded is logged and tried again when
        the files change further, since a pair may be half replaced."""
        found = self._look()
        if found == self._seen:
            return False
        self._seen = found
        try:
            # On a context aside first: a pair that does not fit would leave the one in use without a key.
            self._load(self._made())
            self._load(self.context)
        except OSError as error:
            log.error("tls.certificate.not_loaded", files=[str(path) for path in self._files], error=str(error))
            return False
        log.info("tls.certificate.loaded", files=[str(path) for path in self._files])
        return True

    @staticmethod
    def _made() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _look(self) -> list[tuple[int, int, int] | None]:
        """What tells one state of the files from another; links are followed, as volumes of secrets swap them."""
        found: list[tuple[int, int, int] | None] = []
        for path in self._files:
            try:
                status = path.stat()
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return found
