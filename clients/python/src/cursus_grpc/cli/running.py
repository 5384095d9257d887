"""Running one command to its exit status. Shared by every command line that is built from `session.Group`."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from cursus_grpc.cli.failures import USAGE, Failure, explain
from cursus_grpc.cli.output import say
from cursus_grpc.cli.session import ReaderLeft, Session


def run_command(
    command: click.Group,
    name: str,
    arguments: Sequence[str],
    explained: Callable[[BaseException], Failure] = explain,
) -> int:
    """Run one command and answer its exit status. Whatever goes wrong is told in one line on stderr."""
    session = Session()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character shows its number; that is no reason to stop.
            stream.reconfigure(errors="backslashreplace")
    logging.basicConfig(format="warning: %(message)s", level=logging.WARNING)
    try:
        with _interruptible():
            outcome = command.main(list(arguments), prog_name=name, standalone_mode=False, obj=session)
            sys.stdout.flush()
    except (ReaderLeft, BrokenPipeError):
        # The interpreter must not find out again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        return USAGE
    except (Exception, KeyboardInterrupt) as error:
        return _tell(error, explained(error), session)
    return outcome if isinstance(outcome, int) else 0


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C is a KeyboardInterrupt in here; outside, while the process starts and ends, it just ends the process."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _tell(error: BaseException, failure: Failure, session: Session) -> int:
    if session.debug:
        import traceback

        say("".join(traceback.format_exception(error)).rstrip())
    if session.json:
        say(failure.json())
    else:
        say(f"{click.style('error:', fg='red', bold=True)} {failure.line()}")
    return failure.status
