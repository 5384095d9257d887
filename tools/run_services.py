"""Runs broker and gateway in the foreground as one: a signal stops both cleanly, and the end of one ends the other.

The gateway is stopped first, so that what it has accepted still reaches the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

GRACE_S = 30.0


async def run(data_dir: Path) -> int:
    """The exit status: 0 after a signal, else the status of the service that ended by itself."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    broker = await _start("cursus-broker", "--data-dir", str(data_dir))
    gateway = await _start("cursus-gateway")
    stopped = asyncio.ensure_future(stop.wait())
    ended = [asyncio.ensure_future(service.wait()) for service in (broker, gateway)]
    await asyncio.wait((stopped, *ended), return_when=asyncio.FIRST_COMPLETED)
    statuses = [task.result() for task in ended if task.done()]
    stopped.cancel()
    await _stop(gateway)
    await _stop(broker)
    return next((status or 1 for status in statuses), 0)


async def _start(program: str, *arguments: str) -> asyncio.subprocess.Process:
    """In a session of its own: Ctrl-C reaches this process alone, which stops the services in order."""
    path = Path(sys.executable).with_name(program)
    return await asyncio.create_subprocess_exec(path, *arguments, start_new_session=True)


async def _stop(service: asyncio.subprocess.Process) -> None:
    if service.returncode is None:
        service.terminate()
        try:
            await asyncio.wait_for(service.wait(), GRACE_S)
        except TimeoutError:
            service.kill()
            await service.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run broker and gateway in the foreground.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="directory of everything the broker keeps")
    return asyncio.run(run(parser.parse_args().data_dir))


if __name__ == "__main__":
    sys.exit(main())
