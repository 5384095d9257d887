"""Which topics want every numbered batch judged by its sequences, whatever the batch's own flag says (RULE 39).

CREATE with `idempotent=true` leaves a label at the topic. The gateway keeps nothing, so it asks the broker for it and
believes the answer for a few seconds: a topic that is deleted and made anew elsewhere is noticed that much later.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol

from cursus_gateway.refusals import Refused
from cursus_gateway.upstream import DESCRIBE_TOPIC, Method
from cursus_proto.v1.topic_service_pb2 import DescribeTopicRequest, DescribeTopicResponse, TopicConfig

LABEL: Final = "idempotent"

BELIEVED_S: Final = 5.0
MAX_TOPICS: Final = 10_000
# A broker that is away must not cost a batch for a known topic its time to wait for the broker twice.
_REFRESH_S: Final = 0.5


class Broker(Protocol):
    """Whom to ask."""

    async def call(
        self,
        method: Method[DescribeTopicRequest, DescribeTopicResponse],
        request: DescribeTopicRequest,
        *,
        timeout_s: float | None = None,
    ) -> DescribeTopicResponse:
        """Raises Refused."""


class IdempotentTopics:
    def __init__(self, broker: Broker, clock: Callable[[], float] = monotonic) -> None:
        self._broker = broker
        self._clock = clock
        self._answers: OrderedDict[str, tuple[bool, float]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[bool]] = {}

    def known(self, topic: str) -> bool | None:
        """Whether the topic is idempotent; None if the broker has to be asked."""
        found = self._answers.get(topic)
        return found[0] if found is not None and self._clock() < found[1] else None

    async def learn(self, topic: str) -> bool:
        """Asks the broker; many may wait for one answer. A topic that does not exist is not idempotent. If the broker
        cannot be asked, its last answer still counts. Raises Refused if there is none.
        """
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.create_task(self._ask(topic))
            asking.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(asking)

    def forget(self, topic: str) -> None:
        """The topic has just changed. An answer that is under way may be older than that and is not kept."""
        self._answers.pop(topic, None)
        self._asking.pop(topic, None)

    async def _ask(self, topic: str) -> bool:
        before = self._answers.get(topic)
        try:
            request, patience_s = DescribeTopicRequest(name=topic), None if before is None else _REFRESH_S
            described = await self._broker.call(DESCRIBE_TOPIC, request, timeout_s=patience_s)
            idempotent = is_idempotent(described.topic.config)
        except Refused as refused:
            if refused.reason in ("TOPIC_NOT_FOUND", "INVALID_TOPIC_NAME"):
                self._answers.pop(topic, None)
                return False
            if before is None:
                raise
            idempotent, _ = before
        if self._asking.get(topic) is asyncio.current_task():
            self._answers[topic] = (idempotent, self._clock() + BELIEVED_S)
            self._answers.move_to_end(topic)
            while len(self._answers) > MAX_TOPICS:
                self._answers.popitem(last=False)
        return idempotent

    def _asked(self, topic: str, done: asyncio.Task[bool]) -> None:
        if self._asking.get(topic) is done:
            del self._asking[topic]
        # Whoever waited may be gone; that nobody looks at a refusal is then no mistake.
        if not done.cancelled():
            done.exception()


def is_idempotent(config: TopicConfig) -> bool:
    return config.labels.get(LABEL, "").lower() in ("true", "1")
