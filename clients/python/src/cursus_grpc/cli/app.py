"""The command `cursus` as a whole: its nouns and verbs."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version

import click

from cursus_grpc.cli import bench, completion, consume, doctor, groups, provisioning, publish, segments, top, topics
from cursus_grpc.cli.running import run_command
from cursus_grpc.cli.session import Group


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("cursus-grpc"), prog_name="cursus")
def cursus() -> None:
    """Topics, records and consumer groups of a Cursus broker."""


cursus.add_command(topics.topic)
topics.topic.add_command(provisioning.apply)
cursus.add_command(publish.publish)
cursus.add_command(consume.consume)
cursus.add_command(groups.group)
cursus.add_command(top.top)
cursus.add_command(bench.bench)
cursus.add_command(doctor.doctor)
cursus.add_command(segments.segments)
cursus.add_command(completion.completion)


def run(arguments: Sequence[str]) -> int:
    """Run one command and answer its exit status."""
    return run_command(cursus, "cursus", arguments)
