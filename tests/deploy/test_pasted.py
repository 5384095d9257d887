"""The commands of docs/tls.md and of the runbook of backups, pasted as they are but for ports and places."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from cursus_proto.v1.publish_service_pb2 import ACKS_WRITTEN
from tests.harness.clients import Client
from tests.harness.documents import blocks, section
from tests.harness.gateway import GatewayProcess
from tests.harness.processes import BrokerProcess
from tests.harness.terminal import Outcome, command_environment, run_piped

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")

VALUES = [b"%d" % number for number in range(200)]


@dataclass
class Shell:
    """Somebody's shell in an empty directory, with our commands on PATH."""

    directory: Path
    broker: str = ""
    gateway: str = ""

    async def paste(self, script: str, **variables: str) -> Outcome:
        """Run it, but for the ports: services have fixed ones, and a test must not. Fails if it does."""
        script = script.replace("localhost:50051", self.broker).replace("localhost:9000", self.gateway)
        programs = Path(sys.executable).parent
        env = command_environment(self.directory, **variables)
        if self.broker:
            env["CURSUS_BROKER"] = self.broker
        env["PATH"] = f"{programs}:{env['PATH']}"
        shown = await run_piped(["bash", "-euo", "pipefail", "-c", f"exec 2>&1\n{script}"], env, cwd=self.directory)
        assert shown.status == 0, f"{script}\n{shown.text}"
        return shown

    def flags(self, command: str, program: str) -> list[str]:
        """What a document gives to a service, with files where they are here."""
        name, *words = shlex.split(command.replace("\\\n", " "))
        assert name == program
        return [str(self.directory / word) if word.startswith("tls/") else word for word in words]


async def test_the_page_of_tls_can_be_pasted(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (certificates,) = blocks(section("docs/tls.md", "## Certificates"), "sh")
    shown = await shell.paste(certificates)
    assert [line for line in shown.text.splitlines() if line.endswith(": OK")] == [
        f"tls/{name}.pem: OK" for name in ("broker", "gateway", "client")
    ]

    page = section("docs/tls.md", "## Broker")
    start, use, refused = blocks(page, "sh")
    (python,) = blocks(page, "python")
    async with BrokerProcess.start(tmp_path / "data", *shell.flags(start, "cursus-broker")[2:]) as broker:
        shell.broker = broker.grpc
        shown = await shell.paste(use)
        assert "Verification: OK" in shown.text
        assert "\ntea\n" in shown.text
        assert (await shell.paste(refused)).text.count("refused, as it should be\n") == 2
        assert (await shell.paste(f"python - <<'PYTHON'\n{python}PYTHON")).text == "b'tea'\n"

    start, use = blocks(section("docs/tls.md", "## Mutual TLS"), "sh")
    gateway_start, gateway_use = blocks(section("docs/tls.md", "## Gateway"), "sh")
    async with BrokerProcess.start(tmp_path / "data", *shell.flags(start, "cursus-broker")[2:]) as broker:
        shell.broker = broker.grpc
        shown = await shell.paste(use)
        assert "orders" in shown.text
        assert shown.text.count("refused, as it should be\n") == 1
        flags = shell.flags(gateway_start, "cursus-gateway")[2:]
        async with GatewayProcess.start(broker.grpc, tmp_path, *flags) as gateway:
            shell.gateway = gateway.tcp
            assert "Verification: OK" in (await shell.paste(gateway_use)).text


async def published(address: str, values: list[bytes]) -> None:
    async with Client.connect(address) as client:
        for value in values:
            await client.publish("orders", [value], acks=ACKS_WRITTEN)


@pytest.mark.parametrize("way", ["stopped", "paused"])
async def test_a_backup_is_made_and_restored_by_pasting(tmp_path: Path, way: str) -> None:
    """What came behind the backup is gone after the restore, and everything before it is there, in both ways."""
    shell = Shell(tmp_path)
    stopped, paused, restore, look = blocks(section("docs/operations.md", "## Backup and restore"), "sh")
    broker = BrokerProcess.start(tmp_path / "data")
    async with broker:
        async with Client.connect(broker.grpc) as client:
            await client.create_topic("orders", 1)
        await published(broker.grpc, VALUES)
        if way == "stopped":
            await broker.terminate()
            await shell.paste(stopped)
            await broker.launch()
        else:
            await shell.paste(paused, BROKER_PID=str(broker.pid))
        await published(broker.grpc, [b"later"])
        await broker.terminate()
        await shell.paste(restore)
        await broker.launch()
        shell.broker = broker.grpc
        assert (
            "orders"
            in (
                await shell.paste(
                    look.replace("cursus doctor", f"cursus doctor --health http://{broker.health}/health")
                )
            ).text
        )
        async with Client.connect(broker.grpc) as client:
            assert await client.read_values("orders") == VALUES
            assert (await client.publish("orders", [b"more"])).base_offset == len(VALUES)
