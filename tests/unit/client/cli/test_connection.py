"""Flags over environment over profile over file over defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cursus_grpc import TLS
from cursus_grpc.cli.connection import DEFAULT_BROKER, BadConfiguration, load


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose configuration file is `cursus/config.yaml` in the temporary directory."""
    (tmp_path / "cursus").mkdir()
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def write(home: dict[str, str], text: str) -> Path:
    path = Path(home["XDG_CONFIG_HOME"]) / "cursus" / "config.yaml"
    path.write_text(text)
    return path


def test_without_anything_it_is_the_local_broker_in_the_clear(home: dict[str, str]) -> None:
    found = load({}, home)
    assert (found.broker, found.tls, found.timeout_s) == (DEFAULT_BROKER, None, 10.0)
    assert found.origins["broker"] == "default"
    write(home, "")
    assert load({}, home).broker == DEFAULT_BROKER


def test_flags_win_over_the_environment_and_that_over_the_file(home: dict[str, str]) -> None:
    path = write(home, "broker: file:1\ntimeout: 3")
    assert load({}, home).broker == "file:1"
    assert load({}, home).origins["broker"] == f"file {path}"
    home["CURSUS_BROKER"] = "variable:2"
    assert load({}, home).broker == "variable:2"
    assert load({}, home).origins["broker"] == "variable CURSUS_BROKER"
    found = load({"broker": "flag:3", "tls": False}, home)
    assert (found.broker, found.timeout_s) == ("flag:3", 3.0)
    assert found.origins == {"broker": "flag --broker", "timeout": f"file {path}", "tls": "flag --no-tls"}


def test_a_profile_wins_over_the_rest_of_the_file(home: dict[str, str]) -> None:
    path = write(home, "broker: file:1\ntimeout: 3\nprofiles:\n  there: {broker: 'there:2'}\n  here: {timeout: 4}\n")
    assert load({}, home).profile is None
    found = load({"profile": "there"}, home)
    assert (found.broker, found.timeout_s, found.profile) == ("there:2", 3.0, "there")
    assert found.origins == {"broker": f"profile there in {path}", "timeout": f"file {path}"}
    assert load({}, {**home, "CURSUS_CLI_PROFILE": "here"}).timeout_s == 4.0
    assert load({"profile": "there"}, {**home, "CURSUS_CLI_PROFILE": "here"}).broker == "there:2"
    assert load({}, {**home, "CURSUS_BROKER": "variable:3", "CURSUS_CLI_PROFILE": "there"}).broker == "variable:3"
    write(home, path.read_text() + "profile: here\n")
    assert load({}, home).timeout_s == 4.0
    with pytest.raises(
        BadConfiguration, match=r"no profile nowhere, which --profile asks for; .*config\.yaml has here, there$"
    ):
        load({"profile": "nowhere"}, home)
    path.unlink()
    with pytest.raises(BadConfiguration, match="no profile here, which CURSUS_CLI_PROFILE asks for; there is no file"):
        load({}, {**home, "CURSUS_CLI_PROFILE": "here"})


def test_an_empty_variable_says_nothing(home: dict[str, str]) -> None:
    assert (
        load({}, {**home, "CURSUS_BROKER": "", "CURSUS_CLI_TLS_CA": "", "CURSUS_TLS_CA": ""}).broker == DEFAULT_BROKER
    )


def test_paths_in_the_file_are_relative_to_it(home: dict[str, str]) -> None:
    path = write(home, "tls:\n  ca: ca.pem\n  server_name: b\nprofiles:\n  mine: {tls: {ca: mine.pem}}")
    assert load({}, home).tls == TLS(ca=str(path.parent / "ca.pem"), server_name="b")
    assert load({"profile": "mine"}, home).tls == TLS(ca=str(path.parent / "mine.pem"), server_name="b")


def test_several_brokers_are_a_list_or_text(home: dict[str, str]) -> None:
    write(home, "broker: [a:1, b:2]")
    assert load({}, home).broker == "a:1,b:2"


def test_anything_said_about_tls_switches_it_on_unless_it_is_switched_off(home: dict[str, str]) -> None:
    assert load({"tls": True}, home).tls == TLS()
    assert load({}, {**home, "CURSUS_CLI_TLS_CA": "x.pem"}).tls == TLS(ca="x.pem")
    assert load({"tls": False}, {**home, "CURSUS_CLI_TLS_CA": "x.pem"}).tls is None
    assert load({}, {**home, "CURSUS_CLI_TLS": "off", "CURSUS_CLI_TLS_CA": "x.pem"}).tls is None
    write(home, "tls:")
    assert load({}, home).tls == TLS()
    write(home, "tls:\n  enabled: false\n  ca: ca.pem")
    assert load({}, home).tls is None


def test_what_the_services_read_is_not_read_here(home: dict[str, str]) -> None:
    """In a broker's shell CURSUS_CONFIG is its own YAML, and CURSUS_TLS_CERT used to switch TLS on for the command."""
    services = {"CURSUS_CONFIG": "/etc/cursus/broker.yaml", "CURSUS_TLS_CERT": "a.pem", "CURSUS_TLS_KEY": "a.key"}
    assert load({}, {**home, **services}).tls is None


@pytest.mark.parametrize("name", ["CURSUS_TIMEOUT", "CURSUS_TLS", "CURSUS_TLS_CA", "CURSUS_TLS_SERVER_NAME"])
def test_a_former_name_is_told_the_present_one(home: dict[str, str], name: str) -> None:
    own = name.replace("CURSUS_", "CURSUS_CLI_")
    with pytest.raises(BadConfiguration, match=f"the variable {name} of this command is called {own} now$"):
        load({}, {**home, name: "1"})
    assert load({}, {**home, name: "1", own: "1"}).broker == DEFAULT_BROKER


def test_certificates_that_may_have_been_meant_for_the_command_are_named_too(home: dict[str, str]) -> None:
    with pytest.raises(BadConfiguration, match="if they are meant for it too, CURSUS_TLS_CERT is CURSUS_CLI_TLS_CERT"):
        load({}, {**home, "CURSUS_TLS_CA": "ca.pem", "CURSUS_TLS_CERT": "a.pem"})


def test_toml_is_told_to_be_yaml(home: dict[str, str], tmp_path: Path) -> None:
    former = tmp_path / "cursus" / "config.toml"
    former.write_text('broker = "file:1"')
    with pytest.raises(BadConfiguration, match=r"config\.toml is not read any more: write what it says as YAML into"):
        load({}, home)
    with pytest.raises(BadConfiguration, match="the configuration is YAML now"):
        load({"config": str(former)}, home)
    with pytest.raises(BadConfiguration, match="CURSUS_CLI_CONFIG now, and YAML"):
        load({}, {**home, "CURSUS_CONFIG": str(former)})
    write(home, "broker: file:2")
    assert load({}, home).broker == "file:2"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("broker: [", r"config\.yaml:1 is not YAML"),
        ("broker: a\nbroker: b", r"config\.yaml:2: broker is given twice"),
        ("profiles:\n  one: {broker: a}\n  one: {broker: b}", r"config\.yaml:3: one is given twice"),
        ("just text", "holds no settings"),
        ("- broker", "holds no settings"),
        ("brokr: a", "no setting brokr; there are broker"),
        ("tls:\n  kee: a", r"no setting tls\.kee; there are enabled"),
        ("profiles:\n  one: {brokr: a}", r"no setting profiles\.one\.brokr"),
        ("profiles: [one]", "profiles are names with settings"),
        ("profiles:\n  one: there", "profile one holds no settings"),
        ("profile: [one]", "profile is the name of one of the profiles"),
        ("profile: two\nprofiles:\n  one: {}", "no profile two, which the file asks for; .* has one$"),
        ("broker: 7", "broker is text"),
        ("timeout: 0", "timeout is a number"),
        ("timeout: soon", "timeout is a number"),
        ("tls: true", r"tls is not True, it holds enabled"),
        ("tls:\n  cert: a", "both cert and key"),
        ("tls:\n  enabled: perhaps", r"tls\.enabled is true or false"),
        ("tls:\n  ca: 7", r"tls\.ca is text"),
    ],
)
def test_a_bad_file_is_refused_by_name(home: dict[str, str], text: str, match: str) -> None:
    write(home, text)
    with pytest.raises(BadConfiguration, match=match):
        load({}, home)


def test_a_file_asked_for_by_name_has_to_be_there(home: dict[str, str], tmp_path: Path) -> None:
    for flags, environ in (({"config": str(tmp_path / "no")}, home), ({}, {"CURSUS_CLI_CONFIG": str(tmp_path / "no")})):
        with pytest.raises(BadConfiguration, match="there is no configuration file"):
            load(flags, environ)
