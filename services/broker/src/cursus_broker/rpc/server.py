"""The gRPC server: which handler serves which method of the contract, with which view of its messages.

Requests that carry record sets are parsed with the opaque view, and responses that carry them come encoded from
rpc/wire.py, so that sets stay bytes. Everything else uses the public messages.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from cursus_broker.errors import StorageFailed
from cursus_broker.rpc import guard, lists
from cursus_broker.rpc.cluster import ClusterServicer
from cursus_broker.rpc.consume import ConsumeServicer
from cursus_broker.rpc.groups import GroupServicer
from cursus_broker.rpc.publish import PublishServicer
from cursus_broker.rpc.subscribe import SubscribeServicer
from cursus_broker.rpc.topics import TopicServicer
from cursus_broker.settings import GrpcSettings, PublishSettings, TlsSettings
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import (
    cluster_service_pb2,
    consume_service_pb2,
    group_service_pb2,
    publish_service_pb2,
    topic_service_pb2,
)
from cursus_service.tls import CertificateWatch, RefusedHandshakes, TlsFileError, load_authorities, load_identity
from cursus_transport import Budget, Limits
from cursus_transport import Server as GrpcServer

SERVICES: Final[tuple[ServiceDescriptor, ...]] = tuple(
    descriptor
    for module in (
        topic_service_pb2,
        publish_service_pb2,
        consume_service_pb2,
        group_service_pb2,
        cluster_service_pb2,
    )
    for descriptor in module.DESCRIPTOR.services_by_name.values()
)

# Requests that are parsed as another class than the contract's, by its full name. The bytes are the same.
OPAQUE_REQUESTS: Final[dict[str, type[Any]]] = {
    "cursus.v1.PublishRequest": opaque_pb2.PublishRequest,
    "cursus.v1.PublishStreamRequest": opaque_pb2.PublishStreamRequest,
}

# Responses that their servicers hand over encoded: rpc/wire.py.
ENCODED_RESPONSES: Final = frozenset(
    {"cursus.v1.FetchResponse", "cursus.v1.ConsumeResponse", "cursus.v1.SubscribeResponse"}
)

# A set at the limit comes with an envelope, and a set a little above it should meet our own refusal, which names the
# limit, and not the transport's.
_ENVELOPE_BYTES: Final = 4 * 1024 * 1024

# Time for the answers of the last calls to reach the network.
_LAST_CALLS_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Servicers:
    topics: TopicServicer
    publish: PublishServicer
    consume: ConsumeServicer
    subscribe: SubscribeServicer
    groups: GroupServicer
    cluster: ClusterServicer


class Server:
    """Serves the contract, health and reflection on one port."""

    def __init__(self, settings: GrpcSettings, publish: PublishSettings, calls: guard.Tally) -> None:
        handshakes = RefusedHandshakes(calls.handshake_refused)
        self._server = GrpcServer(_limits(settings, publish.max_batch_bytes), handshakes.note)
        self._decoders = Decoders(settings.max_request_bytes, publish)
        self._calls = calls
        self._gate = guard.Gate()
        self._certificates: CertificateWatch | None = None
        self._health = grpc_health.aio.HealthServicer()
        # What generated code registers at is a server by what it does, not by its type.
        registry = cast("grpc.aio.Server", self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, registry)
        names = (*(service.full_name for service in SERVICES), grpc_health.SERVICE_NAME, reflection.SERVICE_NAME)
        # Not by enable_server_reflection, which goes by the type and would take the servicer for threads.
        servicer = reflection.aio.ReflectionServicer(names)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, registry)  # type: ignore[no-untyped-call]

    def bind(self, host: str, port: int, tls: TlsSettings) -> int:
        """Take the port, before anything is served on it. Raises StorageFailed with the reason if it cannot be had."""
        try:
            if tls.cert is not None:
                self._certificates = _certificates(tls)
            context = None if self._certificates is None else self._certificates.context
            return self._server.bind(host, port, context)
        except TlsFileError as error:
            raise StorageFailed(f"cannot serve TLS: {error}") from error
        except OSError as error:
            raise StorageFailed(f"cannot listen on {host}:{port}: {error.strerror or error}") from error

    async def start(self, servicers: Servicers) -> None:
        """Serve, and say so to health checks."""
        self._server.add_generic_rpc_handlers(
            tuple(_handler(service, servicers, self._gate, self._calls, self._decoders) for service in SERVICES)
        )
        await self._server.start()
        for name in ("", *(service.full_name for service in SERVICES)):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def follow_certificates(self) -> None:
        """Load them again when their files change. Runs until cancelled; returns at once without TLS."""
        if self._certificates is not None:
            await self._certificates.run()

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._server.connections)

    async def stop(self, grace_s: float) -> None:
        """Tell health checks, take no new calls, let running ones go on for `grace_s`, then end them."""
        await self._health.enter_graceful_shutdown()
        await self._gate.close(grace_s)
        await self._server.stop(_LAST_CALLS_S)


class Decoders:
    """How requests are parsed, each within its bounds."""

    def __init__(self, max_request_bytes: int, publish: PublishSettings) -> None:
        self._max_request_bytes = max_request_bytes
        self._max_publish_bytes = publish.max_batch_bytes + _ENVELOPE_BYTES
        self._max_records = publish.max_batch_records

    def of(self, message: Descriptor) -> Callable[[bytes], Any]:
        opaque = OPAQUE_REQUESTS.get(message.full_name)
        if opaque is not None:
            return guard.decoder(lists.decoder(opaque, self._max_publish_bytes, self._max_records))
        return guard.decoder(lists.decoder(GetMessageClass(message), self._max_request_bytes, self._max_records))


def _handler(
    service: ServiceDescriptor, servicers: Servicers, gate: guard.Gate, calls: guard.Tally, decoders: Decoders
) -> grpc.GenericRpcHandler:
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in service.methods:
        serve = _find(servicers, service.name, method.name)
        name = f"{service.name}/{method.name}"
        if method.client_streaming:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(
                guard.stream(name, serve, gate, calls),
                request_deserializer=decoders.of(method.input_type),
                response_serializer=_serializer(method.output_type),
            )
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                guard.unary(name, serve, gate, calls),
                request_deserializer=decoders.of(method.input_type),
                response_serializer=_serializer(method.output_type),
            )
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


def _find(servicers: Servicers, service: str, method: str) -> Callable[..., Awaitable[Any]]:
    """The servicer's method of the same name: CreateTopic of TopicService is `topics.create_topic`."""
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in method).lstrip("_")
    owner: object = {
        "TopicService": servicers.topics,
        "PublishService": servicers.publish,
        "ConsumeService": servicers.subscribe if method == "Subscribe" else servicers.consume,
        "GroupService": servicers.groups,
        "ClusterService": servicers.cluster,
    }[service]
    found: Callable[..., Awaitable[Any]] = getattr(owner, snake)
    return found


def _serializer(message: Descriptor) -> Callable[[Any], bytes] | None:
    """None hands the bytes through."""
    return None if message.full_name in ENCODED_RESPONSES else GetMessageClass(message).SerializeToString


def _limits(settings: GrpcSettings, max_batch_bytes: int) -> Limits:
    return Limits(
        max_message_bytes=max_batch_bytes + _ENVELOPE_BYTES,
        max_streams=settings.max_streams_per_connection,
        inflated=Budget(settings.max_inflated_bytes),
        keepalive_s=settings.keepalive_ms / 1000,
        keepalive_timeout_s=settings.keepalive_timeout_ms / 1000,
        min_ping_interval_s=settings.client_ping_interval_ms / 1000,
    )


def _certificates(tls: TlsSettings) -> CertificateWatch:
    assert tls.cert is not None, "checked by the caller"
    cert, key, client_ca = tls.cert, tls.key, tls.client_ca
    files = [file for file in (cert, key, client_ca) if file is not None]

    def load(context: ssl.SSLContext) -> None:
        load_identity(context, cert, key)
        if client_ca is not None:
            load_authorities(context, client_ca)
            context.verify_mode = ssl.CERT_REQUIRED

    return CertificateWatch(files, load)
