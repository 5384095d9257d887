"""A client process. Takes jobs as JSON lines on stdin, does one at a time, answers each with a JSON line on stdout:
`python -m bench.worker`. Ends with its stdin. With `--plain` its memory is left as Python sets it up, which is what the
users of a client library have."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from bench.jobs import client
from bench.jobs.commits import Commit, commit
from bench.jobs.consume import Consume, Stall, consume, stall
from bench.jobs.gateway import (
    CommandLatency,
    Commands,
    ConsumeFrames,
    Idle,
    PublishFrames,
    command_latency,
    commands,
    consume_frames,
    idle,
    publish_frames,
)
from bench.jobs.latency import Echo, Follow, echo, follow
from bench.jobs.publish import Publish, publish
from bench.jobs.unary import CallLatency, Calls, call_latency, calls
from cursus_service.process import raise_open_file_limit, run, settle_memory

STALLED = "stalled"
PLAIN = "--plain"
OPEN_FILES = 4_096


async def work(_: asyncio.Event) -> None:
    raise_open_file_limit(OPEN_FILES)
    if PLAIN not in sys.argv:
        settle_memory()
    await serve(_do)


async def serve(do: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
    """Do what is asked for until nothing is asked any more."""
    while line := await _read_line():
        message = json.loads(line)
        try:
            result = await do(message["job"], message["arguments"])
        except Exception:
            _answer({"error": traceback.format_exc()})
        else:
            _answer({"result": asdict(result)})


async def _do(job: str, arguments: dict[str, Any]) -> Any:
    match job:
        case "Publish":
            return await publish(Publish(**arguments))
        case "Consume":
            return await consume(Consume(**arguments))
        case "Stall":
            return await stall(Stall(**arguments), pause)
        case "Commit":
            return await commit(Commit(**arguments), pause)
        case "Echo":
            return await echo(Echo(**arguments))
        case "Follow":
            return await follow(Follow(**arguments))
        case "Calls":
            return await calls(Calls(**arguments))
        case "CallLatency":
            return await call_latency(CallLatency(**arguments))
        case "PublishFrames":
            return await publish_frames(PublishFrames(**arguments))
        case "ConsumeFrames":
            return await consume_frames(ConsumeFrames(**arguments))
        case "Commands":
            return await commands(Commands(**arguments))
        case "CommandLatency":
            return await command_latency(CommandLatency(**arguments))
        case "Idle":
            return await idle(Idle(**arguments), pause)
        case "Prepare":
            return await client.prepare(client.Prepare(**arguments))
        case "Remove":
            return await client.remove(client.Remove(**arguments))
        case "Send":
            return await client.send(client.Send(**arguments))
        case "Read":
            return await client.read(client.Read(**arguments))
        case "SendOnSchedule":
            return await client.send_on_schedule(client.SendOnSchedule(**arguments), pause)
        case "Receive":
            return await client.receive(client.Receive(**arguments), pause)
        case _:
            raise ValueError(f"no such job: {job}")


async def pause() -> None:
    """Says that it stopped, and goes on with the next line."""
    _answer({"event": STALLED})
    await _read_line()


async def _read_line() -> str:
    # In a thread, so that the event loop keeps serving connections meanwhile, as a stalled reader's must be.
    return await asyncio.to_thread(sys.stdin.readline)


def _answer(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run(work)
