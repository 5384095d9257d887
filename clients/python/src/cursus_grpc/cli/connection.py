"""Where the broker is and how to speak to it: flags over environment over the configuration file over defaults.

The file is TOML, by default `~/.config/cursus/config.toml`:

    broker = "broker.example:50051"   # several: "a:50051,b:50051"
    timeout = 10                          # seconds a call may take

    [tls]                                 # its presence switches TLS on; `enabled = false` keeps it off
    ca = "ca.pem"                         # paths are relative to this file
    cert = "client.pem"
    key = "client.key"
    server_name = "broker.internal"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cursus_grpc import TLS

DEFAULT_BROKER: Final = "localhost:50051"
DEFAULT_TIMEOUT_S: Final = 10.0

_VARIABLES: Final = {
    "broker": "CURSUS_BROKER",
    "timeout": "CURSUS_TIMEOUT",
    "tls": "CURSUS_TLS",
    "tls_ca": "CURSUS_TLS_CA",
    "tls_cert": "CURSUS_TLS_CERT",
    "tls_key": "CURSUS_TLS_KEY",
    "tls_server_name": "CURSUS_TLS_SERVER_NAME",
}
_PATHS: Final = ("tls_ca", "tls_cert", "tls_key")
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


class BadConfiguration(ValueError):
    """A flag, a variable or the file says something that cannot be meant. The message names the place."""


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the broker. `origins` says for each setting where it comes from."""

    broker: str
    tls: TLS | None
    timeout_s: float
    origins: Mapping[str, str]


def load(flags: Mapping[str, object], environ: Mapping[str, str]) -> Connection:
    """Merge everything there is. `flags` has the keys of the variables above and `config`. Raises BadConfiguration."""
    values: dict[str, object] = {"broker": DEFAULT_BROKER, "timeout": DEFAULT_TIMEOUT_S}
    origins = dict.fromkeys(values, "default")
    for found, origin in (
        _from_file(flags, environ),
        ({name: environ[variable] for name, variable in _VARIABLES.items() if environ.get(variable)}, "environment"),
        ({name: flags[name] for name in _VARIABLES if flags.get(name) is not None}, "flag"),
    ):
        values.update(found)
        origins.update(dict.fromkeys(found, origin))
    return Connection(_text(values, "broker"), _tls(values), _timeout_s(values["timeout"]), origins)


def file_path(flags: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Path, bool]:
    """The configuration file, and whether somebody asked for it by name."""
    named = flags.get("config") or environ.get("CURSUS_CONFIG")
    if named:
        return Path(str(named)).expanduser(), True
    home = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "cursus" / "config.toml", False


def _from_file(flags: Mapping[str, object], environ: Mapping[str, str]) -> tuple[dict[str, object], str]:
    path, asked_for = file_path(flags, environ)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if asked_for:
            raise BadConfiguration(f"there is no configuration file {path}") from None
        return {}, str(path)
    except OSError as error:
        raise BadConfiguration(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path} is not TOML: {error}") from error
    values: dict[str, object] = {}
    if "tls" in content:
        tls = content.pop("tls")
        if not isinstance(tls, dict):
            raise BadConfiguration(f"{path}: tls is a table, [tls]")
        values["tls"] = tls.pop("enabled", True)
        values.update({f"tls_{name}": value for name, value in tls.items()})
    values.update(content)
    for name in values:
        if name not in _VARIABLES:
            shown = f"tls.{name.removeprefix('tls_')}" if name.startswith("tls_") else name
            raise BadConfiguration(
                f"{path}: there is no setting {shown!r}; there are broker, timeout and [tls]"
                " with enabled, ca, cert, key, server_name"
            )
    for name in _PATHS:
        if name in values:
            values[name] = str(path.parent / Path(_text(values, name)).expanduser())
    return values, str(path)


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
        raise BadConfiguration(f"tls is true or false, not {value!r}")
    return found


def _text(values: Mapping[str, object], name: str) -> str:
    value = values[name]
    if not isinstance(value, str) or not value:
        raise BadConfiguration(f"{name.replace('_', '.', 1)} is text, not {value!r}")
    return value


def _timeout_s(value: object) -> float:
    try:
        timeout_s = float(str(value))
    except ValueError:
        timeout_s = -1.0
    if not 0 < timeout_s <= 86_400:
        raise BadConfiguration(f"timeout is a number of seconds between 0 and 86400, not {value!r}")
    return timeout_s
