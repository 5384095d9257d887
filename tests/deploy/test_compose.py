"""deploy/compose as far as it can be judged without containers: what it mounts is there, what it names fits together,
and the services take the flags it gives them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Final

import pytest
import yaml

from tests.deploy.rules import DASHBOARD, ROOT
from tests.harness.prometheus import PROMTOOL, needs_promtool

COMPOSE: Final = ROOT / "deploy/compose"


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    return found


def test_every_mounted_file_is_there() -> None:
    mounted = [volume for one in services().values() for volume in one.get("volumes", ()) if volume.startswith(".")]
    assert mounted
    for volume in mounted:
        assert (COMPOSE / volume.split(":")[0]).exists(), volume


def test_prometheus_scrapes_every_service_of_ours() -> None:
    config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    targets = {target for job in config["scrape_configs"] for one in job["static_configs"] for target in one["targets"]}
    ours = {name: one["image"] for name, one in services().items() if one["image"].startswith("cursus-")}
    expected = {f"{name}:{9101 if 'broker' in image else 9100}" for name, image in ours.items()}
    assert targets == expected
    assert len(ours) == 3


def test_grafana_is_given_the_dashboard_and_a_prometheus() -> None:
    volumes = dict(volume.split(":")[:2] for volume in services()["grafana"]["volumes"])
    provider = yaml.safe_load((COMPOSE / "grafana/dashboards.yaml").read_text())["providers"][0]
    mounted = {(COMPOSE / source).resolve(): target for source, target in volumes.items()}
    assert mounted[DASHBOARD.parent] == provider["options"]["path"]
    source = yaml.safe_load((COMPOSE / "grafana/datasources.yaml").read_text())["datasources"][0]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


@pytest.mark.parametrize("name", ["broker", "gateway-1", "gateway-2"])
def test_the_services_take_their_flags(name: str) -> None:
    module = "cursus_broker" if name == "broker" else "cursus_gateway"
    flags = [flag.replace("${ADVERTISED_HOST:-localhost}", "localhost") for flag in services()[name]["command"]]
    shown = subprocess.run(
        [sys.executable, "-m", module, *flags, "--print-config"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr


@needs_promtool
def test_prometheus_takes_its_configuration() -> None:
    assert PROMTOOL is not None
    command = [PROMTOOL, "check", "config", "--syntax-only", str(COMPOSE / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
