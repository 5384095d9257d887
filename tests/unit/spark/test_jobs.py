"""Jobs that cannot begin: what is wrong is said in a line, and Spark is not started for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cursus_spark.pipeline.app import run

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    "job",
    [
        ["audit", "--topic", "orders"],
        ["archive", "--topics", "orders", "--lake", "lake", "--checkpoint", "checkpoint"],
        [
            "rollup",
            "--topic",
            "orders",
            "--window",
            "1m",
            "--by",
            "key",
            "--to",
            "counts",
            "--checkpoint",
            "checkpoint",
        ],
    ],
    ids=lambda job: job[0],
)
def test_a_broker_that_is_not_there_is_told_before_spark_starts(
    job: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*job, "--broker", NOBODY]) == 1
    told = capsys.readouterr().err
    assert f"no broker answers at {NOBODY}: Connection refused" in told
    assert "starting Spark" not in told
    assert not list(tmp_path.iterdir())


def test_a_setting_of_spark_needs_a_name_and_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--topic", "orders", "--conf", "executor.memory=1g"]) == 2
    assert "'executor.memory=1g' is not spark.KEY=VALUE" in capsys.readouterr().err
