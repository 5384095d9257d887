"""`cursus-pipeline compact`: merge the small files of a lake. Needs neither Spark nor the broker."""

from __future__ import annotations

from pathlib import Path

import click

from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.output import json_document, say
from cursus_grpc.cli.session import Command, Session, pass_session
from cursus_spark.pipeline.lake.compaction import TARGET_BYTES, compact_closed
from cursus_spark.pipeline.lake.directory import Directory
from cursus_spark.pipeline.lake.layout import Lake


@click.command(cls=Command)
@click.option("--lake", metavar="DIR", required=True, help="The lake that `archive` writes.")
@click.option(
    "--staging",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where merged files are made: on the lake's file system, but not in it. [.LAKE.compaction beside it]",
)
@click.option(
    "--target-mib",
    metavar="N",
    type=click.IntRange(min=1),
    default=TARGET_BYTES // 1024**2,
    show_default=True,
    help="Files are not merged beyond this size.",
)
@pass_session
def compact(session: Session, lake: str, staging: Path | None, target_mib: int) -> None:
    """Merge the small files of closed hours, those past which every partition is archived.

    Each hour's directory is swapped in one step: no reader sees a record twice or misses one, while an archive runs
    too. Whatever a run that was killed has left is removed by the next one.
    """
    found = Lake(Directory(lake))
    if not found.is_one:
        raise Failed(f"{lake} is no lake: `cursus-pipeline archive` makes one", reason="NO_LAKE")
    say(f"compacting {found.directory.location}")
    done = compact_closed(found, staging, target_mib * 1024**2)
    if session.json:
        json_document({"job": "compact", **done.summary()})
    else:
        click.echo(done.text())
