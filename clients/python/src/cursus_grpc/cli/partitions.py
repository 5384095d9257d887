"""`cursus partition`: what an operator does to one partition."""

from __future__ import annotations

import click

from cursus_grpc.cli import completion
from cursus_grpc.cli.output import json_document, plural, say
from cursus_grpc.cli.session import Group, Session, pass_session


@click.group(cls=Group)
def partition() -> None:
    """Put one partition right."""


@partition.command(epilog="Example: cursus partition reopen orders 3")
@click.argument("topic", shell_complete=completion.topics)
@click.argument("number", metavar="PARTITION", type=click.IntRange(min=0))
@pass_session
def reopen(session: Session, topic: str, number: int) -> None:
    """Open a partition anew, without a restart of the broker.

    For a partition that takes no more because its disk refused a sync, once the disk is well again, and for one that
    was damaged, once its files are restored. What was in doubt is written anew and synced, or cut.
    """
    with session.admin() as admin:
        reopened, found = admin.reopen_partition(topic, number)
    cut = found.recovery_cut if reopened else None
    if session.json:
        json_document(
            {
                "topic": topic,
                "partition": number,
                "reopened": reopened,
                "earliest_offset": found.earliest_offset,
                "next_offset": found.next_offset,
                "cut_records": cut.record_count if cut else 0,
            }
        )
    elif not reopened:
        say(f"partition {number} of {topic} is well: there was nothing to do")
    elif cut:
        say(
            f"partition {number} of {topic} is served again, without {plural(cut.record_count, 'record')} that the disk"
            f" did not keep; it goes on from offset {found.next_offset}"
        )
    else:
        say(f"partition {number} of {topic} is served again, complete up to offset {found.next_offset}")
