"""Settings for people: `--print-config`, and the configuration reference of the documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from cursus_service.settings.declare import Leaf, Section, schema_of
from cursus_service.settings.load import Loaded, Profiles
from cursus_service.settings.values import describe, show

_PLAIN: Final = re.compile(r"-?[A-Za-z0-9/][A-Za-z0-9_./+-]*")
_YAML_WORDS: Final = frozenset({"null", "none", "true", "false"})


def print_config(loaded: Loaded[Any]) -> str:
    """Every value as a YAML file with its origin behind it. Without secrets the output is a configuration file that
    gives the same settings again."""
    lines = [f"profile: {loaded.profile}"] if loaded.profile else []
    lines += _yaml_lines(schema_of(type(loaded.settings)), loaded.settings, loaded.origins, indent="")
    return "\n".join(lines) + "\n"


def _yaml_lines(section: Section, values: object, origins: Mapping[str, str], indent: str) -> Iterator[str]:
    for name, child in section.children.items():
        value = getattr(values, name)
        if isinstance(child, Section):
            yield f"{indent}{name}:"
            yield from _yaml_lines(child, value, origins, indent + "  ")
        else:
            yield f"{indent}{name}: {_yaml_value(child, value)}  # {origins[child.key]}"


def _yaml_value(leaf: Leaf, value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple) and not leaf.secret:
        return "[" + ", ".join(_yaml_scalar(show(item, leaf.unit), item) for item in value) + "]"
    return _yaml_scalar(leaf.show(value), value)


def _yaml_scalar(text: str, value: object) -> str:
    if isinstance(value, bool | int | float):
        return text
    if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a YAML string


def reference_markdown(cls: type[Any], profiles: Profiles | None = None) -> str:
    """The configuration reference: a table per section, and one that shows what the profiles set."""
    parts = ["".join(_section_markdown(section)) for section in schema_of(cls).sections()]
    if profiles:
        parts.append(_profiles_markdown(cls, profiles))
    return "\n".join(part for part in parts if part)


def _section_markdown(section: Section) -> Iterator[str]:
    leaves = [child for child in section.children.values() if isinstance(child, Leaf)]
    if not leaves:
        return
    yield f"### {section.key or 'General'}\n\n"
    if section.key:
        yield f"{section.help}\n\n"
    yield "| key | flag and variable | type | default | meaning |\n| --- | --- | --- | --- | --- |\n"
    for leaf in leaves:
        default = f"`{leaf.show(leaf.default)}`" if leaf.show(leaf.default) else ""
        kind = describe(leaf.annotation, leaf.unit)
        meaning = " ".join([leaf.help, *_limits(leaf)]).replace("|", "\\|")
        yield f"| `{leaf.key}` | `--{leaf.flag}`<br>`{leaf.variable}` | {kind} | {default} | {meaning} |\n"


def _limits(leaf: Leaf) -> Iterator[str]:
    low, high = (
        None if bound is None else show(int(bound) if float(bound).is_integer() else bound, leaf.unit)
        for bound in (leaf.minimum, leaf.maximum)
    )
    if low is not None and high is not None:
        yield f"From {low} to {high}."
    elif low is not None:
        yield f"At least {low}."
    elif high is not None:
        yield f"At most {high}."
    if leaf.secret:
        yield "Secret."


def _profiles_markdown(cls: type[Any], profiles: Profiles) -> str:
    leaves = [leaf for leaf in schema_of(cls).leaves() if any(leaf.key in values for values in profiles.values())]
    lines = [
        "### Profiles\n",
        "| key | default | " + " | ".join(f"`{name}`" for name in profiles) + " |",
        "| --- " * (len(profiles) + 2) + "|",
    ]
    for leaf in leaves:
        cells = [leaf.show(values[leaf.key]) if leaf.key in values else "" for values in profiles.values()]
        lines.append(f"| `{leaf.key}` | {leaf.show(leaf.default)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
