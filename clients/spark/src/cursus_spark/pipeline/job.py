"""What every job is given: the Spark session it runs in, the broker it speaks to, and how it tells its summary."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click
from pyspark.sql import SparkSession

from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.output import json_document, say
from cursus_grpc.cli.session import Session
from cursus_spark.options import Endpoint, Options

P = ParamSpec("P")
R = TypeVar("R")

FOUND: Final = 3
"""The exit status of a job that found what it was to look for."""

_DEFAULTS: Final[Mapping[str, str]] = {
    # A job shows its own progress, and its times must not depend on where it runs.
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
_SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    # Nobody else has to reach an embedded Spark.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class _SparkFlags:
    master: str | None
    settings: Mapping[str, str]


class Job:
    """One run of a job."""

    def __init__(self, name: str, session: Session, flags: _SparkFlags) -> None:
        self.name = name
        self.session = session
        self._flags = flags
        self._spark: SparkSession | None = None

    @functools.cached_property
    def source_options(self) -> dict[str, str]:
        """How `spark.read.format("cursus")` reaches the broker. Certificates go along as text: executors need not have
        the driver's files. Raises BadConfiguration, OSError."""
        connection = self.session.connection
        options = {"bootstrap.servers": connection.broker}
        if connection.tls is not None:
            options["tls"] = "true"
            for name in ("ca", "cert", "key"):
                if (value := getattr(connection.tls, name)) is not None:
                    options[f"tls.{name}"] = value.decode() if isinstance(value, bytes) else Path(value).read_text()
            if connection.tls.server_name is not None:
                options["tls.serverName"] = connection.tls.server_name
        return options

    @functools.cached_property
    def endpoint(self) -> Endpoint:
        """For `planning.ask`. Raises as `reach`."""
        self.reach()
        return Options(self.source_options, self.source_options).endpoint()

    def reach(self) -> None:
        """Make sure that there is a broker. Raises BrokerUnreachable or TlsFailed, soon: nobody has to wait for a
        mistyped address."""
        self.session.admin().close()

    @property
    def spark(self) -> SparkSession:
        """The session, made when it is first needed: whatever can be refused without Spark is refused before."""
        if self._spark is None:
            self._spark = self._start()
        return self._spark

    def _start(self) -> SparkSession:
        # Whoever submitted the job has chosen where it runs, and with which Python.
        submitted = "PYSPARK_GATEWAY_PORT" in os.environ
        master = self._flags.master or (None if submitted else "local[*]")
        settings = {**_DEFAULTS, **self._flags.settings}
        if master is not None and master.startswith("local"):
            settings = {**_LOCAL_DEFAULTS, **settings}
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if not submitted:
            _check_java()
            say(f"starting Spark, {master}")
        builder = SparkSession.builder.appName(f"cursus-pipeline {self.name}")
        if master is not None:
            builder = builder.master(master)
        for key, value in settings.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("WARN" if self.session.debug else "ERROR")
        return spark

    def shuffle_into(self, tasks: int) -> None:
        """Divide what is shuffled into so many tasks, but at least one a core, unless the user has said how many:
        Spark's 200 are too many for little data, and too few for much."""
        context = self.spark.sparkContext
        if not context.getConf().contains(_SHUFFLE_PARTITIONS):
            self.spark.conf.set(_SHUFFLE_PARTITIONS, str(max(tasks, context.defaultParallelism)))

    def finish(self, summary: Mapping[str, object], text: str) -> None:
        """What the job did: a document for programs, a sentence or a table for people."""
        if self.session.json:
            json_document({"job": self.name, **summary})
        else:
            click.echo(text)

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    found = (Path(home) / "bin" / "java").exists() if home else shutil.which("java") is not None
    if not found:
        where = f"JAVA_HOME is {home}, and there is none" if home else "there is none on PATH, and no JAVA_HOME"
        raise Failed(f"Spark needs Java 17 or newer: {where}", "install one, or set JAVA_HOME", "NO_JAVA")


def takes_job(function: Callable[Concatenate[Job, P], R]) -> Callable[P, R]:
    """Makes a command a job: it is given a `Job` first, and understands where Spark runs."""

    @click.option("--master", metavar="URL", help="Where Spark runs: local[*], spark://HOST:7077, k8s://... [local[*]]")
    @click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark. May be repeated.")
    @functools.wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> R:
        context = click.get_current_context()
        flags = _SparkFlags(_popped(kwargs, "master"), _settings(_popped(kwargs, "conf")))
        job = Job(str(context.info_name), context.ensure_object(Session), flags)
        try:
            return function(job, *args, **kwargs)
        finally:
            job.close()

    return command


def _popped(kwargs: dict[str, Any], name: str) -> Any:
    return kwargs.pop(name)


def _settings(given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise click.BadParameter(f"{one!r} is not spark.KEY=VALUE", param_hint="--conf")
        settings[key] = value
    return settings
