"""`python -m bench`: every measure in turn, then the report."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from bench import machine, report
from bench.ballast import ballast
from bench.compare import progress
from bench.measures import (
    acks,
    client_latency,
    client_throughput,
    commits,
    consume,
    gateway_consume,
    gateway_latency,
    gateway_memory,
    gateway_publish,
    gateway_singles,
    latency,
    memory,
    partitions,
    publish,
    spark_latency,
    spark_memory,
    spark_plan,
    spark_read,
    spark_write,
    stored,
)
from bench.processes import BenchFailed, BenchSkipped
from bench.scale import curve
from bench.scale.curves import CURVES
from bench.setting import FULL, QUICK, Setting
from bench.trees import NoSuchTree, Tree, older

SCALE: Final = "scale"
ROOT: Final = Path(__file__).parent.parent
RESULTS: Final = ROOT / "bench" / "results"

Measure = Callable[[Setting], Awaitable[report.Result]]

# What is measured together and reported together, each suite in a directory of its own under bench/results.
SUITES: Final[dict[str, dict[str, Measure]]] = {
    "broker": {
        "publish": publish.measure,
        "consume": consume.measure,
        "acks": acks.measure,
        "commits": commits.measure,
        "partitions": partitions.measure,
        "stored": stored.measure,
        "latency": latency.measure,
        "memory": memory.measure,
    },
    "gateway": {
        "gateway-publish": gateway_publish.measure,
        "gateway-consume": gateway_consume.measure,
        "gateway-singles": gateway_singles.measure,
        "gateway-latency": gateway_latency.measure,
        "gateway-memory": gateway_memory.measure,
    },
    "client": {
        "client-send": client_throughput.measure_send,
        "client-consume": client_throughput.measure_consume,
        "client-latency": client_latency.measure,
    },
    "spark": {
        "spark-read": spark_read.measure_uniform,
        "spark-read-mixed": spark_read.measure_mixed,
        "spark-write": spark_write.measure,
        "spark-latency": spark_latency.measure,
        "spark-plan": spark_plan.measure,
        "spark-memory": spark_memory.measure,
    },
    SCALE: {one.name: partial(curve.measure, one) for one in CURVES},
}
MEASURES: Final[dict[str, Measure]] = {name: one for suite in SUITES.values() for name, one in suite.items()}


def main() -> int:
    arguments = _parse()
    # Ended like by Ctrl-C: brokers and peers are stopped first. Left running, they would disturb the next run.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    try:
        with older(arguments.against, arguments.scratch) if arguments.against else nullcontext() as against:
            return _measure_all(arguments, against)
    except NoSuchTree as error:
        print(f"--against: {error}", file=sys.stderr)
        return 2


def _measure_all(arguments: argparse.Namespace, against: Tree | None) -> int:
    if arguments.only:
        # Part of a suite, like a rough run, must not stand where the results of a full run are expected.
        return _measure(arguments, against, arguments.only, arguments.scratch / "bench-results")
    failed = 0
    for suite in arguments.suite or ([SCALE] if arguments.against else SUITES):
        complete = arguments.scratch / "bench-results" / suite if arguments.quick else RESULTS / suite
        failed |= _measure(arguments, against, list(SUITES[suite]), complete)
    return failed


def _measure(arguments: argparse.Namespace, against: Tree | None, names: Sequence[str], target: Path) -> int:
    """Measure, print and write the report. 1 if a measure failed. If one failed or was skipped, the report has the
    others only, and is written beside the scratch directory."""
    scale = QUICK if arguments.quick else FULL
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=arguments.scratch))
    try:
        # The curves count processor time, which does not depend on the page cache.
        is_even = arguments.no_ballast or all(name in SUITES[SCALE] for name in names)
        ballast_bytes = 0 if is_even else min(scale.ballast_bytes, psutil.virtual_memory().total)
        where = machine.describe(scratch, ballast_bytes, arguments.quick)
        progress(f"filling {ballast_bytes / 1e9:.1f} GB of page cache")
        with ballast(scratch, ballast_bytes) as filled:
            found = [asyncio.run(_run(name, Setting(scratch / name, scale, filled, against))) for name in names]
    finally:
        shutil.rmtree(scratch)
    results = [result for result in found if isinstance(result, report.Result)]
    print(report.as_markdown(where, results))
    complete = len(results) == len(names)
    report.write(target if complete else arguments.scratch / "bench-results", where, results)
    return int(any(isinstance(result, BenchFailed) for result in found))


async def _run(name: str, setting: Setting) -> report.Result | BenchFailed | BenchSkipped:
    """A measure that fails costs the run neither what was measured before nor what comes after."""
    progress(f"{name}: begins")
    setting.scratch.mkdir()
    try:
        return await MEASURES[name](setting)
    except BenchFailed as error:
        progress(f"{name}: failed: {error}")
        return error
    except BenchSkipped as error:
        progress(f"{name}: skipped: {error}")
        return error
    finally:
        shutil.rmtree(setting.scratch)


def _parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measures broker, gateway, client and the Spark source."
    )
    parser.add_argument(
        "--only", action="append", choices=MEASURES, metavar="NAME", help=f"one of {', '.join(MEASURES)}; may repeat"
    )
    parser.add_argument(
        "--suite", action="append", choices=SUITES, metavar="NAME", help=f"one of {', '.join(SUITES)}; may repeat"
    )
    parser.add_argument(
        "--quick", action="store_true", help="little data and few rounds: does it run, roughly how fast"
    )
    parser.add_argument("--no-ballast", action="store_true", help="do not fill the page cache: quicker, and less even")
    parser.add_argument(
        "--scratch",
        type=Path,
        default=ROOT / "build",
        help="where data is written and removed again; has to be on disk",
    )
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="measure the sources of this commit beside the present ones; only for the curves of the suite scale",
    )
    parsed = parser.parse_args(arguments)
    others = [name for name in parsed.only or () if name not in SUITES[SCALE]]
    others += [name for name in parsed.suite or () if name != SCALE]
    if parsed.against and others:
        parser.error(f"--against compares the curves of the suite {SCALE}, and {', '.join(others)} is none of them")
    return parsed


if __name__ == "__main__":
    sys.exit(main())
