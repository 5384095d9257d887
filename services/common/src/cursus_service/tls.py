"""A server's certificate, followed while the server runs: whoever renews it replaces the files, and that is all."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

CHECK_S: Final = 10.0


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
