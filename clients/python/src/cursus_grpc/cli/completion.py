"""Shell completion: of commands and options by click, of topics and groups by asking the broker."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from cursus_grpc import Admin, CursusError
from cursus_grpc.cli.connection import BadConfiguration
from cursus_grpc.cli.session import CLIENT_ID, Command, Session

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
    return _items(context, incomplete, groups=False)


def groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of groups that begin like this."""
    return _items(context, incomplete, groups=True)


def _items(context: click.Context, incomplete: str, *, groups: bool) -> list[CompletionItem]:
    """Without a broker there is nothing to offer, and a shell's prompt is no place to say why."""
    try:
        found = context.ensure_object(Session).connection
        with Admin(found.broker, tls=found.tls, request_timeout_s=_TIMEOUT_S, client_id=CLIENT_ID) as admin:
            admin.connect(_TIMEOUT_S)
            names = [group.name for group in admin.list_groups()] if groups else [t.name for t in admin.list_topics()]
    except (CursusError, BadConfiguration, ValueError, OSError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MAX_ITEMS]
