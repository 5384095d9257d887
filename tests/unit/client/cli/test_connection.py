"""Flags over environment over file over defaults, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from cursus_grpc import TLS
from cursus_grpc.cli.connection import DEFAULT_BROKER, BadConfiguration, load


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose configuration file is `cursus/config.toml` in the temporary directory."""
    (tmp_path / "cursus").mkdir()
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def write(home: dict[str, str], text: str) -> Path:
    path = Path(home["XDG_CONFIG_HOME"]) / "cursus" / "config.toml"
    path.write_text(text)
    return path


def test_without_anything_it_is_the_local_broker_in_the_clear(home: dict[str, str]) -> None:
    found = load({}, home)
    assert (found.broker, found.tls, found.timeout_s) == (DEFAULT_BROKER, None, 10.0)
    assert found.origins["broker"] == "default"


def test_flags_win_over_the_environment_and_that_over_the_file(home: dict[str, str]) -> None:
    path = write(home, 'broker = "file:1"\ntimeout = 3')
    assert load({}, home).broker == "file:1"
    assert load({}, home).origins["broker"] == str(path)
    home["CURSUS_BROKER"] = "variable:2"
    assert load({}, home).broker == "variable:2"
    found = load({"broker": "flag:3"}, home)
    assert (found.broker, found.timeout_s) == ("flag:3", 3.0)
    assert found.origins == {"broker": "flag", "timeout": str(path)}


def test_an_empty_variable_says_nothing(home: dict[str, str]) -> None:
    assert load({}, {**home, "CURSUS_BROKER": "", "CURSUS_TLS_CA": ""}).broker == DEFAULT_BROKER


def test_paths_in_the_file_are_relative_to_it(home: dict[str, str]) -> None:
    path = write(home, '[tls]\nca = "ca.pem"\nserver_name = "b"')
    assert load({}, home).tls == TLS(ca=str(path.parent / "ca.pem"), server_name="b")


def test_anything_said_about_tls_switches_it_on_unless_it_is_switched_off(home: dict[str, str]) -> None:
    assert load({"tls": True}, home).tls == TLS()
    assert load({}, {**home, "CURSUS_TLS_CA": "x.pem"}).tls == TLS(ca="x.pem")
    assert load({"tls": False}, {**home, "CURSUS_TLS_CA": "x.pem"}).tls is None
    assert load({}, {**home, "CURSUS_TLS": "off", "CURSUS_TLS_CA": "x.pem"}).tls is None
    write(home, "[tls]")
    assert load({}, home).tls == TLS()
    write(home, '[tls]\nenabled = false\nca = "ca.pem"')
    assert load({}, home).tls is None


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("broker = ", "is not TOML"),
        ("brokr = 'a'", "no setting 'brokr'"),
        ("[tls]\nkee = 'a'", "no setting 'tls.kee'"),
        ("broker = 7", "broker is text"),
        ("timeout = 0", "timeout is a number"),
        ("timeout = 'soon'", "timeout is a number"),
        ("tls = true", "tls is a table"),
        ("[tls]\ncert = 'a'", "both cert and key"),
        ("[tls]\nenabled = 'perhaps'", "true or false"),
    ],
)
def test_a_bad_file_is_refused_by_name(home: dict[str, str], text: str, match: str) -> None:
    write(home, text)
    with pytest.raises(BadConfiguration, match=match):
        load({}, home)


def test_a_file_asked_for_by_name_has_to_be_there(home: dict[str, str], tmp_path: Path) -> None:
    for flags, environ in (({"config": str(tmp_path / "no")}, home), ({}, {"CURSUS_CONFIG": str(tmp_path / "no")})):
        with pytest.raises(BadConfiguration, match="there is no configuration file"):
            load(flags, environ)
