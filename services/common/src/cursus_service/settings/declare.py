"""How a service declares its settings, and the flat list of them that every source and report works on.

A tree of frozen dataclasses: a leaf is declared with `setting()`, a nested dataclass with `section()`. The dotted path
is the key in the YAML file; the flag is the same path with dashes, unless a leaf or section says otherwise; the
variable is always `CURSUS_` and the flag, so that each pair can be derived from the other.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from cursus_service.settings.values import Text, Unit, parse, show

T = TypeVar("T")

_METADATA: Final = "cursus.setting"
MASK: Final = "********"
VARIABLE_PREFIX: Final = "CURSUS_"
RESERVED_FLAGS: Final = frozenset({"config", "profile", "print-config", "help", "version"})


@dataclass(frozen=True, slots=True)
class _Declared:
    help: str
    unit: Unit = Unit.NONE
    minimum: float | None = None
    maximum: float | None = None
    secret: bool = False
    flag: str | None = None


def setting(
    default: T,
    *,
    help: str,  # noqa: A002 - the word every option parser uses
    unit: Unit = Unit.NONE,
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    flag: str | None = None,
) -> T:
    """A leaf of the tree. `minimum` and `maximum` are included and hold for each item of a list; None is exempt.

    A secret never appears in a report, an error or the dataclass's repr. `flag` replaces the flag's whole name,
    the enclosing sections' included.
    """
    declared = _Declared(help, unit, minimum, maximum, secret, flag)
    return dataclasses.field(default=default, metadata={_METADATA: declared}, repr=not secret)


def section(cls: type[T], *, help: str, flag: str | None = None) -> T:  # noqa: A002
    """A nested dataclass. `flag` replaces its part of the flags' names; the empty text lifts its leaves one level."""
    return dataclasses.field(default_factory=cls, metadata={_METADATA: _Declared(help, flag=flag)})


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting with all its names."""

    key: str
    flag: str
    annotation: Any
    default: object
    help: str
    unit: Unit
    minimum: float | None
    maximum: float | None
    secret: bool

    @property
    def variable(self) -> str:
        return variable_of(self.flag)

    def read(self, text: Text) -> object:
        """The value for this text. Raises ValueError with a whole phrase; it quotes the text unless it is secret."""
        try:
            value = parse(text, self.annotation, self.unit)
        except ValueError as error:
            given = "" if self.secret or text is None else f", not {_quote(text)}"
            raise ValueError(f"must be {error}{given}") from None
        self._check_bounds(value)
        return value

    def show(self, value: object) -> str:
        """The value for people; masked if secret and set."""
        if self.secret and value not in (None, "", ()):
            return MASK
        return show(value, self.unit)

    def _check_bounds(self, value: object) -> None:
        for item in value if isinstance(value, tuple) else (value,):
            if not isinstance(item, int | float) or isinstance(item, bool):
                continue
            if self.minimum is not None and item < self.minimum:
                raise ValueError(f"must be at least {self._bound(self.minimum)}{self._given(item)}")
            if self.maximum is not None and item > self.maximum:
                raise ValueError(f"must be at most {self._bound(self.maximum)}{self._given(item)}")

    def _given(self, item: object) -> str:
        return "" if self.secret else f", not {show(item, self.unit)}"

    def _bound(self, bound: float) -> str:
        return show(int(bound) if float(bound).is_integer() else bound, self.unit)


@dataclass(frozen=True, slots=True)
class Section:
    """A node of the tree: its leaves and sections by the name they have in the file."""

    key: str
    help: str
    cls: type[Any]
    children: Mapping[str, Leaf | Section]

    def leaves(self) -> Iterator[Leaf]:
        """All leaves below, in the order of declaration."""
        for child in self.children.values():
            if isinstance(child, Section):
                yield from child.leaves()
            else:
                yield child

    def sections(self) -> Iterator[Section]:
        """This section and all below it, each before its own."""
        yield self
        for child in self.children.values():
            if isinstance(child, Section):
                yield from child.sections()


def schema_of(cls: type[Any]) -> Section:
    """The declared tree. A mistake in the declaration is an assertion: it is ours, not the operator's."""
    root = _section(cls, key="", help_text=(cls.__doc__ or "").strip(), flag_prefix="")
    flags = [leaf.flag for leaf in root.leaves()]
    repeated = {flag for flag in flags if flags.count(flag) > 1}
    assert not repeated, f"flags declared twice: {sorted(repeated)}"
    assert RESERVED_FLAGS.isdisjoint(flags), f"flags the loader itself has: {sorted(RESERVED_FLAGS & set(flags))}"
    return root


def variable_of(flag: str) -> str:
    return VARIABLE_PREFIX + flag.replace("-", "_").upper()


def _section(cls: type[Any], key: str, help_text: str, flag_prefix: str) -> Section:
    hints = typing.get_type_hints(cls)
    children: dict[str, Leaf | Section] = {}
    for field in dataclasses.fields(cls):
        declared = field.metadata.get(_METADATA)
        assert isinstance(declared, _Declared), (
            f"{cls.__name__}.{field.name} is not declared with setting() or section()"
        )
        child_key = f"{key}.{field.name}" if key else field.name
        annotation = hints[field.name]
        if dataclasses.is_dataclass(annotation):
            assert isinstance(annotation, type)
            part = field.name if declared.flag is None else declared.flag
            prefix = flag_prefix + _dashed(part) + "-" if part else flag_prefix
            children[field.name] = _section(annotation, child_key, declared.help, prefix)
        else:
            flag = flag_prefix + _dashed(field.name) if declared.flag is None else declared.flag
            children[field.name] = Leaf(
                key=child_key,
                flag=flag,
                annotation=annotation,
                default=field.default,
                help=declared.help,
                unit=declared.unit,
                minimum=declared.minimum,
                maximum=declared.maximum,
                secret=declared.secret,
            )
    return Section(key, help_text, cls, children)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _quote(text: str | list[str]) -> str:
    shown = text if isinstance(text, str) else ",".join(text)
    return repr(shown if len(shown) <= 100 else shown[:100] + "…")
