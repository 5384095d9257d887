"""The command `cursus` as a whole: its nouns and verbs, each imported when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from cursus_grpc.cli.running import run_command
from cursus_grpc.cli.session import Later, LaterGroup

_HERE: Final = "cursus_grpc.cli"

COMMANDS: Final = {
    "bench": Later(f"{_HERE}.bench:bench", "Measure publishing, consuming and delivery."),
    "completion": Later(f"{_HERE}.completion:completion", "Print the completion script for a shell."),
    "config": Later(f"{_HERE}.configuration:config", "Show the settings in force and where each comes from."),
    "consume": Later(f"{_HERE}.consume:consume", "Print the records of topics."),
    "doctor": Later(f"{_HERE}.doctor:doctor", "Check connection, health, disk, clock and versions."),
    "group": Later(f"{_HERE}.groups:group", "Look at consumer groups, move them, delete them."),
    "metadata": Later(f"{_HERE}.metadata:metadata", "List the brokers, topics, partitions and their leaders."),
    "partition": Later(f"{_HERE}.partitions:partition", "Put one partition right."),
    "publish": Later(f"{_HERE}.publish:publish", "Publish lines from stdin, or what FILES hold (- is stdin)."),
    "segments": Later(f"{_HERE}.segments:segments", "Look into segment files, without a broker."),
    "top": Later(f"{_HERE}.top:top", "Show rates, lag and sizes of all topics, live."),
    "topic": Later(f"{_HERE}.topics:topic", "Make, look at, change and delete topics."),
}
"""A test compares the sentences with what the commands say themselves."""


@click.group(
    cls=LaterGroup,
    later=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="cursus-grpc", prog_name="cursus")
def cursus() -> None:
    """Topics, records and consumer groups of a Cursus broker."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and answer its exit status."""
    return run_command(cursus, "cursus", arguments)
