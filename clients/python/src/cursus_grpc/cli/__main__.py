"""`python -m cursus_grpc.cli`, and the script `cursus`."""

from __future__ import annotations

import sys

from cursus_grpc.cli.app import run


def main() -> None:
    """The script's entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
