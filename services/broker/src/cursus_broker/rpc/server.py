"""The gRPC server: which handler serves which method of the contract, with which view of its messages.

Requests that carry record sets are parsed with the opaque view, and responses that carry them come encoded from
rpc/wire.py, so that sets stay bytes. Everything else uses the public messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health as grpc_health
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from cursus_broker.errors import StorageFailed
from cursus_broker.rpc import guard
from cursus_broker.rpc.cluster import ClusterServicer
from cursus_broker.rpc.consume import ConsumeServicer
from cursus_broker.rpc.groups import GroupServicer
from cursus_broker.rpc.publish import PublishServicer
from cursus_broker.rpc.subscribe import SubscribeServicer
from cursus_broker.rpc.topics import TopicServicer
from cursus_broker.settings import GrpcSettings, TlsSettings
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.v1 import (
    cluster_service_pb2,
    consume_service_pb2,
    group_service_pb2,
    publish_service_pb2,
    topic_service_pb2,
)

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

    def __init__(self, settings: GrpcSettings, max_batch_bytes: int, calls: guard.OpenCalls) -> None:
        self._server = grpc.aio.server(options=server_options(settings, max_batch_bytes))
        self._calls = calls
        self._gate = guard.Gate()
        self._health = grpc_health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*(service.full_name for service in SERVICES), grpc_health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def bind(self, host: str, port: int, tls: TlsSettings) -> int:
        """Take the port, before anything is served on it. Raises StorageFailed with the reason if it cannot be had."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls.cert is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, _credentials(tls))
        except (RuntimeError, OSError) as error:
            raise StorageFailed(f"cannot listen on {address}: {error}") from error

    async def start(self, servicers: Servicers) -> None:
        """Serve, and say so to health checks."""
        self._server.add_generic_rpc_handlers(
            tuple(_handler(service, servicers, self._gate, self._calls) for service in SERVICES)
        )
        await self._server.start()
        for name in ("", *(service.full_name for service in SERVICES)):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace_s: float) -> None:
        """Tell health checks, take no new calls, let running ones go on for `grace_s`, then end them."""
        await self._health.enter_graceful_shutdown()
        drained = await self._gate.close(grace_s)
        # gRPC waits for calls that no handler will ever see, because they arrived while it stopped. Ours have left.
        await self._server.stop(_LAST_CALLS_S if drained else None)


def _handler(
    service: ServiceDescriptor, servicers: Servicers, gate: guard.Gate, calls: guard.OpenCalls
) -> grpc.GenericRpcHandler:
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in service.methods:
        serve = _find(servicers, service.name, method.name)
        name = f"{service.name}/{method.name}"
        if method.client_streaming:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(
                guard.stream(name, serve, gate, calls),
                request_deserializer=_deserializer(method.input_type),
                response_serializer=_serializer(method.output_type),
            )
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                guard.unary(name, serve, gate),
                request_deserializer=_deserializer(method.input_type),
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


def _deserializer(message: Descriptor) -> Callable[[bytes], Any]:
    view = OPAQUE_REQUESTS.get(message.full_name) or GetMessageClass(message)
    return guard.decoder(view.FromString)


def _serializer(message: Descriptor) -> Callable[[Any], bytes] | None:
    """None hands the bytes through."""
    return None if message.full_name in ENCODED_RESPONSES else GetMessageClass(message).SerializeToString


def server_options(settings: GrpcSettings, max_batch_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", max_batch_bytes + _ENVELOPE_BYTES),
        ("grpc.max_send_message_length", -1),  # what was stored must be deliverable
        ("grpc.max_concurrent_streams", settings.max_streams_per_connection),
        ("grpc.keepalive_time_ms", settings.keepalive_ms),
        ("grpc.keepalive_timeout_ms", settings.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", settings.client_ping_interval_ms),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.so_reuseport", 0),  # two brokers on one port would share its connections at random
    ]


def _credentials(tls: TlsSettings) -> grpc.ServerCredentials:
    assert tls.cert is not None, "checked by the caller"
    assert tls.key is not None, "checked by the settings"
    client_ca = tls.client_ca.read_bytes() if tls.client_ca is not None else None
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=client_ca,
        require_client_auth=client_ca is not None,
    )
