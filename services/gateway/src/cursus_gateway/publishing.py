"""Publishes in the broker's terms: which identity a batch has, what its acknowledgement says, and its errors.

A batch of numbered messages with the idempotent flag, its own or the topic's, is judged by its sequences in the
windowed way (RULE 39); every other batch is stored whatever was stored before. Only the first generation's single
messages are recognised by content (RULE 38).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cursus_gateway.batch import LegacyBatch
from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import Publish
from cursus_gateway.idempotence import IdempotentTopics
from cursus_gateway.metrics import GatewayMetrics
from cursus_gateway.records import MAX_SEQUENCE, Run
from cursus_gateway.refusals import Refused, fenced_epoch, spell
from cursus_gateway.settings import TopicSettings
from cursus_gateway.upstream import CREATE_TOPIC, GET_METADATA, Upstream
from cursus_proto.internal.v1 import opaque_pb2
from cursus_proto.partitioner import key_hash
from cursus_proto.v1 import cluster_service_pb2, records_pb2, topic_service_pb2
from cursus_proto.v1 import publish_service_pb2 as pb

ACKS: Final = {"0": pb.ACKS_ACCEPTED, "1": pb.ACKS_WRITTEN, "-1": pb.ACKS_ALL}

# A leader that moved is looked for this often before its batch is refused.
_LEADER_ATTEMPTS: Final = 3


class Publishing:
    def __init__(
        self,
        upstream: Upstream,
        idempotent_topics: IdempotentTopics,
        settings: TopicSettings,
        metrics: GatewayMetrics,
    ) -> None:
        self._upstream = upstream
        self._idempotent_topics = idempotent_topics
        self._settings = settings
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def publish_batch(self, batch: LegacyBatch, lane: int, answer: Callable[[str, bool], None]) -> None:
        """Submits the batch and calls `answer` with its acknowledgement or error, and whether it was stored. Never
        waits, so that the batches of a connection follow each other closely and in order."""
        started = time.perf_counter()
        if not batch.count:
            answer(replies.acknowledgement(0, 0, b"", 0, 0), True)
            return
        futures = [self._submit(batch, run, lane) for run in batch.messages.runs]
        left = len(futures)

        def settled(_: asyncio.Future[pb.PublishResponse]) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._settle(batch, futures, lane, started, answer)

        for future in futures:
            future.add_done_callback(settled)

    def _submit(self, batch: LegacyBatch, run: Run, lane: int) -> asyncio.Future[pb.PublishResponse]:
        judged = run.first_sequence is not None or bool(run.sequences)
        # Filled in place: a set of megabytes is copied once into the message and not from message to message.
        message = opaque_pb2.PublishStreamRequest()
        request = message.publish
        request.topic = batch.topic
        request.partition = batch.partition
        request.acks = ACKS[batch.acks]
        request.codec = records_pb2.CODEC_NONE
        request.record_count = run.record_count
        request.records = run.record_set
        if not judged:
            request.deduplication = pb.DEDUPLICATION_NONE
        if run.producer_id:
            request.producer.id = run.producer_id
            request.producer.epoch = run.epoch
            if judged:
                request.producer.sequencing = pb.SEQUENCING_WINDOWED
                if run.first_sequence is not None:
                    request.producer.first_sequence = run.first_sequence
                else:
                    request.producer.sequences.extend(run.sequences)
        pipeline = self._upstream.pipeline(batch.topic, batch.partition, lane)
        return pipeline.submit(message, repeatable=judged)

    def _settle(
        self,
        batch: LegacyBatch,
        futures: Sequence[asyncio.Future[pb.PublishResponse]],
        lane: int,
        started: float,
        answer: Callable[[str, bool], None],
    ) -> None:
        for index, future in enumerate(futures):
            refused = future.exception()
            if refused is None:
                continue
            assert isinstance(refused, Refused), "pipelines end futures in no other way"
            if refused.reason == "NOT_LEADER":
                task = asyncio.create_task(self._publish_at_leader(batch, futures[:index], lane, started, answer))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                answer(self.refusal(batch, refused), False)
            return
        self._metrics.published(batch.count, started)
        answer(_acknowledged(batch, [future.result() for future in futures]), True)

    async def _publish_at_leader(
        self,
        batch: LegacyBatch,
        earlier: Sequence[asyncio.Future[pb.PublishResponse]],
        lane: int,
        started: float,
        answer: Callable[[str, bool], None],
    ) -> None:
        """Publishes the runs behind the `earlier` ones to whoever leads the partition now, one after the other."""
        responses = [future.result() for future in earlier]
        runs, attempts = list(batch.messages.runs[len(earlier) :]), 0
        while runs:
            if attempts:
                await asyncio.sleep(0.05 * attempts)
            await self._upstream.find_leader(batch.topic, batch.partition)
            try:
                while runs:
                    responses.append(await self._submit(batch, runs[0], lane))
                    runs.pop(0)
            except Refused as refused:
                attempts += 1
                if refused.reason != "NOT_LEADER" or attempts >= _LEADER_ATTEMPTS:
                    answer(self.refusal(batch, refused), False)
                    return
        self._metrics.published(batch.count, started)
        answer(_acknowledged(batch, responses), True)

    def refusal(self, batch: LegacyBatch, refused: Refused) -> str:
        """RULE 32: text for whatever a retry or a person can cure; JSON only for fencing, which P2 takes for sent."""
        self._metrics.errors.labels(refused.reason).inc()
        if refused.reason == "PRODUCER_FENCED":
            messages = batch.messages
            return replies.acknowledgement(
                0,
                messages.last_epoch,
                messages.last_producer_id,
                messages.first_sequence,
                messages.last_sequence,
                fenced_epoch(refused),
            )
        return spell(refused, classified=True)

    async def publish(self, command: Publish, lane: int) -> pb.AppendedBatch:
        """Publishes one message. Raises Refused."""
        started = time.perf_counter()
        partition = command.partition
        numbered = bool(command.producer_id) and 0 < command.sequence <= MAX_SEQUENCE
        judged = numbered and (command.idempotent or await self._is_idempotent(command.topic))
        if judged and partition is None:
            partition = await self._partition_of(command)
        record = records_pb2.Record(value=command.message, key=command.key or None)
        message = opaque_pb2.PublishStreamRequest()
        request = message.publish
        request.topic = command.topic
        if partition is not None:
            request.partition = partition
        request.acks = ACKS[command.acks]
        request.codec = records_pb2.CODEC_NONE
        request.record_count = 1
        if command.producer_id:
            request.producer.id = command.producer_id
            request.producer.epoch = command.epoch
        if judged:
            request.producer.first_sequence = command.sequence
            request.producer.sequencing = pb.SEQUENCING_WINDOWED
        else:
            if command.sequence:
                record.sequence = command.sequence
            if not command.by_content:
                request.deduplication = pb.DEDUPLICATION_NONE
        request.records = records_pb2.RecordSet(records=[record]).SerializeToString()
        response = await self._submit_anywhere(message, lane, repeatable=judged)
        self._metrics.published(1, started)
        return response.appended[0]

    async def _is_idempotent(self, topic: str) -> bool:
        known = self._idempotent_topics.known(topic)
        return await self._idempotent_topics.learn(topic) if known is None else known

    async def _submit_anywhere(
        self, message: opaque_pb2.PublishStreamRequest, lane: int, *, repeatable: bool
    ) -> pb.PublishResponse:
        request = message.publish
        partition = request.partition if request.HasField("partition") else None
        for _ in range(_LEADER_ATTEMPTS):
            try:
                pipeline = self._upstream.pipeline(request.topic, partition, lane)
                return await asyncio.shield(pipeline.submit(message, repeatable=repeatable))
            except Refused as refused:
                if refused.reason != "NOT_LEADER" or partition is None:
                    raise
                last = refused
            await self._upstream.find_leader(request.topic, partition)
        raise last

    async def _partition_of(self, command: Publish) -> int:
        """Sequences are counted per partition, so a repetition has to find the partition of the original: by the key,
        or without one by the producer."""
        request = cluster_service_pb2.GetMetadataRequest(topics=[command.topic])
        answer = await self._upstream.call(GET_METADATA, request)
        if not answer.topics:
            raise Refused("TOPIC_NOT_FOUND", f"topic {command.topic!r} does not exist", {"topic": command.topic})
        return key_hash(command.key or command.producer_id) % len(answer.topics[0].partitions)

    async def publish_direct(self, topic: str, payload: bytes, lane: int) -> None:
        """Publishes a direct message, creating its topic if that is wanted. Raises Refused."""
        command = Publish(topic, payload, by_content=True)
        try:
            await self.publish(command, lane)
            return
        except Refused as refused:
            if refused.reason != "TOPIC_NOT_FOUND" or not self._settings.auto_create:
                raise
        count = self._settings.auto_create_partitions
        try:
            request = topic_service_pb2.CreateTopicRequest(name=topic, partition_count=count)
            await self._upstream.call(CREATE_TOPIC, request)
        except Refused as refused:
            if refused.reason != "TOPIC_EXISTS":
                raise
        await self.publish(command, lane)

    async def close(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)


def last_offset(parts: Iterable[pb.AppendedBatch]) -> int:
    """The highest offset that storing these parts assigned, or had assigned if all are repetitions (RULE 29). 0 if that
    is not known any more: the broker's -1 is nothing Go can read as unsigned.
    """
    fresh, repeated = 0, 0
    for part in parts:
        if part.fresh_record_count:
            fresh = max(fresh, part.base_offset + part.fresh_record_count)
        elif part.base_offset >= 0:
            repeated = max(repeated, part.base_offset + part.record_count)
    return max(0, (fresh or repeated) - 1)


def _acknowledged(batch: LegacyBatch, responses: Sequence[pb.PublishResponse]) -> str:
    messages = batch.messages
    return replies.acknowledgement(
        last_offset(response.appended[-1] for response in responses),
        messages.last_epoch,
        messages.last_producer_id,
        messages.first_sequence,
        messages.last_sequence,
    )
