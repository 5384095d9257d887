"""What users may rely on is listed, and everything listed is there."""

from __future__ import annotations

import cursus_grpc
from cursus_grpc import errors, sync, types
from cursus_grpc._consumer_settings import ConsumerOptions, ConsumerSettings
from cursus_grpc._producer import ProducerOptions, ProducerSettings


def test_every_public_name_is_exported() -> None:
    public = {
        name
        for name, value in vars(cursus_grpc).items()
        if not name.startswith("_") and not hasattr(value, "__path__") and type(value).__name__ != "module"
    }
    assert public - {"annotations"} == set(cursus_grpc.__all__)
    assert cursus_grpc.__all__ == sorted(cursus_grpc.__all__, key=_as_ruff_sorts)


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
