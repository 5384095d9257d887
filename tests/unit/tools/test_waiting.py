"""The harness's waits: what hangs is given up, what only is slow is not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from itertools import count

import pytest

from tests.harness.waiting import processor_ticks, while_it_works


async def test_work_that_gets_on_is_waited_for_far_beyond_the_time_it_may_be_quiet() -> None:
    steps = count()
    assert await while_it_works(asyncio.sleep(1.0, "done"), lambda: next(steps), quiet_s=0.2) == "done"


async def test_work_that_hangs_is_given_up() -> None:
    hanging = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(TimeoutError, match="no progress"):
        await while_it_works(hanging, lambda: "the same", quiet_s=0.1)
    assert hanging.cancelled() or hanging.cancelling()


async def test_a_failure_of_the_work_is_the_callers() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await while_it_works(fail(), lambda: None)


def test_processor_time_of_a_session_counts_children_that_have_ended() -> None:
    spin = "import time\nwhile time.process_time() < 0.1: pass"
    shell = ["bash", "-c", f"{sys.executable} -c '{spin}'; read"]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, start_new_session=True) as process:
        before = processor_ticks(process.pid)
        while processor_ticks(process.pid) - before < 0.1 * os.sysconf("SC_CLK_TCK") - 2:
            assert process.poll() is None
        assert process.stdin is not None
        process.stdin.close()
