"""Clients that know nothing of the contract but what the broker's reflection service tells them: one made of dynamic
messages, and grpcurl itself. Both speak JSON, as a person at a shell would.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2

from tests.harness.waiting import DEADLINE_S

Json = dict[str, Any]

_BIN: Final = Path(__file__).parents[2] / "tools" / "bin"


class JsonStream(Protocol):
    async def send(self, request: Json) -> None: ...

    async def receive(self) -> Json: ...

    async def finish(self) -> list[Json]:
        """Close the sending side and answer what still comes until the broker ends the stream."""


class JsonClient(Protocol):
    async def methods(self) -> list[str]:
        """All methods of all services, as `package.Service/Method`."""

    async def unary(self, method: str, request: Json) -> Json: ...

    def stream(self, method: str) -> AbstractAsyncContextManager[JsonStream]: ...


class ReflectedClient:
    """Dynamic messages over descriptors that came through reflection."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._pool = DescriptorPool()
        self._loaded: set[str] = set()

    async def methods(self) -> list[str]:
        response = await self._ask(reflection_pb2.ServerReflectionRequest(list_services=""))
        found = []
        for service in response.list_services_response.service:
            await self._load(service.name)
            descriptor = self._pool.FindServiceByName(service.name)
            found += [f"{service.name}/{method.name}" for method in descriptor.methods]
        return found

    async def unary(self, method: str, request: Json) -> Json:
        descriptor = await self._method(method)
        make: grpc.aio.UnaryUnaryMultiCallable[Any, Any] = self._channel.unary_unary(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(descriptor.output_type).FromString,
        )
        return self._to_json(await make(self._from_json(descriptor, request)))

    @asynccontextmanager
    async def stream(self, method: str) -> AsyncIterator[JsonStream]:
        descriptor = await self._method(method)
        make: grpc.aio.StreamStreamMultiCallable[Any, Any] = self._channel.stream_stream(
            f"/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(descriptor.output_type).FromString,
        )
        call = make()
        try:
            yield _ReflectedStream(self, descriptor, call)
        finally:
            call.cancel()

    def _from_json(self, method: MethodDescriptor, request: Json) -> Any:
        return ParseDict(request, GetMessageClass(method.input_type)(), descriptor_pool=self._pool)

    def _to_json(self, message: Any) -> Json:
        return MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self._pool)

    async def _method(self, method: str) -> MethodDescriptor:
        service, _, name = method.partition("/")
        await self._load(service)
        # Named in no message of the contract, but inside every status: an Any can be shown only if its type is known.
        await self._load("google.rpc.ErrorInfo")
        found: MethodDescriptor = self._pool.FindServiceByName(service).methods_by_name[name]
        return found

    async def _load(self, symbol: str) -> None:
        """Add the file that declares the symbol, and the files it needs, to the pool."""
        if symbol not in self._loaded:
            self._loaded.add(symbol)
            await self._add(reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol))

    async def _add(self, request: reflection_pb2.ServerReflectionRequest) -> None:
        response = await self._ask(request)
        for encoded in response.file_descriptor_response.file_descriptor_proto:
            file = FileDescriptorProto.FromString(encoded)
            if file.name in self._loaded:
                continue
            self._loaded.add(file.name)
            for needed in file.dependency:
                if needed not in self._loaded:
                    await self._add(reflection_pb2.ServerReflectionRequest(file_by_filename=needed))
            self._pool.AddSerializedFile(encoded)

    async def _ask(self, request: reflection_pb2.ServerReflectionRequest) -> reflection_pb2.ServerReflectionResponse:
        ask: grpc.aio.StreamStreamMultiCallable[Any, Any] = self._channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        call = ask()
        await call.write(request)
        await call.done_writing()
        response = await call.read()
        assert isinstance(response, reflection_pb2.ServerReflectionResponse)
        assert not response.HasField("error_response"), response.error_response.error_message
        return response


class _ReflectedStream:
    def __init__(self, client: ReflectedClient, method: MethodDescriptor, call: Any) -> None:
        self._client = client
        self._method = method
        self._call = call

    async def send(self, request: Json) -> None:
        await self._call.write(self._client._from_json(self._method, request))

    async def receive(self) -> Json:
        async with asyncio.timeout(DEADLINE_S):
            message = await self._call.read()
        assert message is not grpc.aio.EOF, "the stream ended"
        return self._client._to_json(message)

    async def finish(self) -> list[Json]:
        await self._call.done_writing()
        rest: list[Json] = []
        async with asyncio.timeout(DEADLINE_S):
            while (message := await self._call.read()) is not grpc.aio.EOF:
                rest.append(self._client._to_json(message))
        return rest


def find_grpcurl() -> str | None:
    """The program as .ci/run installs it, or as the PATH has it."""
    return shutil.which("grpcurl", path=str(_BIN)) or shutil.which("grpcurl")


class GrpcurlClient:
    """Runs grpcurl for every call."""

    def __init__(self, program: str, address: str) -> None:
        self._program = program
        self._address = address

    async def methods(self) -> list[str]:
        services = (await self._run("list")).split()
        listed = [await self._run("list", service) for service in services]
        return [f"{name.rpartition('.')[0]}/{name.rpartition('.')[2]}" for name in " ".join(listed).split()]

    async def unary(self, method: str, request: Json) -> Json:
        answer: Json = json.loads(await self._run(method, flags=("-d", json.dumps(request))))
        return answer

    @asynccontextmanager
    async def stream(self, method: str) -> AsyncIterator[JsonStream]:
        process = await asyncio.create_subprocess_exec(
            *(self._program, "-plaintext", "-d", "@", self._address, method),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield _GrpcurlStream(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _run(self, *args: str, flags: tuple[str, ...] = ()) -> str:
        process = await asyncio.create_subprocess_exec(
            *(self._program, "-plaintext", *flags, self._address, *args),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(DEADLINE_S):
            output, complaint = await process.communicate()
        assert process.returncode == 0, complaint.decode()
        return output.decode()


class _GrpcurlStream:
    """grpcurl prints one JSON object after another; where one ends is known only by parsing it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout, self._process = process.stdin, process.stdout, process
        self._unread = ""

    async def send(self, request: Json) -> None:
        self._stdin.write(json.dumps(request).encode() + b"\n")
        await self._stdin.drain()

    async def receive(self) -> Json:
        message = await self._next()
        assert message is not None, "the stream ended"
        return message

    async def finish(self) -> list[Json]:
        self._stdin.close()
        rest: list[Json] = []
        while (message := await self._next()) is not None:
            rest.append(message)
        assert await self._process.wait() == 0
        return rest

    async def _next(self) -> Json | None:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    message: Json
                    message, end = json.JSONDecoder().raw_decode(self._unread.lstrip())
                except ValueError:
                    chunk = await self._stdout.read(65_536)
                    if not chunk:
                        return None
                    self._unread += chunk.decode()
                else:
                    self._unread = self._unread.lstrip()[end:]
                    return message
