"""What is believed of a topic, for how long, and what a broker that is away changes."""

from __future__ import annotations

import asyncio

import pytest

from cursus_gateway.idempotence import BELIEVED_S, IdempotentTopics
from cursus_gateway.refusals import BROKER_UNAVAILABLE, Refused
from cursus_gateway.upstream import Method
from cursus_proto.v1.topic_service_pb2 import DescribeTopicRequest, DescribeTopicResponse


class OneTopic:
    """A broker with the topic `orders`, or none."""

    def __init__(self) -> None:
        self.label: str | None = "true"
        self.refusal: str | None = None
        self.asked = 0
        self.heard = asyncio.Event()
        self.speaks = asyncio.Event()
        self.speaks.set()

    async def call(
        self,
        method: Method[DescribeTopicRequest, DescribeTopicResponse],
        request: DescribeTopicRequest,
        *,
        timeout_s: float | None = None,
    ) -> DescribeTopicResponse:
        self.asked += 1
        label, refusal = self.label, self.refusal
        self.heard.set()
        await self.speaks.wait()
        if refusal is not None:
            raise Refused(refusal, "refused")
        answer = DescribeTopicResponse()
        answer.topic.name = request.name
        if label is not None:
            answer.topic.config.labels["idempotent"] = label
        return answer


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_an_answer_is_believed_for_some_seconds() -> None:
    broker, clock = OneTopic(), Clock()
    topics = IdempotentTopics(broker, clock)
    assert topics.known("orders") is None
    assert await topics.learn("orders") is True
    broker.label = None
    clock.now += BELIEVED_S - 0.1
    assert topics.known("orders") is True
    clock.now += 0.2
    assert topics.known("orders") is None
    assert await topics.learn("orders") is False
    assert topics.known("orders") is False


async def test_many_wait_for_one_answer() -> None:
    broker = OneTopic()
    topics = IdempotentTopics(broker)
    assert await asyncio.gather(*(topics.learn("orders") for _ in range(50))) == [True] * 50
    assert broker.asked == 1


async def test_a_broker_that_is_away_leaves_the_last_answer_standing() -> None:
    broker, clock = OneTopic(), Clock()
    topics = IdempotentTopics(broker, clock)
    await topics.learn("orders")
    broker.refusal = BROKER_UNAVAILABLE
    clock.now += 10 * BELIEVED_S
    assert await topics.learn("orders") is True
    assert topics.known("orders") is True
    with pytest.raises(Refused):
        await topics.learn("unheard-of")


async def test_a_topic_that_does_not_exist_is_asked_for_again() -> None:
    broker = OneTopic()
    broker.refusal = "TOPIC_NOT_FOUND"
    topics = IdempotentTopics(broker)
    assert await topics.learn("orders") is False
    assert topics.known("orders") is None


async def test_an_answer_under_way_while_the_topic_changes_is_not_kept() -> None:
    broker = OneTopic()
    broker.speaks.clear()
    topics = IdempotentTopics(broker)
    asking = asyncio.ensure_future(topics.learn("orders"))
    await broker.heard.wait()
    topics.forget("orders")
    broker.speaks.set()
    await asking
    assert topics.known("orders") is None
