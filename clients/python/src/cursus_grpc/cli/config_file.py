"""The command's own configuration file: YAML, as the services have it, by default `~/.config/cursus/config.yaml`.

broker: broker.example:50051          # several: a:50051,b:50051
timeout: 10                           # seconds a call may take
tls:                                  # its presence switches TLS on; `enabled: false` keeps it off
  ca: ca.pem                          # paths are relative to this file
  cert: client.pem
  key: client.key
  server_name: broker.internal

profile: staging                      # taken where neither --profile nor CURSUS_CLI_PROFILE names one
profiles:
  staging:                            # what it says wins over what stands above
    broker: staging.example:50051
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import yaml

SETTINGS: Final = ("broker", "timeout", "tls", "tls_ca", "tls_cert", "tls_key", "tls_server_name")
"""What can be set, by the names the flags have."""

PATHS: Final = ("tls_ca", "tls_cert", "tls_key")
_TLS_KEYS: Final = ("enabled", "ca", "cert", "key", "server_name")
_KEYS: Final = "broker, timeout and tls with enabled, ca, cert, key, server_name"
_MAX_BYTES: Final = 1024 * 1024


class BadConfiguration(ValueError):
    """A flag, a variable or the file says something that cannot be meant. The message names the place."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What the file says: settings for everybody, and those of each profile."""

    path: Path
    exists: bool
    settings: Mapping[str, object]
    profiles: Mapping[str, Mapping[str, object]]
    profile: str | None
    """The profile to take where nobody names one."""


def locate(flags: Mapping[str, object], environ: Mapping[str, str]) -> tuple[Path, bool]:
    """The configuration file, and whether somebody asked for it by name."""
    named = flags.get("config") or environ.get("CURSUS_CLI_CONFIG")
    if named:
        return Path(str(named)).expanduser(), True
    home = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(home).expanduser() / "cursus" / "config.yaml", False


def read(path: Path, *, required: bool) -> ConfigFile:
    """Raises BadConfiguration, also for a file that has to be there and is not."""
    if path.suffix == ".toml":
        raise BadConfiguration(f"{path}: the configuration is YAML now, with the same names: `broker: HOST:PORT`")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        if required:
            raise BadConfiguration(f"there is no configuration file {path}") from None
        former = path.with_suffix(".toml")
        if former.exists():
            raise BadConfiguration(f"{former} is not read any more: write what it says as YAML into {path}") from None
        return ConfigFile(path, False, {}, {}, None)
    except OSError as error:
        raise BadConfiguration(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MAX_BYTES:
        raise BadConfiguration(f"{path} is larger than {_MAX_BYTES} bytes, which no configuration is")
    return _understood(path, _parsed(path, content))


def _parsed(path: Path, content: bytes) -> dict[object, object]:
    # Here and not above: most starts of the command have no file to read.
    import yaml

    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
        document = yaml.safe_load(content)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadConfiguration(f"{path}{line} is not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadConfiguration(f"{path} is not YAML: {str(error).splitlines()[0]}") from error
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise BadConfiguration(f"{path} holds no settings: they are {_KEYS}, each `name: value`")
    _refuse_repeated(path, node)
    return document


def _refuse_repeated(path: Path, node: yaml.Node | None) -> None:
    """YAML's own reader takes the last of two equal keys, which is a silent loss of the first."""
    if not isinstance(getattr(node, "value", None), list):
        return
    assert node is not None
    seen: set[str] = set()
    for item in node.value:
        if not isinstance(item, tuple):
            return
        key, value = item
        if str(key.value) in seen:
            raise BadConfiguration(f"{path}:{key.start_mark.line + 1}: {key.value} is given twice")
        seen.add(str(key.value))
        _refuse_repeated(path, value)


def _understood(path: Path, document: dict[object, object]) -> ConfigFile:
    profiles = document.pop("profiles", None) or {}
    profile = document.pop("profile", None)
    if not isinstance(profiles, dict):
        raise BadConfiguration(f"{path}: profiles are names with settings, not {profiles!r}")
    if profile is not None and not isinstance(profile, str):
        raise BadConfiguration(f"{path}: profile is the name of one of the profiles, not {profile!r}")
    named: dict[str, Mapping[str, object]] = {}
    for name, content in profiles.items():
        if not isinstance(content, dict):
            raise BadConfiguration(f"{path}: profile {name} holds no settings: they are {_KEYS}")
        named[str(name)] = _settings(path, content, f"profiles.{name}.")
    return ConfigFile(path, True, _settings(path, document, ""), named, profile)


def _settings(path: Path, content: dict[object, object], prefix: str) -> dict[str, object]:
    """The settings by the flags' names, paths made whole."""
    found: dict[str, object] = {}
    for key, value in content.items():
        if key == "tls":
            found.update(_tls_settings(path, value, prefix))
        elif key in ("broker", "timeout"):
            if value is not None:
                found[str(key)] = ",".join(map(str, value)) if isinstance(value, list) and key == "broker" else value
        else:
            raise BadConfiguration(f"{path}: there is no setting {prefix}{key}; there are {_KEYS}")
    for name in PATHS:
        if isinstance(value := found.get(name), str):
            found[name] = str(path.parent / Path(value).expanduser())
    return found


def _tls_settings(path: Path, content: object, prefix: str) -> dict[str, object]:
    if content is None:
        return {"tls": True}
    if not isinstance(content, dict):
        raise BadConfiguration(
            f"{path}: {prefix}tls is not {content!r}, it holds {', '.join(_TLS_KEYS)}: `tls: {{enabled: true}}`"
        )
    for key in content:
        if key not in _TLS_KEYS:
            raise BadConfiguration(f"{path}: there is no setting {prefix}tls.{key}; there are {', '.join(_TLS_KEYS)}")
    found: dict[str, object] = {"tls": content.get("enabled", True)}
    found.update({f"tls_{key}": value for key, value in content.items() if key != "enabled" and value is not None})
    return found
