"""Shell completion: of commands and options by click, of topics and groups by asking the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

import cursus_grpc
from cursus_grpc.cli.connection import BadConfiguration
from cursus_grpc.cli.session import CLIENT_ID, Command, Session
from cursus_grpc.errors import CursusError

if TYPE_CHECKING:
    from cursus_grpc import Admin

# Somebody waits with a finger on the tab key.
_TIMEOUT_S: Final = 1.0
_MAX_ITEMS: Final = 200

_INSTALL: Final = {
    "bash": 'eval "$(cursus completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(cursus completion zsh)"   in ~/.zshrc',
    "fish": "cursus completion fish > ~/.config/fish/completions/cursus.fish",
}


@click.command(cls=Command, epilog="\b\nTo install:\n" + "\n".join(f"  {line}" for line in _INSTALL.values()))
@click.argument("shell", type=click.Choice(sorted(_INSTALL)))
def completion(shell: str) -> None:
    """Print the completion script for a shell."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.Command("cursus"), {}, "cursus", "_CURSUS_COMPLETE").source())


def topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of topics that begin like this."""
    return _offered(context, incomplete, lambda admin: [topic.name for topic in admin.list_topics()])


def groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of groups that begin like this."""
    return _offered(context, incomplete, lambda admin: [group.name for group in admin.list_groups()])


def members(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the members of the group that was named before."""
    group = context.params.get("name")
    if not isinstance(group, str):
        return []
    return _offered(context, incomplete, lambda admin: [one.member_id for one in admin.describe_group(group).members])


def _offered(context: click.Context, incomplete: str, ask: Callable[[Admin], list[str]]) -> list[CompletionItem]:
    """Without a broker there is nothing to offer, and a shell's prompt is no place to say why."""
    try:
        found = context.ensure_object(Session).connection
        with cursus_grpc.Admin(found.broker, tls=found.tls, request_timeout_s=_TIMEOUT_S, client_id=CLIENT_ID) as admin:
            admin.connect(_TIMEOUT_S)
            names = ask(admin)
    except (CursusError, BadConfiguration, ValueError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MAX_ITEMS]
