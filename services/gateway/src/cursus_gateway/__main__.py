"""The program `cursus-gateway`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from cursus_gateway import __version__
from cursus_gateway.app import serve
from cursus_gateway.settings import GatewaySettings
from cursus_service.logging import configure_logging
from cursus_service.process import run
from cursus_service.settings import load_or_exit

_REPEATABLE = "--listen"


def main() -> None:
    """Exit status 0 after a clean stop, 1 if a port cannot be had, 2 for a usage error."""
    settings = load_or_exit(
        GatewaySettings, program="cursus-gateway", version=__version__, argv=join_repeated(sys.argv[1:])
    )
    configure_logging(settings.logging.level, settings.logging.format)
    failure: OSError | None = None
    try:
        run(lambda stop: serve(settings, stop))
    except* OSError as group:  # In a group, because the tasks beside it end with it.
        failure = next(error for error in _leaves(group) if isinstance(error, OSError))
    if failure is not None:
        sys.exit(f"cursus-gateway: {failure}")


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def join_repeated(argv: Sequence[str]) -> list[str]:
    """The arguments with all `--listen` in one: to the settings it is a list, which a flag holds once.

    >>> join_repeated(["--listen", "1:ok", "--port", "0", "--listen=2:bare"])
    ['--port', '0', '--listen', '1:ok,2:bare']
    """
    others: list[str] = []
    values: list[str] = []
    rest = iter(argv)
    for argument in rest:
        if argument == _REPEATABLE:
            values += [value for value in [next(rest, None)] if value is not None]
        elif argument.startswith(f"{_REPEATABLE}="):
            values.append(argument.partition("=")[2])
        else:
            others.append(argument)
    return [*others, _REPEATABLE, ",".join(values)] if values else others


if __name__ == "__main__":
    main()
