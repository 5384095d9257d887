"""Requests that are served alone: commands, direct messages and what cannot be read. session.py keeps their order."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from cursus_gateway import dialect
from cursus_gateway.arrivals import Arrivals
from cursus_gateway.body import BarSeparated, Body, CommandText, DirectMessage, Unreadable
from cursus_gateway.consuming import Consuming
from cursus_gateway.dialect import commands as c
from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import Dialect, Malformed, Request
from cursus_gateway.framing import Parts
from cursus_gateway.idempotence import IdempotentTopics
from cursus_gateway.metrics import GatewayMetrics
from cursus_gateway.peers import Peers
from cursus_gateway.publishing import Publishing
from cursus_gateway.refusals import Refused, spell
from cursus_gateway.streaming import Outlet, Streaming
from cursus_gateway.translate import Context, Translator, refusal_text
from cursus_gateway.unpacking import Unpacking
from cursus_gateway.upstream import Upstream

log = structlog.get_logger(__name__)

# What an operator may want to know the author of.
_CHANGES: Final = (c.CreateTopic, c.DeleteTopic)


@dataclass(frozen=True, slots=True)
class Services:
    """What all sessions share."""

    upstream: Upstream
    translator: Translator
    publishing: Publishing
    idempotent_topics: IdempotentTopics
    consuming: Consuming
    streaming: Streaming
    peers: Peers
    metrics: GatewayMetrics
    arrivals: Arrivals
    unpacking: Unpacking
    unanswered_bytes: int
    expects_gzip: bool


class Asker(Context, Outlet, Protocol):
    """The connection a request came from."""

    first_generation: bool
    modern: bool
    third_generation: bool

    @property
    def lane(self) -> int: ...

    def write(self, parts: Parts) -> None: ...

    def write_text(self, text: str) -> None: ...

    def begin_stream(self) -> None: ...

    def add_push(self, push: asyncio.Task[None]) -> None: ...

    def push_ended(self, push: asyncio.Task[None]) -> None: ...

    def close(self) -> None: ...


class Requests:
    """Serves the requests of one connection, one at a time."""

    def __init__(self, services: Services, session: Asker) -> None:
        self._services = services
        self._session = session
        # Bound here, not at each event: that would be the larger part of one that nobody wants to see.
        self._log = log.bind(peer=session.peer)

    async def serve(self, meaning: Body) -> None:
        """Serves one request to its end and writes its answer."""
        match meaning:
            case Unreadable(reply, close):
                self._log.warning("request.unreadable", answer=reply)
                self._services.metrics.errors.labels("UNREADABLE").inc()
                self._session.write_text(reply)
                if close:
                    self._session.close()
            case DirectMessage(topic, payload):
                await self._direct(topic, payload)
            case BarSeparated() as message:
                await self._bar_separated(message)
            case CommandText(text, raw):
                await self._command(text, raw)
            case _:
                raise AssertionError(f"{type(meaning).__name__} is served elsewhere")

    async def _direct(self, topic: bytes, payload: bytes) -> None:
        self._session.first_generation = True
        try:
            name = topic.decode()
        except UnicodeDecodeError:
            self._services.metrics.command("MESSAGE", "error")
            self._services.metrics.errors.labels("INVALID_TOPIC_NAME").inc()
            self._session.write_text(replies.error("invalid_topic_name", reason="not UTF-8"))
            return
        try:
            await self._services.publishing.publish_direct(name, payload, self._session.lane)
        except Refused as refused:
            self._services.metrics.command("MESSAGE", "error")
            self._services.metrics.errors.labels(refused.reason).inc()
            self._session.write_text(spell(refused, classified=self._session.structured_errors))
            return
        self._services.metrics.command("MESSAGE", "ok")
        self._session.write_text(replies.OK)

    async def _bar_separated(self, message: BarSeparated) -> None:
        """Only a topic that exists makes this a message; else it is as good as garbage."""
        self._session.first_generation = True
        publish = c.Publish(message.topic, message.payload, by_content=True)
        try:
            await self._services.publishing.publish(publish, self._session.lane)
            self._services.metrics.command("MESSAGE", "ok")
            self._session.write_text(replies.OK)
        except Refused as refused:
            self._services.metrics.command("MESSAGE", "error")
            self._services.metrics.errors.labels(refused.reason).inc()
            if refused.reason not in ("TOPIC_NOT_FOUND", "INVALID_TOPIC_NAME"):
                self._session.write_text(spell(refused))
                return
            self._log.warning("request.unreadable", answer=replies.NOT_UNDERSTOOD)
            self._session.write_text(replies.NOT_UNDERSTOOD)
            self._session.close()

    async def _command(self, text: bytes, raw: bool) -> None:
        try:
            request = dialect.parse(text)
        except Malformed as malformed:
            self._log.warning("request.malformed", answer=str(malformed))
            self._services.metrics.command("MALFORMED", "error")
            self._session.write_text(str(malformed))
            if malformed.close:
                self._session.close()
            return
        self._log.debug("request", command=request.name, dialect=request.dialect.value)
        self._note(request)
        try:
            if await self._run(request, raw):
                self._services.metrics.command(request.name, "ok")
                if isinstance(request.command, _CHANGES):
                    self._log.info("topic.command", command=request.name, topic=request.command.topic)
            else:
                self._services.metrics.command(request.name, "error")
                self._services.metrics.errors.labels("REFUSED").inc()
        except Refused as refused:
            self._services.metrics.command(request.name, "error")
            self._services.metrics.errors.labels(refused.reason).inc()
            self._session.write_text(refusal_text(request, refused, classified=self._session.structured_errors))
            if isinstance(request.command, c.ConsumeAll):
                self._log.warning("consume.failed", topic=request.command.topic, reason=refused.reason)
                self._session.close()

    def _note(self, request: Request) -> None:
        """What the wording tells of the client."""
        positional = request.dialect is Dialect.POSITIONAL
        self._session.first_generation = positional and not isinstance(request.command, c.Subscribe)
        self._session.modern = self._session.modern or not positional
        if request.third_generation:
            self._session.third_generation = True
            group = getattr(request.command, "group", None)
            if group:
                self._services.peers.saw_form(self._session.peer, group, False, time.monotonic())

    async def _run(self, request: Request, raw: bool) -> bool:
        """False if the answer was no."""
        session = self._session
        match request.command:
            case c.ConsumeAll() as command:
                sent = 0
                async for parts in self._services.consuming.consume_all(
                    command, self._session.group, self._session.lane
                ):
                    session.send(parts)
                    sent += len(parts)
                    await session.writable()
                self._log.debug("consume.completed", topic=command.topic, messages=sent)
                self._session.close()
            case c.Stream() as command:
                self._services.peers.moved_on(self._session.peer, command.group, command.topic, command.partition)
                session.begin_stream()
                if await self._services.streaming.stream(command, session, raw=raw):
                    self._session.close()
            case c.Subscribe() as command:
                await self._subscribe(command)
            case _:
                reply = await self._services.translator.serve(request, session, raw=raw)
                session.write(reply.parts)
                if reply.close:
                    self._session.close()
                return not reply.refused
        return True

    async def _subscribe(self, command: c.Subscribe) -> None:
        """Answers once the member is in its group, so that whatever is published after the answer is delivered."""
        known = asyncio.get_running_loop().create_future()

        def joined() -> None:
            if not known.done():
                known.set_result(None)
                self._session.write_text(f"{replies.CHECK}Subscribed to '{command.topic}' with group '{command.group}'")

        await self._services.translator.require_topic(command.topic)
        push = asyncio.create_task(self._services.streaming.subscribe(command, self._session, joined))
        self._session.add_push(push)
        push.add_done_callback(lambda done: self._push_ended(done, known))
        await known

    def _push_ended(self, push: asyncio.Task[None], known: asyncio.Future[None]) -> None:
        error = None if push.cancelled() else push.exception()
        if not known.done():
            if error is None:
                known.cancel()
            else:
                known.set_exception(error)
        elif isinstance(error, Refused):
            self._session.write_text(spell(error))
        elif error is not None:
            self._log.error("session.push.failed", exc_info=error)
            self._session.close()
        self._session.push_ended(push)
