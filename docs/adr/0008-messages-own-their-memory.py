"""The measurement of ADR 0008: what receiving a large message costs a process.

    .venv/bin/python docs/adr/0008-messages-own-their-memory.py

A server in another process answers each request with a message of that size; the processor time is the client's.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any, Final

import grpc
import uvloop

from cursus_transport import Channel, Limits, Server, StreamCall

LIMITS: Final = Limits(max_message_bytes=32 * 1024 * 1024)
SIZES: Final = (100_000, 300_000, 900_000, 5_000_000)
ALL_BYTES: Final = 600_000_000
WARM_UP: Final = 20


async def talk(_: object, context: Any) -> None:
    while (request := await context.read()) is not grpc.aio.EOF:
        await context.write(bytes(int(request)))


async def serve() -> None:
    server = Server(LIMITS)
    handlers = {"Talk": grpc.stream_stream_rpc_method_handler(talk)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("adr.Sizes", handlers),))
    print(server.bind("127.0.0.1", 0), flush=True)
    await server.start()
    await asyncio.Event().wait()


async def receive(call: StreamCall[bytes, int], size: int, count: int) -> None:
    async def ask() -> None:
        for _ in range(count):
            await call.write(b"%d" % size)

    asking = asyncio.create_task(ask())
    for _ in range(count):
        assert await call.read() == size
    await asking


async def measure(port: int) -> None:
    async with Channel(f"127.0.0.1:{port}", limits=LIMITS) as channel:
        call: StreamCall[bytes, int] = channel.stream_stream("/adr.Sizes/Talk", None, len)()
        for size in SIZES:
            await receive(call, size, WARM_UP)
            count = ALL_BYTES // size
            started, processor_s = time.perf_counter(), time.process_time()
            await receive(call, size, count)
            processor_s, taken_s = time.process_time() - processor_s, time.perf_counter() - started
            each = f"{processor_s / count * 1e6:5.0f} µs of a core each"
            print(f"{size:9,} bytes: {each}, {ALL_BYTES / taken_s / 1e6:5.0f} MB/s", flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        uvloop.run(serve())
        return
    with subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it is piped"
        uvloop.run(measure(int(process.stdout.readline())))
        process.terminate()


if __name__ == "__main__":
    main()
