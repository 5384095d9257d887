"""Builds the images with docker, podman or buildah, whichever is there, and pushes them where asked.

`make images` runs it. The tag is the version of the distributions; the revision is git's.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
ENGINES: Final = ("docker", "podman", "buildah")


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    directory: str
    spark: bool = False
    """Whether its base is one with Spark."""

    @property
    def dockerfile(self) -> Path:
        return ROOT / self.directory / "Dockerfile"


IMAGES: Final = (
    Image("cursus-broker", "services/broker"),
    Image("cursus-gateway", "services/gateway"),
    Image("cursus-cli", "clients/python"),
    Image("cursus-spark", "clients/spark", spark=True),
)


def version() -> str:
    project = tomllib.loads((ROOT / "services/broker/pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def revision() -> str:
    """The commit the checkout is at; `unknown` outside a repository."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip() or "unknown"


def build_command(engine: str, image: Image, tag: str, base: str | None, network: str | None) -> list[str]:
    """The command that builds an image. Format docker where there is a choice: the other one has no health command."""
    arguments = [engine, "build", "--file", str(image.dockerfile), "--tag", tag]
    if engine != "docker":
        arguments += ["--format", "docker"]
    if network is not None:
        arguments += ["--network", network]
    values = {"VERSION": version(), "REVISION": revision(), **({"BASE": base} if base else {})}
    for name, value in values.items():
        arguments += ["--build-arg", f"{name}={value}"]
    return [*arguments, str(ROOT)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make images", description=__doc__)
    names = [image.name for image in IMAGES]
    parser.add_argument("--engine", choices=ENGINES, help="default: the first of them that is installed")
    parser.add_argument("--push", metavar="REGISTRY/PATH", default="", help="tag for this place, and push there")
    parser.add_argument("--tag", default=version(), help="default: the version, %(default)s")
    parser.add_argument("--base", default="", help="base of all but Spark's image; default: what the Dockerfile says")
    parser.add_argument("--spark-base", default="", help="base of Spark's image")
    parser.add_argument("--network", help="the engine's network for the build, for instance host")
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=f"default: all of {', '.join(names)}")
    options = parser.parse_args()
    if unknown := [name for name in options.images if name not in names]:
        parser.error(f"there is no image {', '.join(unknown)}; there are {', '.join(names)}")
    engine = options.engine or next(filter(shutil.which, ENGINES), None)
    if engine is None or shutil.which(engine) is None:
        sys.stderr.write(f"make images: needs one of {', '.join(ENGINES)} on PATH\n")
        return 1
    for image in IMAGES:
        if options.images and image.name not in options.images:
            continue
        place = f"{options.push.rstrip('/')}/" if options.push else ""
        tag = f"{place}{image.name}:{options.tag}"
        base = options.spark_base if image.spark else options.base
        print(f"== {engine} builds {tag}", flush=True)
        subprocess.run(build_command(engine, image, tag, base or None, options.network), check=True)
        if options.push:
            print(f"== {engine} pushes {tag}", flush=True)
            subprocess.run([engine, "push", tag], check=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as failed:
        sys.exit(f"make images: {' '.join(failed.cmd[:2])} failed with status {failed.returncode}")
