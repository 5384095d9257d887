"""The health command of the images: `python -m cursus_service.probe PORT [PATH]` ends with 0 if the service on this
machine answers 200, and with 1 and the reason otherwise. A variable CURSUS_HEALTH_PORT wins over PORT, since the
service listens there then."""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

TIMEOUT_S: Final = 4.0


def probe(port: int, path: str) -> str | None:
    """Why the service is not well; None if it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(4096).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return f"port {port} does not answer: {error}"
    finally:
        connection.close()
    return None if answer.status == http.HTTPStatus.OK else f"{path} says {answer.status}: {text}"


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    if not 1 <= len(arguments) <= 2 or not arguments[0].isdecimal():
        sys.stderr.write("usage: python -m cursus_service.probe PORT [PATH]\n")
        return 2
    path = arguments[1] if len(arguments) == 2 else "/ready"
    if (failure := probe(int(environ.get("CURSUS_HEALTH_PORT") or arguments[0]), path)) is None:
        return 0
    sys.stderr.write(failure + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
