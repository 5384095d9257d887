"""`cursus doctor`, `top`, `bench` and TLS, without a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.certificates import Authority
from tests.harness.processes import BrokerProcess
from tests.harness.terminal import CURSUS, command_environment, run_piped
from tests.integration.cli.conftest import Cli

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_doctor_finds_a_sound_broker_sound(cli: Cli) -> None:
    told = await cli.ok("doctor", "--health", f"http://{cli.broker.health}/health", "-o", "json")
    states = {finding["check"]: finding["state"] for finding in told.json}
    assert states.keys() >= {
        "software",
        "settings",
        "connection",
        "grpc",
        "health",
        "versions",
        "clock",
        "disk",
        "partitions",
    }
    # How much room the disk of this machine has is not for the test to say.
    assert {state for check, state in states.items() if check != "disk"} == {"ok"}


async def test_the_doctor_says_what_to_do(cli: Cli) -> None:
    refused = await cli.run("doctor", "--broker", "127.0.0.1:1")
    assert refused.status == 1
    assert "nobody listens on port 1" in refused.text
    assert "do: start the broker, or correct the port" in refused.text
    unknown = await cli.run("doctor", "--broker", "no-such-host.invalid:1", "-o", "json")
    assert unknown.status == 1
    assert unknown.json[-1]["check"] == "connection"
    assert unknown.json[-1]["advice"]


async def test_top_tells_programs_a_line_a_look(cli: Cli) -> None:
    topic = await cli.topic("a", "b")
    looks = (await cli.ok("top", "--count", "2", "--interval", "0.1", "-o", "json")).json_lines
    rows = [next(row for row in look["topics"] if row["topic"] == topic) for look in looks]
    assert [row["records"] for row in rows] == [2, 2]
    assert rows[0]["in_per_s"] is None
    assert rows[1]["in_per_s"] == 0.0
    assert topic in (await cli.ok("top", "--count", "1")).text


@pytest.mark.parametrize("what", ["produce", "consume", "latency"])
async def test_a_benchmark_reports_and_cleans_up(cli: Cli, what: str) -> None:
    told = (await cli.ok("bench", what, "--records", "2000", "--size", "50", "-o", "json")).json
    assert (told["bench"], told["records"], told["value_bytes"]) == (what, 2000, 50)
    assert told["records_per_s"] > 0
    latency = told["latency"]
    assert latency["p50_ms"] <= latency["p99_ms"] <= latency["max_ms"]
    assert sum(bucket["count"] for bucket in latency["histogram"]) == latency["count"]
    names = [topic["name"] for topic in (await cli.ok("topic", "list", "-o", "json")).json]
    assert not [name for name in names if name.startswith("cursus-bench")]


async def test_a_benchmark_draws_a_histogram(cli: Cli) -> None:
    topic = await cli.topic()
    shown = (await cli.ok("bench", "produce", topic, "--records", "1000")).text
    assert "1,000 records of 100 B" in shown
    assert "p99.9" in shown
    assert "█" in shown
    assert len((await cli.ok("consume", topic)).text.splitlines()) == 1000


async def test_tls_comes_from_flags_environment_or_file(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server, client = authority.server(), authority.client()
    stranger = Authority(tmp_path / "other", name="stranger")
    flags = ("--tls-cert", str(server.certificate), "--tls-key", str(server.key))
    async with BrokerProcess.start(tmp_path / "data", *flags, "--tls-client-ca", str(authority.certificate)) as broker:
        env = command_environment(tmp_path, CURSUS_BROKER=broker.grpc)
        trusted = {
            "CURSUS_TLS_CA": str(authority.certificate),
            "CURSUS_TLS_CERT": str(client.certificate),
            "CURSUS_TLS_KEY": str(client.key),
        }
        listing = [*CURSUS, "topic", "list", "-o", "json"]
        assert (await run_piped(listing, {**env, **trusted})).json == []
        given = [part for name, value in trusted.items() for part in (f"--{name[7:].lower().replace('_', '-')}", value)]
        assert (await run_piped([*listing, *given], env)).json == []
        directory = tmp_path / ".config" / "cursus"
        directory.mkdir(parents=True)
        (directory / "config.toml").write_text(
            f'[tls]\nca = "{authority.certificate}"\ncert = "{client.certificate}"\nkey = "{client.key}"\n'
        )
        assert (await run_piped(listing, env)).json == []
        (directory / "config.toml").unlink()

        wrong = {**env, **trusted, "CURSUS_TLS_CA": str(stranger.certificate), "CURSUS_TIMEOUT": "5"}
        refused = await run_piped([*CURSUS, "topic", "list"], wrong)
        assert refused.status == 1
        assert "(TLS_FAILED)" in refused.stderr
        missing = await run_piped([*CURSUS, "topic", "list"], {**env, "CURSUS_TLS_CA": "missing.pem"})
        assert (missing.status, missing.stderr) == (1, "error: missing.pem: No such file or directory (IO_FAILED)\n")
