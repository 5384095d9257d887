"""What goes into the archive for executors, and what its `bin/python` does where it is unpacked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from cursus_spark.environment import LAUNCHER, CannotPackage, add_python, closure, package

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def names(*wanted: str) -> set[str]:
    return {one.name.lower() for one in closure(wanted)}


def test_all_that_is_needed_is_found_and_spark_is_left_out() -> None:
    found = names("cursus-spark[local]")
    # Directly, by an extra, and by what is needed itself.
    assert found >= {"cursus-spark", "pyarrow", "numpy", "cursus-grpc", "cursus-proto", "grpcio", "hpack"}
    assert found.isdisjoint({"pyspark", "py4j", "pytest", "cursus-broker"})


def test_further_packages_come_with_theirs() -> None:
    assert {"pandas", "python-dateutil"} <= names("pandas>=2")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("no-such-package", r"no-such-package \(asked for\) is not installed here"),
        ("numpy<1", r"numpy<1 is asked for, and \d+\.\S+ is installed here"),
        ("a b", "'a b' is not the name of a package"),
    ],
)
def test_what_cannot_be_packaged_is_named(tmp_path: Path, wanted: str, message: str) -> None:
    target = tmp_path / "environment.tar.gz"
    target.write_text("the old one")
    with pytest.raises(CannotPackage, match=message):
        package(target, [wanted], report=lambda _: None)
    assert [one.name for one in tmp_path.iterdir()] == [target.name]
    assert target.read_text() == "the old one"


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotPackage, match="No such file or directory"):
        package(tmp_path / "absent" / "environment.tar.gz", report=lambda _: None)


def launcher(directory: Path) -> Path:
    path = directory / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(LAUNCHER)
    path.chmod(0o755)
    return path


def tools(directory: Path, *programs: str) -> str:
    """A PATH with these programs alone."""
    directory.mkdir()
    for program in programs:
        found = subprocess.run(["sh", "-c", f"command -v {program}"], capture_output=True, text=True, check=True)
        (directory / program).symlink_to(found.stdout.strip())
    return str(directory)


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(python: Path, path: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), *arguments], env={"PATH": path, **env}, capture_output=True, text=True, check=False
    )


SHOW = "import json, sys; print(json.dumps([sys.prefix, sys.path]))"


def test_the_executors_own_python_finds_the_packages_first(tmp_path: Path) -> None:
    # Reached through a link, as Spark unpacks it.
    launcher(tmp_path / "unpacked somewhere")
    (tmp_path / "environment").symlink_to("unpacked somewhere")
    path = tools(tmp_path / "tools", "sh", "dirname", "uname")
    script(Path(path, "python3"), f'exec "{sys.executable}" "$@"')
    done = run(tmp_path / "environment" / "bin" / "python", path, "-c", SHOW, PYTHONPATH="/of/spark")
    assert done.returncode == 0, done.stderr
    _, found = json.loads(done.stdout)
    packages = str(tmp_path / "environment" / "lib" / f"python{VERSION}" / "site-packages")
    assert found.index(packages) < found.index("/of/spark")


def test_another_python_is_refused(tmp_path: Path) -> None:
    path = tools(tmp_path / "tools", "sh", "dirname", "uname")
    script(Path(path, "python3"), "echo 3.8")
    done = run(launcher(tmp_path / "environment"), path, "-c", SHOW)
    assert done.returncode == 127
    assert f"is for Python {VERSION}, and neither python{VERSION} nor python3 is one" in done.stderr
    assert "--with-python" in done.stderr


def test_python_itself_can_come_along(tmp_path: Path) -> None:
    archive = tmp_path / "python.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as opened:
        add_python(opened)
    python = launcher(tmp_path / "environment")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "environment", filter="data")
    path = tools(tmp_path / "tools", "sh", "dirname")
    done = run(python, path, "-c", f"import ctypes, hashlib, multiprocessing, socket, ssl, zlib; {SHOW}")
    assert done.returncode == 0, done.stderr
    prefix, found = json.loads(done.stdout)
    home = tmp_path / "environment"
    assert Path(prefix) == home / "python"
    assert all(Path(one).is_relative_to(home) for one in found if one and not one.startswith(os.getcwd()))
