"""Connections to the brokers: one channel an address, unary calls with deadlines, and finding one that answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

import grpc
from google.protobuf.message import Message

from cursus_grpc import _tls
from cursus_grpc._retry import Backoff, Deadline
from cursus_grpc._rpcs import Request, Response, Unary
from cursus_grpc._status import from_rpc_error
from cursus_grpc.errors import BrokerUnreachable, ClientClosed, CursusError, DeadlineExceeded, Refused, TlsFailed
from cursus_grpc.types import TLS
from cursus_transport import Channel, ChannelClosed, Limits, NotConnected, StreamCall

MIB: Final = 1024 * 1024
DEFAULT_PORT: Final = 50051

_CONNECT_S: Final = 2.0
"""How long one address may take to connect before the next one is tried."""

_LIMITS: Final = Limits(
    # The largest set a broker can be told to take (128 MiB) and its envelope.
    max_message_bytes=160 * MIB,
    # Finds a peer that is gone without a word. Brokers allow a ping every 5 s.
    keepalive_s=10.0,
    keepalive_timeout_s=10.0,
)


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Where the brokers are and how to speak to them."""

    bootstrap: tuple[str, ...]
    tls: TLS | None = None
    client_id: str = "cursus-python"
    request_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.request_timeout_s <= 0:
            raise ValueError(f"request_timeout_s must be positive, not {self.request_timeout_s}")


def parse_bootstrap(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Addresses as gRPC dials them, from `"a:1,b:2"` or a list. Raises ValueError.

    >>> parse_bootstrap("localhost, [::1]:9, 10.0.0.1:50052")
    ('localhost:50051', '[::1]:9', '10.0.0.1:50052')
    """
    parts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = tuple(_with_port(part.strip()) for part in parts if part.strip())
    if not found:
        raise ValueError("no broker address given")
    return found


def _with_port(address: str) -> str:
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return f"{address}:{DEFAULT_PORT}"
    if not host or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(f"{address!r} is not HOST:PORT; an IPv6 address needs brackets")
    return address


class Connections:
    """The channels of one client. Lives on one event loop.

    Clients of one process do not share a connection: a slow consumer must not hold a producer back.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self._channels: dict[str, Channel] = {}
        self._bootstrap = list(settings.bootstrap)
        self.reached = False
        """Whether a connection to a broker ever stood: if not, the addresses may be wrong."""
        self._closed = False

    def channel(self, address: str) -> Channel:
        """The channel to an address, made on first use. Raises ClientClosed, OSError for unreadable certificates."""
        if self._closed:
            raise ClientClosed("the client is closed")
        found = self._channels.get(address)
        if found is None:
            found = self._channels[address] = self._open(address)
        return found

    def _open(self, address: str) -> Channel:
        tls, name = self.settings.tls, self.settings.client_id
        if tls is None:
            return Channel(address, limits=_LIMITS, application=name)
        context = _tls.context(tls)
        return Channel(address, limits=_LIMITS, tls=context, server_name=tls.server_name, application=name)

    async def close(self) -> None:
        """Ends every call on every channel."""
        self._closed = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close()

    async def call(
        self,
        method: Unary[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
        idempotent: bool = True,
    ) -> Response:
        """Call any broker, trying the bootstrap addresses in turn until the deadline (default: `request_timeout_s`).

        A call that is not idempotent is not repeated once it may have reached a broker. Raises what the broker
        refuses with; BrokerUnreachable or TlsFailed if none can be reached, DeadlineExceeded if one does not answer.
        """
        response, _ = await self.call_any(method, request, timeout_s=timeout_s, idempotent=idempotent)
        return response

    async def call_any(
        self,
        method: Unary[Request, Response],
        request: Request,
        *,
        timeout_s: float | None = None,
        idempotent: bool = True,
        patient: bool = True,
    ) -> tuple[Response, str]:
        """As `call`, and tells which address answered. Without patience every address is tried once."""
        deadline = Deadline(self.settings.request_timeout_s if timeout_s is None else timeout_s)
        backoff = Backoff()
        while True:
            address = await self.reach(deadline, patient=patient)
            try:
                return await self._call_once(method, request, address, deadline), address
            except CursusError as error:
                repeatable = idempotent or (isinstance(error, Refused) and error.reason != "INTERNAL")
                if not error.retriable or not repeatable:
                    raise
                # A broker that refuses our certificate says so only after the connection stands.
                if isinstance(error, BrokerUnreachable) and (failed := await self._explain(address)) is not None:
                    raise failed from error
                self._prefer_others(address)
                pause_s = backoff.next_s()
                if not patient or not deadline.within(pause_s):
                    raise
                await asyncio.sleep(pause_s)

    async def _call_once(
        self, method: Unary[Request, Response], request: Request, address: str, deadline: Deadline
    ) -> Response:
        try:
            return await method.on(self.channel(address))(request, timeout=deadline.left_s())
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except ChannelClosed as error:
            raise ClientClosed("the client is closed") from error

    async def reach(self, deadline: Deadline, *, patient: bool = True) -> str:
        """A bootstrap address that a connection stands to. Raises TlsFailed, and BrokerUnreachable with the reason of
        each address: at the deadline, or without patience once all of them were tried."""
        backoff = Backoff()
        reasons: dict[str, str] = {}
        while True:
            addresses = list(self._bootstrap)
            for number, address in enumerate(addresses):
                left_s = deadline.left_s()
                # A share of the time each: one that swallows everything must not keep the others from being tried.
                share_s = _CONNECT_S if left_s is None else min(_CONNECT_S, left_s / (len(addresses) - number))
                try:
                    await self._connect(address, share_s)
                except NotConnected as lost:
                    reasons[address] = lost.reason
                except TimeoutError:
                    # An earlier attempt that failed says more than a last one with hardly any time left.
                    stage = self.channel(address).stage
                    reasons.setdefault(address, f"{stage} takes longer than {share_s:.3g} s")
                else:
                    self.reached = True
                    return address
                self._prefer_others(address)
            pause_s = backoff.next_s()
            if not patient or not deadline.within(pause_s):
                raise BrokerUnreachable(
                    "no broker answers " + "; ".join(f"at {address}: {reasons[address]}" for address in addresses)
                )
            await asyncio.sleep(pause_s)

    async def _connect(self, address: str, timeout_s: float) -> None:
        """Return once a connection stands. One that is refused is told at once. Raises NotConnected, TlsFailed,
        TimeoutError, ClientClosed."""
        deadline = Deadline(timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self.channel(address).connection()
        except NotConnected as lost:
            # Where nobody is there is no TLS to look into.
            if lost.answered and (failed := await self._explain(address, deadline.left_s())) is not None:
                raise failed from lost
            raise
        except ChannelClosed as error:
            raise ClientClosed("the client is closed") from error

    async def _explain(self, address: str, timeout_s: float | None = None) -> TlsFailed | None:
        return await _tls.explain(address, self.settings.tls, timeout_s)

    def _prefer_others(self, address: str) -> None:
        """Try the address last from now on."""
        if address in self._bootstrap:
            self._bootstrap.remove(address)
            self._bootstrap.append(address)


async def write(call: StreamCall[bytes, Response], message: Message | bytes) -> None:
    """Put a request on a stream. Raises BrokerUnreachable if the stream is over; reading it tells why."""
    try:
        await call.write(message if isinstance(message, bytes) else message.SerializeToString())
    except (grpc.aio.AioRpcError, ChannelClosed) as error:
        raise BrokerUnreachable("the stream ended") from error


async def read(call: StreamCall[bytes, Response]) -> Response | None:
    """The next answer on a stream, None at its orderly end. Raises what the broker ended it with."""
    try:
        message = await call.read()
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error
    except ChannelClosed as error:
        raise BrokerUnreachable("the stream ended") from error
    return None if message is grpc.aio.EOF else cast("Response", message)


async def exchange(call: StreamCall[bytes, Response], first: Message, timeout_s: float) -> Response:
    """Open a stream: its first request for its first answer. Raises what the broker refuses it with."""
    try:
        async with asyncio.timeout(timeout_s):
            with contextlib.suppress(BrokerUnreachable):  # reading tells why
                await write(call, first)
            response = await read(call)
    except TimeoutError as error:
        raise DeadlineExceeded("the broker does not answer") from error
    if response is None:
        raise BrokerUnreachable("the broker ended the stream")
    return response
