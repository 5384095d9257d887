"""Asking before something is done that cannot be undone."""

from __future__ import annotations

import sys

import click

from cursus_grpc.cli.failures import Failed


def confirm(question: str, *, yes: bool, ask: bool = True) -> None:
    """Return if the user agrees or has agreed with `--yes`. Raises Failed if the answer is no or nobody can be asked.

    The question goes to stderr, so that stdout stays data.
    """
    if yes:
        return
    if not ask or not sys.stdin.isatty():
        raise Failed("nothing was done", "add --yes to do it without being asked", "NOT_CONFIRMED")
    if not click.confirm(question, err=True):
        raise Failed("nothing was done", reason="NOT_CONFIRMED")
