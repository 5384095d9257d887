"""The program `cursus-broker`."""

from __future__ import annotations

import sys

from cursus_broker import __version__
from cursus_broker.app import serve
from cursus_broker.errors import refusal_in
from cursus_broker.settings import PROFILES, BrokerSettings
from cursus_service.logging import configure_logging
from cursus_service.process import run
from cursus_service.settings import load_or_exit


def main() -> None:
    """Exit status 0 after a clean stop, 1 if the broker cannot start, 2 for a usage error."""
    settings = load_or_exit(BrokerSettings, program="cursus-broker", version=__version__, profiles=PROFILES)
    configure_logging(settings.logging.level, settings.logging.format)
    try:
        run(lambda stop: serve(settings, stop))
    except Exception as error:
        if (refused := refusal_in(error)) is None:
            raise
        sys.exit(f"cursus-broker: {refused}")


if __name__ == "__main__":
    main()
