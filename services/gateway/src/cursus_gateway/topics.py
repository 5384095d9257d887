"""What CREATE asks of a topic as the broker's configuration, and back: the policies a topic really has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cursus_gateway.dialect.commands import CreateTopic
from cursus_gateway.idempotence import LABEL, is_idempotent
from cursus_gateway.refusals import TOPIC_DIFFERS, Refused
from cursus_proto.v1.topic_service_pb2 import Topic, TopicConfig

_HOUR_MS: Final = 3_600_000


def wanted_config(command: CreateTopic) -> TopicConfig:
    return TopicConfig(
        labels={LABEL: "true"} if command.idempotent else {},
        retention_ms=command.retention_ms,
        retention_bytes=command.retention_bytes,
    )


def policies_of(config: TopicConfig) -> dict[str, str]:
    """The policies a topic was given, by the names CREATE has for them. Other labels are none."""
    policies: dict[str, str] = {}
    if is_idempotent(config):
        policies["idempotent"] = "true"
    if config.HasField("retention_ms"):
        hours, rest_ms = divmod(config.retention_ms, _HOUR_MS)
        if config.retention_ms == -1:
            policies["retention_hours"] = "-1"
        elif rest_ms:
            policies["retention_ms"] = str(config.retention_ms)
        else:
            policies["retention_hours"] = str(hours)
    if config.HasField("retention_bytes"):
        policies["retention_bytes"] = str(config.retention_bytes)
    return policies


def require_policies(command: CreateTopic, topic: Topic) -> None:
    """Refuse to confirm to the creator of a topic that exists what that topic does not do. Raises Refused."""
    has: Mapping[str, str] = policies_of(topic.config)
    for key, value in policies_of(wanted_config(command)).items():
        if has.get(key) != value:
            kept = f"with {key}={has[key]}" if key in has else f"without {key}"
            raise Refused(TOPIC_DIFFERS, f"{key}={value}: the topic exists {kept}, and CREATE does not change that")
