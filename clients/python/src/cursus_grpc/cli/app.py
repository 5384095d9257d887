"""The command `cursus` as a whole: its nouns and verbs, and how every way to end becomes an exit status."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

import click

from cursus_grpc.cli import bench, completion, consume, doctor, groups, provisioning, publish, segments, top, topics
from cursus_grpc.cli.failures import USAGE, explain
from cursus_grpc.cli.output import say
from cursus_grpc.cli.session import Group, ReaderLeft, Session


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
    """Run one command and answer its exit status. Whatever goes wrong is told in one line on stderr."""
    session = Session()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character shows its number; that is no reason to stop.
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)
    try:
        outcome = cursus.main(list(arguments), prog_name="cursus", standalone_mode=False, obj=session)
        sys.stdout.flush()
    except (ReaderLeft, BrokenPipeError):
        # The interpreter must not find out again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        return USAGE
    except (Exception, KeyboardInterrupt) as error:
        return _tell(error, session)
    return outcome if isinstance(outcome, int) else 0


def _tell(error: BaseException, session: Session) -> int:
    failure = explain(error)
    if session.debug:
        say("".join(traceback.format_exception(error)).rstrip())
    if session.json:
        say(failure.json())
    else:
        say(f"{click.style('error:', fg='red', bold=True)} {failure.line()}")
    return failure.status
