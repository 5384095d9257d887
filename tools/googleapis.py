"""Copies the google/rpc protos of the installed googleapis-common-protos to where buf.yaml expects a second module.

Buf reads modules only below its workspace, and fetching them from its registry would make linting need a network.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from google import rpc


def main(target: Path) -> None:
    source = Path(next(iter(rpc.__path__)))
    destination = target / "google" / "rpc"
    destination.mkdir(parents=True, exist_ok=True)
    for name in ("status.proto", "error_details.proto", "code.proto"):
        shutil.copyfile(source / name, destination / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
