"""The way a service's `main` gets its settings: problems go to stderr with exit status 2, `--print-config` to stdout
with 0. The only reader of the process's environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final, TypeVar

from cursus_service.settings.load import Profiles, SettingsError, load
from cursus_service.settings.report import print_config

T = TypeVar("T")

USAGE_EXIT_STATUS: Final = 2


def load_or_exit(
    cls: type[T],
    *,
    program: str,
    version: str = "",
    profiles: Profiles | None = None,
    argv: Sequence[str] | None = None,
) -> T:
    """`load` from the process's own arguments and environment; returns only with settings to run on."""
    try:
        loaded = load(
            cls,
            sys.argv[1:] if argv is None else argv,
            os.environ,
            program=program,
            version=version,
            profiles=profiles,
        )
    except SettingsError as error:
        sys.stderr.write(f"{program}: {error}\n")
        raise SystemExit(USAGE_EXIT_STATUS) from None
    if loaded.print_config:
        sys.stdout.write(print_config(loaded))
        raise SystemExit(0)
    return loaded.settings
