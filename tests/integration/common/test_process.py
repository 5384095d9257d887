"""The life of a process that does nothing but run `cursus_service.process`, and of the harness around it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.harness.processes import ProcessFailed, ServiceProcess
from tests.harness.waiting import eventually

SERVICE = """
import asyncio, sys
from cursus_service.process import announce_ready, raise_open_file_limit, run, settle_memory

async def service(stop: asyncio.Event) -> None:
    settle_memory()
    print("open files", raise_open_file_limit(2048), file=sys.stderr)
    announce_ready(grpc=("127.0.0.1", 1))
    await stop.wait()
    print("stopping on", type(asyncio.get_running_loop()).__module__, file=sys.stderr, flush=True)
    if "stubborn" in sys.argv:
        await asyncio.Event().wait()

run(service)
"""


def process(tmp_path: Path, *args: str, script: str = SERVICE) -> ServiceProcess:
    return ServiceProcess((sys.executable, "-c", script, *args), tmp_path / "service.log", {"PYTHONUNBUFFERED": "1"})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_the_service_in_order(number: signal.Signals, tmp_path: Path) -> None:
    async with process(tmp_path) as service:
        assert service.address("grpc") == "127.0.0.1:1"
        service.send_signal(number)
        assert await service.wait() == 0
        assert "stopping on" in service.log


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with process(tmp_path, "stubborn") as service:
        service.send_signal(signal.SIGTERM)
        await eventually(lambda: "stopping on" in service.log)
        service.send_signal(signal.SIGINT)
        assert await service.wait() == 128 + signal.SIGINT


async def test_an_error_in_the_service_ends_the_process_with_a_traceback(tmp_path: Path) -> None:
    failing = SERVICE.replace("settle_memory()", "raise LookupError('no luck')")
    service = process(tmp_path, script=failing)
    assert await service.expect_refusal() == 1
    assert "LookupError: no luck" in service.log


async def test_a_process_that_ends_before_it_is_ready_fails_with_its_log(tmp_path: Path) -> None:
    service = process(tmp_path, script="import sys; sys.exit('no room')")
    with pytest.raises(ProcessFailed, match=r"ended with status 1 before it was ready(.|\n)*no room"):
        await service.launch()


async def test_a_killed_process_can_be_started_again(tmp_path: Path) -> None:
    async with process(tmp_path) as service:
        first = service.pid
        await service.kill()
        assert service.returncode == -signal.SIGKILL
        await service.restart()
        assert service.pid != first
        await service.restart(kill=True)
        assert await service.terminate() == 0
