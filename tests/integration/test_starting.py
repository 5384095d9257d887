"""What a probe sees of a broker that is still recovering its logs."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

from cursus_broker.app import serve
from cursus_broker.log.files import RealFiles
from cursus_broker.settings import BrokerSettings
from tests.harness.http import get
from tests.harness.processes import BrokerProcess
from tests.harness.terminal import CURSUS, command_environment, run_piped
from tests.harness.waiting import eventually


class SlowDisk(RealFiles):
    """Opens no segment before it is told to: a recovery that takes as long as the test wants."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def open(self, path: str, *, writable: bool, create: bool = False) -> int:
        if path.endswith(".log") and not create:
            self.asked.set()
            assert self.go_on.wait(240)
        return super().open(path, writable=writable, create=create)


async def test_a_recovering_broker_is_alive_and_not_ready(tmp_path: Path) -> None:
    """Else Kubernetes would kill it for recovering, and it would begin again, for ever."""
    async with BrokerProcess.start(tmp_path / "data") as broker:
        env = command_environment(tmp_path, CURSUS_BROKER=broker.grpc)
        assert (await run_piped([*CURSUS, "topic", "create", "orders", "--partitions", "2"], env)).status == 0
        assert (await run_piped([*CURSUS, "publish", "orders", "--value", "a", "--acks", "all"], env)).status == 0
        await broker.kill()
    with socket.create_server(("127.0.0.1", 0)) as free:
        health_port = free.getsockname()[1]
    settings = BrokerSettings(
        data_dir=tmp_path / "data", host="127.0.0.1", grpc_port=0, health_port=health_port, metrics_port=0
    )
    disk, stop, address = SlowDisk(), asyncio.Event(), f"127.0.0.1:{health_port}"
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(settings, stop, disk, announce=lambda **_: None))
            await eventually(disk.asked.is_set)
            assert (await get(address, "/live"))[0] == 200
            status, said = await get(address, "/ready")
            assert (status, "starting" in said) == (503, True)
            disk.go_on.set()

            async def ready() -> bool:
                return (await get(address, "/ready"))[0] == 200

            await eventually(ready)
            stop.set()
    finally:
        disk.go_on.set()
