"""What users may rely on is listed, and everything listed is there."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import cursus_grpc
from cursus_grpc import errors, sync, types
from cursus_grpc._consumer_settings import ConsumerOptions, ConsumerSettings
from cursus_grpc._producer_settings import ProducerOptions, ProducerSettings


def test_every_public_name_is_exported() -> None:
    """Names come when they are asked for: type checkers are told of them in one place, Python in another."""
    told = _told_to_type_checkers()
    assert sorted(told) == sorted({*cursus_grpc.__all__, *cursus_grpc._MODULES})
    assert {name: home for name, home in told.items() if name in cursus_grpc.__all__} == cursus_grpc._HOME_OF
    assert cursus_grpc.__all__ == sorted(cursus_grpc.__all__, key=_as_ruff_sorts)
    for name in (*cursus_grpc.__all__, *cursus_grpc._MODULES):
        assert getattr(cursus_grpc, name) is not None
        assert name in dir(cursus_grpc)


def _told_to_type_checkers() -> dict[str, str]:
    """The names that `__init__.py` imports for type checkers, and the modules they are from."""
    tree = ast.parse(Path(cursus_grpc.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        one.asname or one.name: (node.module or "").removeprefix("cursus_grpc").lstrip(".")
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }


def test_a_name_that_is_not_there_is_told_as_python_does() -> None:
    for module in (cursus_grpc, sync):
        with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute 'nothing'"):
            _ = module.nothing


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    return (0 if name.isupper() else 1, name)


def test_the_blocking_faces_are_the_ones_at_the_top() -> None:
    for name in sync.__all__:
        assert getattr(cursus_grpc, name) is getattr(sync, name)


def test_both_faces_have_the_same_methods() -> None:
    for name in sync.__all__:
        blocking, asynchronous = getattr(cursus_grpc, name), getattr(cursus_grpc, f"Async{name}")
        assert _methods(blocking) == _methods(asynchronous)


def _methods(face: type) -> set[str]:
    return {name for name in vars(face) if not name.startswith("_")}


def test_the_options_are_the_settings() -> None:
    for options, settings in ((ProducerOptions, ProducerSettings), (ConsumerOptions, ConsumerSettings)):
        assert set(options.__annotations__) == set(settings.__dataclass_fields__)


def test_every_exception_and_type_has_a_docstring_or_a_parent_that_has() -> None:
    for module in (errors, types):
        for name, value in vars(module).items():
            if isinstance(value, type) and value.__module__ == module.__name__ and not name.startswith("_"):
                assert any(parent.__doc__ for parent in value.__mro__[:-1]), name


def test_every_public_method_of_both_faces_is_described() -> None:
    for name in sync.__all__:
        for face in (getattr(cursus_grpc, name), getattr(cursus_grpc, f"Async{name}")):
            for method in _methods(face):
                assert getattr(face, method).__doc__, f"{face.__name__}.{method}"


def test_no_description_is_written_twice() -> None:
    for name in sync.__all__:
        written = ast.parse(inspect.getsource(getattr(cursus_grpc, name)))
        for method in ast.walk(written):
            if isinstance(method, ast.FunctionDef) and (words := ast.get_docstring(method)) and method.name[0] != "_":
                assert words != inspect.getdoc(getattr(getattr(cursus_grpc, f"Async{name}"), method.name))
