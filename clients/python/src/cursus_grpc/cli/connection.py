"""Where the broker is and how to speak to it: flags over environment over a profile over the configuration file over
defaults.

The variables are the command's own, with the prefix `CURSUS_CLI_`: in the shell of a broker or gateway, `CURSUS_CONFIG`
and `CURSUS_TLS_CERT` are the service's. `CURSUS_BROKER` is everybody's, because it means the same to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cursus_grpc.cli import config_file
from cursus_grpc.cli.config_file import BadConfiguration, ConfigFile
from cursus_grpc.types import TLS

__all__ = ["DEFAULT_BROKER", "DEFAULT_TIMEOUT_S", "VARIABLES", "BadConfiguration", "Connection", "load", "shown"]

DEFAULT_BROKER: Final = "localhost:50051"
DEFAULT_TIMEOUT_S: Final = 10.0

VARIABLES: Final = {
    "broker": "CURSUS_BROKER",
    "timeout": "CURSUS_CLI_TIMEOUT",
    "tls": "CURSUS_CLI_TLS",
    "tls_ca": "CURSUS_CLI_TLS_CA",
    "tls_cert": "CURSUS_CLI_TLS_CERT",
    "tls_key": "CURSUS_CLI_TLS_KEY",
    "tls_server_name": "CURSUS_CLI_TLS_SERVER_NAME",
}
_OWN: Final = "CURSUS_CLI_"

_FORMER: Final = ("CURSUS_TIMEOUT", "CURSUS_TLS", "CURSUS_TLS_CA", "CURSUS_TLS_SERVER_NAME")
"""What the variables were called before. No service reads them, so whoever sets one means this command."""

SERVICES: Final = ("CURSUS_TLS_CERT", "CURSUS_TLS_KEY")
"""Were read before too, and are the services': to be left alone, and remembered where TLS fails."""

_SWITCHES: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the broker. `values` and `origins` say for each setting what was said, and where."""

    broker: str
    tls: TLS | None
    timeout_s: float
    values: Mapping[str, object]
    origins: Mapping[str, str]
    profile: str | None
    file: ConfigFile

    def is_default(self, setting: str) -> bool:
        return self.origins[setting] == "default"


def load(flags: Mapping[str, object], environ: Mapping[str, str]) -> Connection:
    """Merge everything there is. `flags` has the names of the variables above, `config` and `profile`. Raises
    BadConfiguration."""
    _refuse_former(environ)
    path, asked_for = config_file.locate(flags, environ)
    file = config_file.read(path, required=asked_for)
    profile = _profile(file, flags, environ)
    values: dict[str, object] = {"broker": DEFAULT_BROKER, "timeout": DEFAULT_TIMEOUT_S}
    origins = dict.fromkeys(values, "default")

    def take(found: Mapping[str, object], origin: Mapping[str, str]) -> None:
        values.update(found)
        origins.update(origin)

    take(file.settings, dict.fromkeys(file.settings, f"file {path}"))
    if profile is not None:
        of_profile = file.profiles[profile]
        take(of_profile, dict.fromkeys(of_profile, f"profile {profile} in {path}"))
    variables = {name: variable for name, variable in VARIABLES.items() if environ.get(variable)}
    take(
        {name: environ[variable] for name, variable in variables.items()},
        {name: f"variable {variable}" for name, variable in variables.items()},
    )
    given = {name: flags[name] for name in VARIABLES if flags.get(name) is not None}
    take(given, {name: f"flag {_flag(name, value)}" for name, value in given.items()})
    return Connection(
        _text(values, "broker"), _tls(values), _timeout_s(values["timeout"]), values, origins, profile, file
    )


def shown(setting: str) -> str:
    """A setting as the file calls it."""
    return "tls.enabled" if setting == "tls" else setting.replace("tls_", "tls.", 1)


def _flag(name: str, value: object) -> str:
    return "--no-tls" if name == "tls" and value is False else f"--{name.replace('_', '-')}"


def _refuse_former(environ: Mapping[str, str]) -> None:
    """Say what the variables are called now: a setting that is dropped in silence is found out too late."""
    for name in _FORMER:
        own = name.replace("CURSUS_", _OWN, 1)
        if environ.get(name) and not environ.get(own):
            also = [f"{other} is {other.replace('CURSUS_', _OWN, 1)}" for other in SERVICES if environ.get(other)]
            others = f"; if they are meant for it too, {', '.join(also)}" if also else ""
            raise BadConfiguration(f"the variable {name} of this command is called {own} now{others}")
    if environ.get("CURSUS_CONFIG", "").endswith(".toml") and not environ.get("CURSUS_CLI_CONFIG"):
        raise BadConfiguration(
            "CURSUS_CONFIG names the file of cursus-broker and cursus-gateway; that of this command is in"
            " CURSUS_CLI_CONFIG now, and YAML"
        )


def _profile(file: ConfigFile, flags: Mapping[str, object], environ: Mapping[str, str]) -> str | None:
    """The profile that counts. Raises BadConfiguration if the file has none of that name."""
    for place, name in (
        ("--profile", flags.get("profile")),
        ("CURSUS_CLI_PROFILE", environ.get("CURSUS_CLI_PROFILE")),
        ("the file", file.profile),
    ):
        if name:
            if str(name) not in file.profiles:
                there = f"{file.path} has {', '.join(sorted(file.profiles)) or 'none'}"
                where = there if file.exists else f"there is no file {file.path}"
                raise BadConfiguration(f"there is no profile {name}, which {place} asks for; {where}")
            return str(name)
    return None


def _tls(values: Mapping[str, object]) -> TLS | None:
    """TLS is on if anything is said about it and nothing switches it off."""
    if "tls" in values and not _switch(values["tls"]):
        return None
    said = {
        name: _text(values, f"tls_{name}") for name in ("ca", "cert", "key", "server_name") if f"tls_{name}" in values
    }
    if not said and "tls" not in values:
        return None
    try:
        return TLS(**{name: _expanded(value) if name != "server_name" else value for name, value in said.items()})
    except ValueError as error:
        raise BadConfiguration(f"tls: {error}") from error


def _expanded(path: str) -> str:
    return str(Path(path).expanduser())


def _switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    found = _SWITCHES.get(str(value).lower())
    if found is None:
        raise BadConfiguration(f"tls.enabled is true or false, not {value!r}")
    return found


def _text(values: Mapping[str, object], name: str) -> str:
    value = values[name]
    if not isinstance(value, str) or not value:
        raise BadConfiguration(f"{shown(name)} is text, not {value!r}")
    return value


def _timeout_s(value: object) -> float:
    try:
        timeout_s = float(str(value))
    except ValueError:
        timeout_s = -1.0
    if not 0 < timeout_s <= 86_400:
        raise BadConfiguration(f"timeout is a number of seconds between 0 and 86400, not {value!r}")
    return timeout_s
