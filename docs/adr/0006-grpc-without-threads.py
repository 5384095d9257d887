"""The measurement of ADR 0006: what a message costs with grpcio and with cursus_transport at either end.

    .venv/bin/python docs/adr/0006-grpc-without-threads.py

A service that sends back what it gets, and a client in another process: round trips on a stream at 1,000/s, unary calls
of 64 callers that wait for their answers, and 900 KB messages there and back.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc
import uvloop

from cursus_transport import Channel, Limits, Server

ENDS: Final = ("grpcio", "transport")
MOST_BYTES: Final = 8 * 1024 * 1024
COUNT: Final = 5_000
RATE: Final = 1_000
CALLERS: Final = 64
CALLS_EACH: Final = 100
LARGE: Final = bytes(900_000)
LARGE_COUNT: Final = 300


async def stream(_: object, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def unary(message: bytes, _: object) -> bytes:
    return bytes(message)


async def serve(end: str) -> None:
    handlers: dict[str, Any] = {
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
    }
    server: Any
    if end == "grpcio":
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", MOST_BYTES)])
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        server = Server(Limits(max_message_bytes=MOST_BYTES))
        port = server.bind("127.0.0.1", 0)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("adr.Echo", handlers),))
    await server.start()
    print(port, flush=True)
    await asyncio.Event().wait()


def connect(end: str, port: int) -> Any:
    address = f"127.0.0.1:{port}"
    if end == "grpcio":
        return grpc.aio.insecure_channel(address, [("grpc.max_receive_message_length", MOST_BYTES)])
    return Channel(address, limits=Limits(max_message_bytes=MOST_BYTES))


async def on_schedule(send: Callable[[int], Awaitable[None]]) -> None:
    started = time.perf_counter()
    for number in range(COUNT):
        wait = started + number / RATE - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        await send(number)


async def round_trips(call: Any) -> str:
    sent: dict[int, float] = {}
    taken: list[float] = []

    async def receive() -> None:
        while len(taken) < COUNT:
            message = await call.read()
            taken.append(time.perf_counter() - sent.pop(int(message[:8])))

    async def send(number: int) -> None:
        sent[number] = time.perf_counter()
        await call.write(b"%08d" % number + bytes(100))

    receiving = asyncio.create_task(receive())
    processor_s = time.process_time()
    await on_schedule(send)
    await receiving
    processor_s = time.process_time() - processor_s
    taken.sort()
    median, late = taken[COUNT // 2] * 1e6, taken[COUNT * 99 // 100] * 1e6
    return f"p50 {median:4.0f} µs, p99 {late:6.0f} µs, client {processor_s / COUNT * 1e6:3.0f} µs of a core each"


async def unary_calls(method: Any) -> str:
    async def caller() -> None:
        for _ in range(CALLS_EACH):
            await method(bytes(100))

    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    return f"{CALLERS * CALLS_EACH / (time.perf_counter() - started):6,.0f} calls/s"


async def large_messages(call: Any) -> str:
    async def receive() -> None:
        for _ in range(LARGE_COUNT):
            await call.read()

    started = time.perf_counter()
    receiving = asyncio.create_task(receive())
    for _ in range(LARGE_COUNT):
        await call.write(LARGE)
    await receiving
    return f"{LARGE_COUNT * len(LARGE) / (time.perf_counter() - started) / 1e6:4.0f} MB/s"


async def measure(client: str, port: int) -> str:
    channel = connect(client, port)
    call = channel.stream_stream("/adr.Echo/Stream", None, None)()
    found = [
        await round_trips(call),
        await unary_calls(channel.unary_unary("/adr.Echo/Unary", None, None)),
        await large_messages(call),
    ]
    call.cancel()
    await channel.close()
    return "; ".join(found)


def main() -> None:
    if len(sys.argv) > 1:
        uvloop.run(serve(sys.argv[1]))
        return
    for server in ENDS:
        for client in ENDS:
            with subprocess.Popen([sys.executable, __file__, server], stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None, "it is piped"
                found = uvloop.run(measure(client, int(process.stdout.readline())))
                process.terminate()
            print(f"server {server:9} client {client:9}  {found}", flush=True)


if __name__ == "__main__":
    main()
