"""The Dockerfiles, read: rules that no build would complain about. `make test-images` builds and runs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.harness.containers import instructions
from tools.build_images import IMAGES, Image

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = {"cursus-broker": "broker", "cursus-gateway": "gateway", "cursus-cli": "cli", "cursus-spark": "spark"}
NEEDED_LABELS: Final = ("title", "description", "licenses", "version", "revision")


@pytest.fixture(params=IMAGES, ids=lambda image: str(image.name))
def image(request: pytest.FixtureRequest) -> Image:
    found: Image = request.param
    return found


def _stages(image: Image) -> list[list[tuple[str, str]]]:
    stages: list[list[tuple[str, str]]] = [[]]
    for name, rest in instructions(image.dockerfile):
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, rest))
    return stages


def test_both_stages_stand_on_one_base_that_can_be_chosen_and_is_pinned(image: Image) -> None:
    before, *stages = _stages(image)
    name, default = before[0][1].split("=", 1)
    assert (len(before), before[0][0], name) == (1, "ARG", "BASE")
    assert re.search(r":\d+\.\d+\.\d+", default), f"{default} moves"
    assert [stage[0] for stage in stages] == [("FROM", "${BASE} AS build"), ("FROM", "${BASE}")]


def test_the_last_stage_copies_and_never_runs(image: Image) -> None:
    """Whatever would be run there could leave something behind; so nothing that builds is in the image."""
    last = _stages(image)[-1]
    assert {name for name, _ in last} <= {
        *("FROM", "ARG", "LABEL", "COPY", "ENV", "USER", "WORKDIR"),
        *("VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT"),
    }
    copied = [rest for name, rest in last if name == "COPY"]
    assert all("--from=build" in rest for rest in copied), copied
    assert not any(rest.split()[-1].startswith(("/build", "/wheels", "/src")) for rest in copied)


def test_it_runs_as_a_number_that_is_not_root(image: Image) -> None:
    """A number: Kubernetes cannot tell whether a name is root, and refuses it with runAsNonRoot."""
    assert [rest for name, rest in _stages(image)[-1] if name == "USER"] == ["10001:10001"]


def test_labels_and_a_word_about_health(image: Image) -> None:
    last = dict(_stages(image)[-1])
    for label in NEEDED_LABELS:
        assert f"org.opencontainers.image.{label}=" in last["LABEL"]
    assert f'title="{image.name}"' in last["LABEL"]
    assert last["HEALTHCHECK"] == "NONE" or '"cursus_service.probe"' in last["HEALTHCHECK"]
    assert last["ENTRYPOINT"].startswith("[")


def test_everything_installed_is_pinned_with_its_hash(image: Image) -> None:
    runs = " ".join(rest for name, rest in _stages(image)[1] if name == "RUN")
    installs = [part.strip() for part in runs.split("&&") if "install --" in part and "/pip" in part]
    assert len(installs) == 3
    for command in installs:
        assert "--require-hashes --only-binary :all: -r deploy/locks/" in command or "--no-deps --no-index" in command
    assert f"deploy/locks/{LOCKS[image.name]}.lock" in runs
    assert "apt" not in runs


def test_every_copied_path_is_in_the_build_context(image: Image) -> None:
    allowed = [
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")
    ]
    for name, rest in _stages(image)[1]:
        if name != "COPY":
            continue
        for source in rest.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(
                source == path or source.startswith(f"{path}/") or path.startswith(f"{source}/") for path in allowed
            )


def _pins(path: Path) -> dict[str, str]:
    """What each requirement line says, with its hashes; the comments that tell where it comes from are left out."""
    text = "\n".join(line for line in path.read_text(encoding="utf-8").splitlines() if "#" not in line)
    entries = re.split(r"\n(?=\S)", text)
    return {entry.split(" \\\n")[0].replace(" \\", ""): entry for entry in entries if entry.strip()}


@pytest.mark.parametrize("lock", ["build", *LOCKS.values()])
def test_the_lock_of_an_image_is_a_part_of_the_one_lock(lock: str) -> None:
    """Same versions, same hashes; `make lock` derives it."""
    everything = _pins(ROOT / "requirements.lock")
    part = _pins(ROOT / "deploy/locks" / f"{lock}.lock")
    versions = {
        re.split(r" ;", line)[0]: set(re.findall("sha256:[0-9a-f]+", entry)) for line, entry in everything.items()
    }
    for line, entry in part.items():
        assert set(re.findall("sha256:[0-9a-f]+", entry)) == versions.get(re.split(r" ;", line)[0]), line
    assert not re.search(r"https?://|--index|--find-links", (ROOT / "deploy/locks" / f"{lock}.lock").read_text())


@pytest.mark.parametrize(
    ("lock", "absent"),
    [
        ("broker", ("numpy", "click", "rich", "pyspark", "pyarrow", "pytest", "hatchling", "cryptography")),
        ("gateway", ("click", "rich", "pyspark", "pyarrow", "xxhash", "google-re2", "pytest", "hatchling")),
        ("cli", ("numpy", "pyspark", "pyarrow", "prometheus-client", "structlog", "pytest", "hatchling")),
        ("spark", ("pyspark", "prometheus-client", "structlog", "pytest", "hatchling")),
    ],
)
def test_an_image_gets_only_what_it_needs(lock: str, absent: tuple[str, ...]) -> None:
    installed = {line.split("==")[0] for line in _pins(ROOT / "deploy/locks" / f"{lock}.lock")}
    assert installed.isdisjoint(absent)
    assert {"grpcio", "protobuf"} <= installed
