"""What the chart tells its pods to run, really run: against a broker and a gateway as processes, with the addresses of
the cluster replaced by theirs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.chart import CHART, Rendered, render, why_no_helm
from tests.harness.gateway import Stack, running_stack
from tests.harness.terminal import command_environment

pytestmark = pytest.mark.skipif(why_no_helm() is not None, reason=f"{why_no_helm()}")


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path) as running:
        yield running


async def _run(command: list[str], stack: Stack, home: Path) -> tuple[int, str]:
    """Runs it with the environment the chart would give it, and `cursus` and `python` as the image has them."""
    env = command_environment(home, CURSUS_BROKER=stack.broker.grpc)
    env["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def _command(spec: dict[str, Any]) -> list[str]:
    container = spec["containers"][0]
    return [*container["command"], *container.get("args", ())]


async def test_the_broker_test_publishes_reads_back_and_cleans_up(stack: Stack, tmp_path: Path) -> None:
    command = _command(dict(Rendered(render()).pods())["Pod/cursus-test-broker"])
    status, said = await _run(command, stack, tmp_path)
    assert status == 0, said
    assert "hello from helm" in said
    _, topics = await _run(["cursus", "topic", "list", "-o", "json"], stack, tmp_path)
    assert json.loads(topics) == []


async def test_the_broker_test_fails_without_a_broker(stack: Stack, tmp_path: Path) -> None:
    command = _command(dict(Rendered(render()).pods())["Pod/cursus-test-broker"])
    await stack.broker.terminate()
    status, _ = await _run(command, stack, tmp_path)
    assert status != 0


async def test_the_gateway_test_publishes_reads_back_and_cleans_up(stack: Stack, tmp_path: Path) -> None:
    *command, host, port = _command(dict(Rendered(render()).pods())["Pod/cursus-test-gateway"])
    assert (host, port) == ("cursus-gateway.messaging.svc.cluster.local", "9000")
    host, _, port = stack.gateway.tcp.rpartition(":")
    status, said = await _run([*command, host, port], stack, tmp_path)
    assert status == 0, said
    assert "-> hello from helm" in said
    _, topics = await _run(["cursus", "topic", "list", "-o", "json"], stack, tmp_path)
    assert json.loads(topics) == []


async def test_topics_from_values_are_made_and_made_again(stack: Stack, tmp_path: Path) -> None:
    rendered = Rendered(render("--values", str(CHART / "ci/production-values.yaml")))
    file = tmp_path / "topics.json"
    file.write_text(rendered.get("ConfigMap", "cursus-topics")["data"]["topics.json"], encoding="utf-8")
    job = rendered.get("Job", "cursus-topics")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade,post-rollback"
    command = _command(job["spec"]["template"]["spec"])
    assert command == ["cursus", "topic", "apply", "/etc/cursus/files/topics.json", "--wait", "600"]
    command[3] = str(file)
    for outcome in ("topic orders created, 24 partitions", "topic orders is as it should be"):
        status, said = await _run(command, stack, tmp_path)
        assert (status, outcome in said) == (0, True), said


async def test_the_first_message_of_the_notes_works_as_printed(stack: Stack, tmp_path: Path) -> None:
    """The part inside the pod; the rest of the command is kubectl's."""
    # helm renders notes only against a cluster: as the content of a ConfigMap they are a template like others.
    chart = tmp_path / "cursus"
    shutil.copytree(CHART, chart)
    text = (chart / "templates/NOTES.txt").read_text(encoding="utf-8")
    wrapped = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: notes}\ndata:\n  notes: |\n"
    template = f'{{{{ define "notes" }}}}{text}{{{{ end }}}}{wrapped}{{{{ include "notes" . | indent 4 }}}}\n'
    (chart / "templates/notes.yaml").write_text(template, encoding="utf-8")
    notes = Rendered(render(chart=chart)).get("ConfigMap", "notes")["data"]["notes"]
    printed = re.search(r"--command -- sh -ec '([^']+)'", notes)
    assert printed is not None, notes
    assert "--env CURSUS_BROKER=cursus-broker:50051" in notes
    status, said = await _run(["sh", "-ec", printed.group(1)], stack, tmp_path)
    assert (status, "hello" in said.splitlines()) == (0, True), said
