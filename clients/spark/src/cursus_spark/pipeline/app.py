"""The command `cursus-pipeline` as a whole: its jobs, and how every way to end becomes an exit status."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import click
from pyspark.errors import PySparkException

from cursus_grpc.cli.failures import REFUSED, Failure, explain
from cursus_grpc.cli.running import run_command
from cursus_grpc.cli.session import Group
from cursus_spark.data_loss import DataLost
from cursus_spark.options import OptionRefused
from cursus_spark.pipeline import archive, compact, package, replay
from cursus_spark.pipeline.audit.command import audit
from cursus_spark.pipeline.lake.layout import LakeConflict, LakeDamaged
from cursus_spark.pipeline.rollup.command import rollup
from cursus_spark.planning import TopicMissing

_RAISED: Final = re.compile(r"(?!(?:java|org|scala|py4j)\.)(?:\w+\.)+([A-Z]\w*): (.+)")
"""How Python ends a traceback with an exception that is not built in."""


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("cursus-spark"), prog_name="cursus-pipeline")
def pipeline() -> None:
    """Jobs on the topics of a Cursus broker, run by Spark: embedded by default, on a cluster with --master.

    A job ends with status 0 when it is done, 1 when it failed, 2 when it was called wrongly, and 3 when it found what
    it was to look for.
    """


@pipeline.command()
def script() -> None:
    """Print the path of the program to give to spark-submit.

    For example: spark-submit --master spark://HOST:7077 "$(cursus-pipeline script)" archive ...
    """
    click.echo(Path(__file__).with_name("__main__.py"))


pipeline.add_command(archive.archive)
pipeline.add_command(compact.compact)
pipeline.add_command(replay.replay)
pipeline.add_command(package.package)
pipeline.add_command(audit)
pipeline.add_command(rollup)


def run(arguments: Sequence[str]) -> int:
    """Run one job and answer its exit status."""
    return run_command(pipeline, "cursus-pipeline", arguments, _explain)


def _explain(error: BaseException) -> Failure:
    match error:
        case OptionRefused() | TopicMissing() | DataLost() | LakeConflict() | LakeDamaged():
            return Failure(str(error), type(error).__name__, "", REFUSED)
        case PySparkException():
            return Failure(_core(str(error)), "SPARK_FAILED", "run it again with --debug for all of it", REFUSED)
    return explain(error)


def _core(message: str) -> str:
    """What a person needs of an error that went through the JVM and a worker: the last line that names an exception of
    Python, else the first line.

    >>> _core("Job aborted.\\nTraceback:\\n  File ...\\ncursus_spark.data_loss.DataLost: gone\\n")
    'DataLost: gone'
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [found for line in lines if (found := _RAISED.fullmatch(line)) is not None]
    if named:
        return f"{named[-1][1]}: {named[-1][2]}"
    return lines[0] if lines else "Spark gave no reason"
