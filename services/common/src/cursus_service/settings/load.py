"""Merges the sources into one checked settings object that remembers where each value came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from cursus_service.settings.declare import Leaf, Section, schema_of, variable_of
from cursus_service.settings.sources import (
    Given,
    Source,
    from_command_line,
    from_environment,
    from_file,
    option_from_environment,
)
from cursus_service.settings.values import show

T = TypeVar("T")

Profiles: TypeAlias = Mapping[str, Mapping[str, object]]
"""Profile name → dotted key → value. A profile replaces defaults and yields to everything an operator wrote."""


class SettingsError(Exception):
    """The configuration cannot be used. All problems at once: nobody should fix them one restart at a time."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        heading = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__(
            "\n".join([f"{heading} in the configuration:", *(f"  {problem}" for problem in self.problems)])
        )


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """The settings, and per dotted key the origin of its value: `default`, `profile latency`, `file b.yaml:3`,
    `environment CURSUS_HOST` or `flag --host`."""

    settings: T
    origins: Mapping[str, str]
    profile: str | None
    print_config: bool


def load(
    cls: type[T],
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    program: str,
    version: str = "",
    profiles: Profiles | None = None,
) -> Loaded[T]:
    """Reads and checks everything. Raises SettingsError, or SystemExit for --help and --version.

    A value that a stronger source overrides is checked as well: it is a mistake that waits for its turn.
    A ValueError from a dataclass's `__post_init__` becomes a problem of its section, for rules over several fields.
    """
    profiles = profiles or {}
    schema = schema_of(cls)
    line = from_command_line(schema, argv, program=program, version=version, profiles=list(profiles))
    environment = from_environment(schema, environ)
    config = line.config or option_from_environment("config", environ)
    file = from_file(schema, Path(config), ["profile"] if profiles else []) if config else Source()
    problems = [*line.source.problems, *environment.problems, *file.problems]

    profile = _chosen_profile(line.profile, environ, file, profiles, problems)
    chosen = {leaf.key: (leaf.default, "default") for leaf in schema.leaves()}
    ranked = [_profile_source(schema, profile, profiles), file, environment, line.source]  # weakest first
    for source in ranked:
        for leaf in schema.leaves():
            if (given := source.given.get(leaf.key)) is not None:
                try:
                    chosen[leaf.key] = (leaf.read(given.text), given.origin)
                except ValueError as error:
                    problems.append(f"{leaf.key} ({given.origin}) {error}")

    settings = None if problems else _build(schema, {key: value for key, (value, _) in chosen.items()}, problems)
    if problems:
        raise SettingsError(problems)
    assert isinstance(settings, cls)
    origins = {key: origin for key, (_, origin) in chosen.items()}
    return Loaded(settings, origins, profile, line.print_config)


def _chosen_profile(
    from_flag: str | None, environ: Mapping[str, str], file: Source, profiles: Profiles, problems: list[str]
) -> str | None:
    """The strongest source's profile name, or None if nobody names one or the name is unknown."""
    if not profiles:
        return None
    written = file.given.get("profile", Given(None, ""))
    candidates = (
        (from_flag, "flag --profile"),
        (option_from_environment("profile", environ), f"environment {variable_of('profile')}"),
        (written.text, written.origin),
    )
    for name, origin in candidates:
        if not name:
            continue
        if isinstance(name, str) and name in profiles:
            return name
        problems.append(f"profile ({origin}) must be one of {', '.join(profiles)}, not {name!r}")
        return None
    return None


def _profile_source(schema: Section, name: str | None, profiles: Profiles) -> Source:
    """The profile as text, so that its values pass the same checks as an operator's."""
    source = Source()
    if name is not None:
        leaves = {leaf.key: leaf for leaf in schema.leaves()}
        for key, value in profiles[name].items():
            assert key in leaves, f"profile {name} sets {key}, which is no setting"
            source.given[key] = Given(show(value, leaves[key].unit), f"profile {name}")
    return source


def _build(section: Section, values: Mapping[str, object], problems: list[str]) -> object | None:
    """The dataclass of this section with everything below it, or None if a rule of it or below is broken."""
    arguments: dict[str, Any] = {}
    for name, child in section.children.items():
        arguments[name] = values[child.key] if isinstance(child, Leaf) else _build(child, values, problems)
    if problems:
        return None
    try:
        built: object = section.cls(**arguments)
    except ValueError as error:
        problems.append(f"{section.key}: {error}" if section.key else str(error))
        return None
    return built
