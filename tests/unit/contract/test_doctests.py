"""The examples in cursus_proto's docstrings are true."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

from cursus_proto import chain, codecs, columns, partitioner, records, uniform
from cursus_proto.columns import hashing


@pytest.mark.parametrize(
    "module",
    [chain, codecs, columns, hashing, partitioner, records, uniform],
    ids=lambda module: module.__name__,
)
def test_examples_are_true(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0
