"""What the two faces of a client have in common besides their core: the words that describe them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Face = TypeVar("_Face", bound=type)


def described_by(model: type) -> Callable[[_Face], _Face]:
    """A class decorator: public methods without a docstring get that of the same method of `model`, so that what both
    faces do is written once."""

    def describe(face: _Face) -> _Face:
        for name, method in vars(face).items():
            if not name.startswith("_") and callable(method) and not method.__doc__:
                method.__doc__ = getattr(model, name).__doc__
        return face

    return describe
