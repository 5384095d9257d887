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


async def test_the_doctor_does_not_take_another_broker_for_this_one(cli: Cli, tmp_path: Path) -> None:
    async with BrokerProcess.start(tmp_path / "other") as other:
        page = f"http://{other.health}/health"
        told = await cli.run("doctor", "--health", page, "-o", "json")
    assert told.status == 1
    (health,) = [finding for finding in told.json if finding["check"] == "health"]
    assert health["state"] == "failed"
    assert health["detail"].startswith(f"{page} is the page of another broker (cluster ")
    assert health["advice"] == "name the page of this broker with --health URL"


async def test_the_doctor_says_what_a_page_without_a_name_is_worth(cli: Cli) -> None:
    page = f"http://{cli.broker.metrics}/metrics"
    told = await cli.ok("doctor", "--health", page, "-o", "json")
    (health,) = [finding for finding in told.json if finding["check"] == "health"]
    assert health["state"] == "warning"
    assert health["detail"].endswith("and not whose health that is")


async def test_a_brokers_own_settings_in_the_shell_are_not_the_commands(cli: Cli) -> None:
    """CURSUS_CONFIG was read as TOML, and CURSUS_TLS_CERT switched TLS on, in every container of a broker."""
    services = {
        "CURSUS_CONFIG": "/etc/cursus/broker.yaml",
        "CURSUS_TLS_CERT": "/x/tls.crt",
        "CURSUS_TLS_KEY": "/x/tls.key",
    }
    here = Cli(cli.broker, {**cli.env, **services}, cli.home)
    await here.ok("topic", "list")
    found = (await here.ok("config", "show", "-o", "json")).json["settings"]
    assert found["tls.enabled"] == {"value": False, "origin": "default"}
    assert found["broker"] == {"value": cli.broker.grpc, "origin": "variable CURSUS_BROKER"}
    told = await Cli(cli.broker, {**cli.env, "CURSUS_TLS_CA": "/x/ca.crt"}, cli.home).run("topic", "list")
    assert told.status == 2
    assert "the variable CURSUS_TLS_CA of this command is called CURSUS_CLI_TLS_CA now" in told.stderr


async def test_profiles_name_brokers(cli: Cli) -> None:
    path = cli.home / "profiles.yaml"
    path.write_text(f"profiles:\n  here: {{broker: '{cli.broker.grpc}'}}\n  nowhere: {{broker: '127.0.0.1:1'}}\n")
    env = {name: value for name, value in cli.env.items() if name != "CURSUS_BROKER"}
    here = Cli(cli.broker, {**env, "CURSUS_CLI_CONFIG": str(path), "CURSUS_CLI_PROFILE": "here"}, cli.home)
    await here.ok("topic", "list")
    assert (await here.run("topic", "list", "--profile", "nowhere")).status == 1
    shown = await here.ok("config", "show", "--timeout", "7")
    lines = [line.split("  ") for line in shown.text.splitlines()]
    told = {words[0]: [word.strip() for word in words[1:] if word.strip()][:2] for words in lines}
    assert told["broker"] == [cli.broker.grpc, f"profile here in {path}"]
    assert told["timeout"] == ["7", "flag --timeout"]
    assert [line.split()[:2] for line in (await here.ok("config", "profiles")).text.splitlines()[1:]] == [
        ["*", "here"],
        ["nowhere", "127.0.0.1:1"],
    ]
    asked = {"_CURSUS_COMPLETE": "bash_complete", "COMP_WORDS": "cursus topic list --profile no", "COMP_CWORD": "4"}
    assert (await Cli(cli.broker, {**here.env, **asked}, cli.home).ok()).text == "plain,nowhere\n"


async def test_metadata_lists_what_clients_go_by(cli: Cli) -> None:
    topic = await cli.topic(partitions=2)
    found = (await cli.ok("metadata", topic, "-o", "json")).json
    host, _, port = cli.broker.grpc.rpartition(":")
    assert found["brokers"] == [{"broker_id": 0, "host": host, "port": int(port)}]
    (described,) = found["topics"]
    assert (described["name"], [part["partition"] for part in described["partitions"]]) == (topic, [0, 1])
    assert {part["leader_id"] for part in described["partitions"]} == {0}
    assert topic in (await cli.ok("metadata")).text
    assert "(TOPIC_NOT_FOUND)" in (await cli.run("metadata", "nowhere")).stderr


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
            "CURSUS_CLI_TLS_CA": str(authority.certificate),
            "CURSUS_CLI_TLS_CERT": str(client.certificate),
            "CURSUS_CLI_TLS_KEY": str(client.key),
        }
        listing = [*CURSUS, "topic", "list", "-o", "json"]
        assert (await run_piped(listing, {**env, **trusted})).json == []
        given = [
            part for name, value in trusted.items() for part in (f"--{name[11:].lower().replace('_', '-')}", value)
        ]
        assert (await run_piped([*listing, *given], env)).json == []
        directory = tmp_path / ".config" / "cursus"
        directory.mkdir(parents=True)
        (directory / "config.yaml").write_text(
            f"tls:\n  ca: {authority.certificate}\n  cert: {client.certificate}\n  key: {client.key}\n"
        )
        assert (await run_piped(listing, env)).json == []
        (directory / "config.yaml").unlink()

        plain = await run_piped([*CURSUS, "topic", "list"], {**env, "CURSUS_TLS_CERT": "/x/tls.crt"})
        assert plain.status == 1
        assert "speaks TLS, and this command was not told to (TLS_FAILED); add --tls, and --tls-ca FILE" in plain.stderr
        assert "CURSUS_TLS_CERT is the services' own and not read here" in plain.stderr
        wrong = {**env, **trusted, "CURSUS_CLI_TLS_CA": str(stranger.certificate), "CURSUS_CLI_TIMEOUT": "5"}
        refused = await run_piped([*CURSUS, "topic", "list"], wrong)
        assert refused.status == 1
        assert "(TLS_FAILED)" in refused.stderr
        missing = await run_piped([*CURSUS, "topic", "list"], {**env, "CURSUS_CLI_TLS_CA": "missing.pem"})
        assert (missing.status, missing.stderr) == (1, "error: missing.pem: No such file or directory (IO_FAILED)\n")


async def test_a_partition_that_is_well_is_not_opened_anew(cli: Cli) -> None:
    await cli.ok("topic", "create", "reopened", "--partitions", "2")
    told = await cli.ok("partition", "reopen", "reopened", "1")
    assert "partition 1 of reopened is well: there was nothing to do" in told.stderr
    shown = await cli.ok("partition", "reopen", "reopened", "1", "-o", "json")
    assert shown.json["reopened"] is False
    refused = await cli.run("partition", "reopen", "reopened", "7")
    assert refused.status == 1
    assert "PARTITION_NOT_FOUND" in refused.stderr
