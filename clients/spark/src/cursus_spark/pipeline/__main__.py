"""`python -m cursus_spark.pipeline`, the script `cursus-pipeline`, and what `spark-submit` is given."""

from __future__ import annotations

import sys

from cursus_spark.pipeline.app import run


def main() -> None:
    """The script's entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
