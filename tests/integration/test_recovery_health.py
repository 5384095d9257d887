"""A broker that recovers: alive and not ready, so that probes wait for it and do not kill it."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path

from cursus_broker.app import serve
from cursus_broker.log.files import RealFiles
from cursus_broker.settings import BrokerSettings
from tests.harness.clients import Client
from tests.harness.http import get
from tests.harness.processes import BrokerProcess, free_port
from tests.harness.waiting import eventually


class SlowRecovery(RealFiles):
    """Lists no directory of a topic before it may: recovery begins with that."""

    def __init__(self) -> None:
        self.may_list = threading.Event()
        self.listing = threading.Event()

    def list(self, directory: str) -> list[str]:
        if directory.endswith("/orders"):
            self.listing.set()
            assert self.may_list.wait(60)
        return super().list(directory)


async def test_the_health_port_answers_during_recovery(tmp_path: Path) -> None:
    async with (
        BrokerProcess.start(tmp_path / "data") as broker,
        Client.connect(broker.grpc) as client,
    ):
        await client.create_topic("orders", 1)
        await client.publish("orders", [b"tea"])
        await broker.kill()
    port = await free_port()
    settings = replace(BrokerSettings(data_dir=tmp_path / "data"), grpc_port=0, metrics_port=0, health_port=port)
    files, stop, ready = SlowRecovery(), asyncio.Event(), asyncio.Event()
    serving = asyncio.create_task(serve(settings, stop, files, announce=lambda **_: ready.set()))
    try:
        began: bool = await eventually(files.listing.is_set)
        assert began
        address = f"127.0.0.1:{port}"
        assert (await get(address, "/live"))[0] == 200
        status, body = await get(address, "/ready")
        assert status == 503
        assert json.loads(body) == {"status": "not_ready", "checks": {"broker": "starting"}}
        assert (await get(address, "/health"))[0] == 503
        assert not ready.is_set()
        files.may_list.set()
        await ready.wait()
        assert (await get(address, "/ready"))[0] == 200
    finally:
        files.may_list.set()
        stop.set()
        await serving
