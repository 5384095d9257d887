"""Settings of a service: flags over `CURSUS_*` variables over a YAML file over a profile over defaults.

A service declares a tree of frozen dataclasses with `setting()` and `section()`; everything else follows from it: the
flags and their help, the variables, the file's keys, `--print-config` and the reference in docs/configuration.md.
Nobody but `load()`'s caller reads the environment.
"""

from cursus_service.settings.command import load_or_exit
from cursus_service.settings.declare import section, setting
from cursus_service.settings.load import Loaded, Profiles, SettingsError, load
from cursus_service.settings.report import print_config, reference_markdown
from cursus_service.settings.values import GIB, KIB, MIB, Unit

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "Loaded",
    "Profiles",
    "SettingsError",
    "Unit",
    "load",
    "load_or_exit",
    "print_config",
    "reference_markdown",
    "section",
    "setting",
]
