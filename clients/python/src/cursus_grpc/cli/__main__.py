"""`python -m cursus_grpc.cli`, and the script `cursus`."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """The script's entry point."""
    # Until there is somebody who can say it better, Ctrl-C ends the process without a word, as it ends `cat`.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from cursus_grpc.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
