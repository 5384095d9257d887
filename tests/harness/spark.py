"""Spark for tests: whether it can run here, and what every session and driver of a test is started with."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

NEEDED_JAVA: Final = 17

CONFIGURATION: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "120000",
}


def missing() -> str | None:
    """Why Spark cannot run here; None if it can."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return "there is no Java; Spark needs 17 or newer"
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < NEEDED_JAVA:
        return f"Spark needs Java {NEEDED_JAVA} or newer, here is: {told.splitlines()[0] if told else 'none'}"
    return None


def environment(directory: Path) -> dict[str, str]:
    """Of a driver in a process of its own: the test's own Python for its workers, loopback, and nobody's settings."""
    kept = {
        name: os.environ[name] for name in ("PATH", "JAVA_HOME", "HOME", "LANG", "PYTHONPATH") if name in os.environ
    }
    return {
        **kept,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "spark-local"),
    }
