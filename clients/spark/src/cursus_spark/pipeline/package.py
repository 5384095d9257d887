"""`cursus-pipeline package`: the archive that executors without our packages are given."""

from __future__ import annotations

import platform
from pathlib import Path

import click

from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.output import json_document, plural, say, size
from cursus_grpc.cli.session import Command, Session
from cursus_spark import environment


@click.command(cls=Command)
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("packages", nargs=-1)
@click.option("--with-python", is_flag=True, help="Put Python itself in too, for executors with another one or none.")
@click.pass_obj
def package(session: Session, archive: Path, packages: tuple[str, ...], with_python: bool) -> None:
    """Make an environment for executors that have none of our packages.

    ARCHIVE, a .tar.gz, then holds cursus-spark and what it depends on, and PACKAGES that the job needs besides, as they
    are installed here. Unpack it for the driver, and give it to the executors:

    \b
      mkdir environment && tar -xzf ARCHIVE -C environment
      export PYSPARK_PYTHON=./environment/bin/python
      spark-submit --archives ARCHIVE#environment ...
    """
    if not archive.name.endswith((".tar.gz", ".tgz")):
        # Spark tells by the name how to unpack it.
        raise click.BadParameter("must end in .tar.gz or .tgz", param_hint="ARCHIVE")
    try:
        made = environment.package(
            archive, packages, with_python=with_python, report=lambda what: say(f"adding {what}")
        )
    except environment.CannotPackage as error:
        raise Failed(str(error), reason="CANNOT_PACKAGE") from error
    if session.json:
        json_document(
            {"archive": str(archive), "bytes": made.size_bytes, "python": made.python, "packages": [*made.packages]}
        )
        return
    machine = f"Python {made.python}, {platform.system()}, {platform.machine()}"
    click.echo(f"{archive}: {plural(len(made.packages), 'package')} for {machine}; {size(made.size_bytes)}")
