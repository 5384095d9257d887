"""`cursus config …`: what the command would do, and who said so. It asks no broker."""

from __future__ import annotations

import click

from cursus_grpc.cli.connection import DEFAULT_BROKER, VARIABLES, Connection, shown
from cursus_grpc.cli.output import Cell, column, json_document, say, table
from cursus_grpc.cli.session import Group, Session, pass_session


@click.group(cls=Group)
def config() -> None:
    """Show the settings in force and where each comes from."""


@config.command()
@pass_session
def show(session: Session) -> None:
    """Show every setting, its value, and the flag, variable, profile or file it comes from."""
    found = session.connection
    if session.json:
        json_document(
            {
                "file": str(found.file.path),
                "file_exists": found.file.exists,
                "profile": found.profile,
                "settings": {
                    shown(name): {"value": _value(found, name), "origin": _origin(found, name)} for name in VARIABLES
                },
            }
        )
        return
    table(
        [column("SETTING"), column("VALUE"), column("FROM"), column("VARIABLE")],
        [
            [shown(name), _text(_value(found, name)), _origin(found, name), variable]
            for name, variable in VARIABLES.items()
        ],
    )
    state = "" if found.file.exists else " (not there)"
    say(f"file {found.file.path}{state}, profile {found.profile or 'none'}")


@config.command()
@pass_session
def profiles(session: Session) -> None:
    """List the profiles in the configuration file; the one in use has a star."""
    found = session.connection
    if session.json:
        json_document(
            {
                "file": str(found.file.path),
                "profile": found.profile,
                "profiles": {
                    name: {shown(key): value for key, value in settings.items()}
                    for name, settings in found.file.profiles.items()
                },
            }
        )
        return
    if not found.file.profiles:
        say(f"there are no profiles in {found.file.path}; docs/cli.md shows how to write one")
        return
    table(
        [column(""), column("PROFILE"), column("BROKER"), column("TLS")],
        [
            [
                "*" if name == found.profile else " ",
                name,
                str(settings.get("broker", found.file.settings.get("broker", DEFAULT_BROKER))),
                _text(settings.get("tls", found.file.settings.get("tls", False))),
            ]
            for name, settings in sorted(found.file.profiles.items())
        ],
    )


def _value(found: Connection, name: str) -> object:
    """What is in force. TLS is on or off, also where nobody said so."""
    return found.tls is not None if name == "tls" else found.values.get(name)


def _origin(found: Connection, name: str) -> str:
    if name == "tls" and name not in found.origins and found.tls is not None:
        said = next(other for other in VARIABLES if other.startswith("tls_") and other in found.origins)
        return f"{shown(said)} is given"
    return found.origins.get(name, "default")


def _text(value: object) -> Cell:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
