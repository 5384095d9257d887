"""The alerts: their own unit tests with promtool, what they and the dashboard ask for against a real scrape, and what
fires when real services fail. Needs Prometheus, of Debian's package for example."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from cursus_grpc import AsyncAdmin, AsyncConsumer, AsyncProducer, TopicPartition
from tests.deploy.rules import (
    ALERT_TESTS,
    ALERTS,
    ROOT,
    alerts,
    dashboard_queries,
    metrics_in,
    panels,
    variable_queries,
    with_values,
)
from tests.harness.clients import Client
from tests.harness.gateway import GatewayProcess, LegacyClient, running_stack
from tests.harness.http import get, samples
from tests.harness.processes import BrokerProcess, free_port
from tests.harness.prometheus import PROMTOOL, Prometheus, needs_prometheus, needs_promtool, running_prometheus
from tests.harness.waiting import eventually

# As files


def test_every_alert_says_how_bad_it_is_and_where_to_read_on() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    headings = re.findall(r"^#+ (.*)$", page, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["annotations"]["summary"], rule["alert"]
        assert rule["annotations"]["description"], rule["alert"]
        file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert file == "docs/operations.md", rule["alert"]
        assert anchor in anchors, f"{rule['alert']} points to #{anchor}, which {file} has not"


def test_every_alert_fires_in_one_unit_test_and_keeps_quiet_in_another() -> None:
    tested = [one for case in yaml.safe_load(ALERT_TESTS.read_text())["tests"] for one in case["alert_rule_test"]]
    names = {rule["alert"] for rule in alerts()}
    assert {one["alertname"] for one in tested if one["exp_alerts"]} == names
    assert {one["alertname"] for one in tested if not one["exp_alerts"]} == names


def test_the_dashboard_is_whole() -> None:
    titles = {panel["title"] for panel in panels()}
    for wanted in ("Records published a second", "Publishing", "Lag in records", "Disk", "Sync time", "Connections"):
        assert wanted in titles
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


@needs_promtool
def test_the_rules_pass_their_unit_tests() -> None:
    assert PROMTOOL is not None
    for arguments in (("check", "rules", str(ALERTS)), ("test", "rules", str(ALERT_TESTS))):
        done = subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


# On running services


@needs_prometheus
async def test_rules_and_dashboard_ask_only_for_what_is_exported_and_get_it(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        targets = {"broker": stack.broker.metrics, "gateway": stack.gateway.address("metrics")}
        async with running_prometheus(tmp_path / "prometheus", targets) as prometheus, some_work(stack.broker.grpc):
            async with LegacyClient.connect(stack.gateway.tcp) as legacy:
                answers: dict[str, list[Any]] = {}

                async def all_answered() -> bool:
                    assert "ERROR" not in await legacy.ask("PUBLISH topic=orders acks=1 producerId=p message=over TCP")
                    await legacy.ask("NO SUCH COMMAND")
                    await legacy.ask("DESCRIBE topic=nowhere")
                    for where, expression in dashboard_queries():
                        answers[where] = await prometheus.query(with_values(expression))
                    return all(answers[where] for where in answers if where not in EMPTY_WHEN_ALL_IS_WELL)

                try:
                    answered: bool = await eventually(all_answered)
                    assert answered
                except AssertionError:
                    empty = [where for where, found in answers.items() if not found]
                    raise AssertionError(f"no samples for {empty}") from None
            known = await prometheus.known_metrics()
    asked = [
        *((rule["alert"], rule["expr"]) for rule in alerts()),
        *dashboard_queries(),
        *variable_queries(),
    ]
    for where, expression in asked:
        if names := metrics_in(expression):
            unknown = {name for name in names if name not in known}
            assert not unknown, f"{where} asks for {unknown}, which nobody exports"
        else:
            assert where == "variable job", f"{where} asks for nothing of ours"


EMPTY_WHEN_ALL_IS_WELL = {"Members and rebalances B", "annotation Starts"}


@asynccontextmanager
async def some_work(address: str) -> AsyncIterator[None]:
    """Something of everything that a query looks at: publishing, a repetition, groups that follow and that lag."""
    async with (
        Client.connect(address) as client,
        AsyncAdmin(address) as admin,
        AsyncProducer(address, acks="all") as producer,
        AsyncConsumer(address, group="readers", topics=["orders"]) as consumer,
    ):
        await client.create_topic("orders", 1)
        await client.publish("orders", [b"same"])
        assert (await client.publish("orders", [b"same"])).duplicate
        for number in range(20):
            await producer.send("orders", b"%d" % number)
        await producer.flush()
        await anext(aiter(consumer))
        await admin.commit_offsets("cursus-spark-stream", {TopicPartition("orders", 0): 3})
        yield


@needs_prometheus
async def test_what_goes_wrong_on_real_services_fires(tmp_path: Path) -> None:
    """With the waiting of each alert left out, which the unit tests look at."""
    impatient = tmp_path / "alerts.yaml"
    impatient.write_text(re.sub(r"^( *)for: .*$", r"\1for: 0s", ALERTS.read_text(), flags=re.MULTILINE))
    ports = {name: await free_port() for name in ("grpc", "metrics")}
    flags = [text for name, port in ports.items() for text in (f"--{name}-port", str(port))]
    broker = BrokerProcess.start(tmp_path / "data", *flags)
    gateway = GatewayProcess.start(f"127.0.0.1:{ports['grpc']}", tmp_path, "--upstream-health-interval-ms", "200")
    async with broker, gateway:
        targets = {"broker": broker.metrics, "gateway": gateway.address("metrics")}
        async with running_prometheus(tmp_path / "prometheus", targets, [impatient]) as prometheus:
            await scraped_start(prometheus, broker)
            # The disk of this machine is not part of the test.
            assert set(await prometheus.firing()) <= {"CursusDiskAlmostFull", "CursusDiskFilling"}
            async with Client.connect(broker.grpc) as client:
                for topic in ("torn", "damaged"):
                    await client.create_topic(topic, 1)
                    await client.publish(topic, [b"x" * 100] * 3)
            for _ in range(2):
                await broker.restart()
                await scraped_start(prometheus, broker)
            async with Client.connect(broker.grpc) as client:
                await client.publish("torn", [b"y" * 100])
            await broker.kill()
            await fires(prometheus, "CursusBrokerDown", "CursusGatewayWithoutBroker")
            tear(tmp_path / "data" / "logs" / "torn")
            next((tmp_path / "data" / "logs" / "damaged").glob("*_segment_0.log")).unlink()
            await broker.launch()
            found = await fires(prometheus, "CursusRecoveryCut", "CursusPartitionDamaged", "CursusRestarting")
            assert found["CursusRecoveryCut"]["topic"] == "torn"
            assert found["CursusPartitionDamaged"]["topic"] == "damaged"
            assert found["CursusRestarting"]["job"] == "broker"
            await calms_down(prometheus, "CursusBrokerDown", "CursusGatewayWithoutBroker")


async def scraped_start(prometheus: Prometheus, broker: BrokerProcess) -> None:
    """Wait until Prometheus has seen the life of the broker that runs now."""
    started = samples((await get(broker.metrics, "/metrics"))[1])["process_start_time_seconds"]

    async def seen() -> bool:
        found = await prometheus.query("process_start_time_seconds{job='broker'}")
        return [float(one["value"][1]) for one in found] == [started]

    scraped: bool = await eventually(seen)
    assert scraped


async def fires(prometheus: Prometheus, *names: str) -> dict[str, dict[str, str]]:
    async def firing() -> dict[str, dict[str, str]]:
        found = await prometheus.firing()
        assert set(names) <= set(found), f"only {sorted(found)} fire"
        return found

    found: dict[str, dict[str, str]] = await eventually(firing)
    return found


async def calms_down(prometheus: Prometheus, *names: str) -> None:
    async def quiet() -> bool:
        return not set(names) & set(await prometheus.firing())

    calm: bool = await eventually(quiet)
    assert calm


def tear(directory: Path) -> None:
    """Cut the last entry in two, as power loss does."""
    (path,) = directory.glob("*_segment_0.log")
    size = len(path.read_bytes().rstrip(b"\0"))
    with path.open("r+b") as file:
        file.truncate(size - 10)


@pytest.mark.parametrize("text", ["cursus_a_total", "messages_processed_total"])
def test_metrics_are_found_in_expressions_and_not_in_their_strings(text: str) -> None:
    assert metrics_in(f'sum by (le) (rate({text}{{group!~"cursus_b"}}[1m]))') == {text}
