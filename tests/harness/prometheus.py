"""A real Prometheus on loopback, if the machine has one, and what tests ask it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import urllib.parse
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.harness.http import get
from tests.harness.processes import free_port
from tests.harness.waiting import DEADLINE_S, eventually

_BIN: Final = Path(__file__).parents[2] / "tools" / "bin"


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}")


PROMETHEUS: Final = _found("prometheus")
PROMTOOL: Final = _found("promtool")
_ABSENT: Final = "is neither in tools/bin, where .ci/run puts it, nor on PATH; Debian's package `prometheus` has it"

needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason=f"prometheus {_ABSENT}")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason=f"promtool {_ABSENT}")


@dataclass(frozen=True)
class Prometheus:
    address: str

    async def ask(self, path: str, **parameters: str) -> Any:
        """What its API answers under /api/v1; a refusal fails the test with its text."""
        status, body = await get(self.address, f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        answer = json.loads(body)
        assert answer["status"] == "success", f"{parameters} gave {status}: {answer.get('error')}"
        return answer["data"]

    async def query(self, expression: str) -> list[Any]:
        """Samples of an instant query."""
        result: list[Any] = (await self.ask("query", query=expression))["result"]
        return result

    async def known_metrics(self) -> set[str]:
        """Names of all series, and of metrics that are declared but have none yet."""
        return {*await self.ask("label/__name__/values"), *await self.ask("metadata")}

    async def firing(self) -> dict[str, dict[str, str]]:
        """Labels of the alerts that fire, by their names."""
        alerts = (await self.ask("alerts"))["alerts"]
        return {one["labels"]["alertname"]: one["labels"] for one in alerts if one["state"] == "firing"}


@asynccontextmanager
async def running_prometheus(
    directory: Path, targets: Mapping[str, str], rule_files: Sequence[Path] = ()
) -> AsyncIterator[Prometheus]:
    """Scrapes each address in `targets`, under the job it has there, and evaluates the rules, once a second."""
    assert PROMETHEUS is not None
    await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rule_files],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()
        ],
    }
    config_file = directory / "prometheus.yml"
    config_file.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{await free_port()}"
    with (directory / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PROMETHEUS,
            f"--config.file={config_file}",
            f"--storage.tsdb.path={directory / 'tsdb'}",
            f"--web.listen-address={address}",
            "--log.level=warn",
            stdout=log,
            stderr=log,
        )

    async def ready() -> bool:
        assert process.returncode is None, (directory / "prometheus.log").read_text()
        return (await get(address, "/-/ready"))[0] == 200

    try:
        is_ready: bool = await eventually(ready, ignoring=(OSError,))
        assert is_ready
        yield Prometheus(address)
    finally:
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
