from __future__ import annotations

import os
from pathlib import Path

import pytest

from cursus_broker.errors import StorageFailed
from cursus_broker.log.api import Engine
from cursus_broker.log.engine import SegmentEngine
from tests.unit.broker.log.conftest import OpenEngine
from tests.unit.broker.log.support import append, batch_of, read_all


async def test_a_deleted_name_is_free_at_once(engine: SegmentEngine, tmp_path: Path) -> None:
    seam: Engine = engine
    log, _ = await seam.open("orders", 0)
    append(log, batch_of(b"old"), 0)
    await seam.delete("orders")
    assert os.listdir(tmp_path) == []
    log, _ = await engine.open("orders", 0)
    model = [append(log, batch_of(b"new"), 0)]
    assert await read_all(log) == model


async def test_deleting_what_does_not_exist_is_no_error(engine: SegmentEngine) -> None:
    await engine.delete("nothing")


async def test_an_interrupted_deletion_is_finished_at_the_next_start(open_engine: OpenEngine, tmp_path: Path) -> None:
    def fault(point: str) -> None:
        if point == "after_delete_rename":
            raise OSError("the process dies here")

    engine = open_engine(fault=fault)
    await engine.open("orders", 0)
    with pytest.raises(StorageFailed):
        await engine.delete("orders")
    # Named as no topic can be.
    (leftover,) = os.listdir(tmp_path)
    assert "~" in leftover
    assert await open_engine().remove_leftovers() == 1
    assert os.listdir(tmp_path) == []


async def test_a_directory_that_cannot_be_made_is_a_storage_failure(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine()
    os.close(os.open(tmp_path / "orders", os.O_CREAT))
    with pytest.raises(StorageFailed, match="orders"):
        await engine.open("orders", 0)


async def test_closing_the_engine_closes_its_logs_and_descriptors(open_engine: OpenEngine) -> None:
    engine = open_engine()
    log, _ = await engine.open("orders", 0)
    append(log, batch_of(b"x"), 0)
    await engine.close()
    await engine.close()
    assert log.is_closed
    assert (log.synced_offset, engine.open_descriptors) == (1, 0)
