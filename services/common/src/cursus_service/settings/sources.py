"""Where settings come from: the command line, the environment, a YAML file. Each gives text and says where it stood.

A source never decides: it collects what was given and what was wrong with it. `load.py` ranks the sources.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import yaml

from cursus_service.settings.declare import Leaf, Section, variable_of
from cursus_service.settings.values import MIB, Text, describe
from cursus_service.settings.variables import misspelt

MAX_FILE_BYTES: Final = MIB
_OPTIONS: Final = ("config", "profile")
_NULL_TAG: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Given:
    """One value as a source had it. `origin` is how a person would point at it: `flag --host`, `file b.yaml:3`."""

    text: Text
    origin: str


@dataclass(slots=True)
class Source:
    """Everything one source had to say, by dotted key, and its problems as whole sentences."""

    given: dict[str, Given] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The flags, and the loader's own options among them."""

    source: Source
    config: str | None
    profile: str | None
    print_config: bool


class _Parser(argparse.ArgumentParser):
    """An argparse parser whose complaints join the other problems instead of ending the process alone."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message)


class _UsageError(Exception):
    pass


def from_command_line(
    schema: Section, argv: Sequence[str], *, program: str, version: str, profiles: Sequence[str]
) -> CommandLine:
    """Reads the flags. `--help` and `--version` print and raise SystemExit, as everywhere."""
    parser = _parser(schema, program, version, profiles)
    source = Source()
    try:
        options, unknown = parser.parse_known_args(argv)
    except _UsageError as error:
        source.problems.append(str(error))
        return CommandLine(source, None, None, print_config=False)
    source.problems += [f"unknown argument {argument}" for argument in unknown]
    values: dict[str, str] = vars(options)
    for leaf in schema.leaves():
        if (text := values.get(leaf.key)) is not None:
            source.given[leaf.key] = Given(text, f"flag --{leaf.flag}")
    return CommandLine(source, values.get("--config"), values.get("--profile"), "--print-config" in values)


def from_environment(schema: Section, environ: Mapping[str, str]) -> Source:
    """Reads the variables. An empty one counts as absent: compose files and charts write them for unset values. One
    that is spelt almost like a setting is a mistake, which would else go unnoticed."""
    source = Source()
    for leaf in schema.leaves():
        if text := environ.get(leaf.variable):
            source.given[leaf.key] = Given(text, f"environment {leaf.variable}")
    known = {leaf.variable for leaf in schema.leaves()} | {variable_of(option) for option in _OPTIONS}
    for name, value in sorted(environ.items()):
        if (meant := misspelt(name, value, known)) is not None:
            source.problems.append(f"unknown variable {name}; did you mean {meant}?")
    return source


def option_from_environment(option: str, environ: Mapping[str, str]) -> str | None:
    """One of the loader's own options, such as `config`."""
    return environ.get(variable_of(option)) or None


def from_file(schema: Section, path: Path, extra_keys: Sequence[str] = ()) -> Source:
    """Reads a YAML file. Scalars are taken as written, so that a size or `1.10` is not guessed at by YAML's types.

    `extra_keys` are top-level scalars that are no settings of the service; they are returned under their own name.
    """
    source = Source()
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        source.problems.append(f"{path}: cannot be read: {error.strerror}")
        return source
    if len(content) > MAX_FILE_BYTES:
        source.problems.append(f"{path}: larger than {MAX_FILE_BYTES} bytes, which no configuration is")
        return source
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        source.problems.append(f"{path}{line}: not YAML: {error.problem}")
        return source
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        source.problems.append(f"{path}: not YAML: {str(error).splitlines()[0]}")
        return source
    if root is not None:
        _FileReader(path, source, frozenset(extra_keys)).read_section(schema, root)
    return source


class _FileReader:
    """Walks the YAML nodes along the declared tree; the nodes still know their lines."""

    def __init__(self, path: Path, source: Source, extra_keys: frozenset[str]) -> None:
        self._path = path
        self._source = source
        self._extra_keys = extra_keys

    def read_section(self, section: Section, node: yaml.Node) -> None:
        if _is_null(node):
            return
        if not isinstance(node, yaml.MappingNode):
            self._complain(node, f"{section.key or 'the file'} must be a mapping of settings")
            return
        seen: set[str] = set()
        for key_node, value_node in node.value:
            name = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
            key = f"{section.key}.{name}" if section.key else name
            if name in seen:
                self._complain(key_node, f"{key} is given twice")
                continue
            seen.add(name)
            child = section.children.get(name)
            if isinstance(child, Section):
                self.read_section(child, value_node)
            elif child is not None:
                self._read_value(key, value_node)
            elif not section.key and name in self._extra_keys:
                self._read_value(name, value_node)
            else:
                self._complain(key_node, f"unknown key {key}{_suggest(name, section)}")

    def _read_value(self, key: str, node: yaml.Node) -> None:
        origin = f"file {self._path}:{node.start_mark.line + 1}"
        if _is_null(node):
            self._source.given[key] = Given(None, origin)
        elif isinstance(node, yaml.ScalarNode):
            self._source.given[key] = Given(node.value, origin)
        elif isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
            self._source.given[key] = Given([item.value for item in node.value], origin)
        else:
            self._complain(node, f"{key} must be a value or a plain list of values")

    def _complain(self, node: yaml.Node, problem: str) -> None:
        self._source.problems.append(f"{self._path}:{node.start_mark.line + 1}: {problem}")


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == _NULL_TAG


def _suggest(name: str, section: Section) -> str:
    known = name.replace("-", "_").lower()
    return f"; did you mean {known}?" if known != name and known in section.children else ""


def _parser(schema: Section, program: str, version: str, profiles: Sequence[str]) -> _Parser:
    parser = _Parser(
        prog=program,
        description=schema.help,
        epilog="Flags win over CURSUS_* variables, these over the file, the file over the profile.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"{program} {version}")
    parser.add_argument("--config", dest="--config", metavar="FILE", help="YAML file with settings [CURSUS_CONFIG]")
    if profiles:
        names = ", ".join(profiles)
        parser.add_argument(
            "--profile",
            dest="--profile",
            metavar="NAME",
            help=f"settings that belong together: {names} [CURSUS_PROFILE]",
        )
    parser.add_argument(
        "--print-config", dest="--print-config", action="store_true", help="print every value and its origin, then exit"
    )
    for section in schema.sections():
        group = parser.add_argument_group(section.key or "general", section.help if section.key else None)
        for child in section.children.values():
            if isinstance(child, Leaf):
                _add_flag(group, child)
    return parser


def _add_flag(group: argparse._ArgumentGroup, leaf: Leaf) -> None:
    text = f"{leaf.help} Default {leaf.show(leaf.default) or 'empty'}. [{leaf.variable}]".replace("%", "%%")
    metavar = describe(leaf.annotation, leaf.unit).replace("\\|", "|").replace(" | ", "|").upper()
    if leaf.annotation is bool:
        group.add_argument(f"--{leaf.flag}", dest=leaf.key, nargs="?", const="true", metavar="BOOLEAN", help=text)
    else:
        group.add_argument(f"--{leaf.flag}", dest=leaf.key, metavar=metavar, help=text)
