"""What the documents show happens."""

from __future__ import annotations

import asyncio
import contextlib
import doctest
import io
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import cursus_grpc
from cursus_grpc import _admin, _batch, _channel, _consumer, _producer, errors, sync
from cursus_grpc.sync import admin as sync_admin
from cursus_grpc.sync import consumer as sync_consumer
from cursus_grpc.sync import producer as sync_producer
from cursus_grpc.testing import Broker

PAGE = Path(__file__).parents[3] / "docs" / "python-client.md"
_BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_of_the_page_runs_and_prints_what_it_says() -> None:
    blocks = _BLOCK.findall(PAGE.read_text())
    assert len(blocks) > 10
    names: dict[str, Any] = {}
    with Broker() as broker:
        for index, (kind, text) in enumerate(blocks):
            if kind == "text":
                continue
            code = text.replace('"localhost:50051"', repr(broker.address))
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, f"{PAGE.name}, example {index}", "exec"), names)
            expected = blocks[index + 1][1] if blocks[index + 1 : index + 2] and printed.getvalue() else ""
            assert printed.getvalue() == expected


@pytest.mark.parametrize(
    "module", [_admin, _batch, _channel, _consumer, _producer, errors, sync_admin, sync_consumer, sync_producer]
)
def test_every_example_of_a_docstring_runs(module: ModuleType) -> None:
    with Broker(in_process=True) as broker:
        with sync.Admin(broker.address) as admin, sync.Producer(broker.address) as producer:
            for topic in ("orders", "payments", "greetings"):
                admin.create_topic(topic, 1)
            producer.send("greetings", b"hello")
        names = {name: getattr(cursus_grpc, name) for name in cursus_grpc.__all__}
        result = doctest.testmod(module, extraglobs={**names, "broker": broker, "asyncio": asyncio})
    assert result.failed == 0


def test_the_readme_of_the_package_names_what_is_public() -> None:
    readme = (Path(__file__).parents[3] / "clients" / "python" / "README.md").read_text()
    named = set(re.findall(r"`(\w+)", readme))
    assert {"Producer", "Consumer", "Admin", "Delivery", "Record"} <= named
    methods = {name for face in (sync.Producer, sync.Consumer, sync.Admin) for name in vars(face) if name[0] != "_"}
    assert methods <= named
