"""What the processes load that Spark starts to plan a query and to commit a write: each of them delays the query."""

from __future__ import annotations

import subprocess
import sys

import pytest

ROWS = ("numpy", "pyarrow", "pandas")
"""What only rows need. Together they take longer to load than everything else."""

LOADED = """
import sys
{what}
print(*sorted(sys.modules))
"""


def loaded(what: str) -> set[str]:
    command = [sys.executable, "-c", LOADED.format(what=what)]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("import pyspark_cursus", id="find the source"),
        pytest.param("import cursus_spark.writer", id="plan and commit a write"),
        pytest.param("import cursus_spark.batch_reader", id="plan a read"),
        pytest.param("import cursus_spark.stream_reader", id="plan micro-batches"),
    ],
)
def test_processes_without_rows_do_not_load_what_rows_need(what: str) -> None:
    modules = loaded(what)
    assert "cursus_spark.options" in modules
    assert not modules.intersection(ROWS)


def test_what_rows_need_is_loaded_where_they_are() -> None:
    assert "numpy" in loaded("import cursus_spark.publishing")
