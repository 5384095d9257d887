"""The tree of commands: imported late, and said to be what it is."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from cursus_grpc.cli.app import cursus
from cursus_grpc.cli.session import Later, LaterGroup


def later(group: click.Group, path: str = "cursus") -> Iterator[tuple[str, Later, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(group, LaterGroup) and name in group.later:
            yield f"{path} {name}", group.later[name], command
        if isinstance(command, click.Group):
            yield from later(command, f"{path} {name}")


FOUND = list(later(cursus))


@pytest.mark.parametrize(("path", "told", "command"), FOUND, ids=[path for path, _, _ in FOUND])
def test_a_list_of_commands_says_what_the_command_says(path: str, told: Later, command: click.Command) -> None:
    assert told.help == (command.help or "").split("\n\n")[0].strip()
    assert command.name == path.split()[-1]


def test_every_command_says_what_it_does() -> None:
    def leaves(group: click.Group) -> Iterator[click.Command]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from leaves(command) if isinstance(command, click.Group) else (command,)

    helps = {command.name: command.help for command in leaves(cursus)}
    assert {"trim-prefix", "remove-member", "apply", "metadata", "show", "profiles"} <= helps.keys()
    assert all(helps.values())
