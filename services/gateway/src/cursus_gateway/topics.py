"""What CREATE asks of a topic as the broker's configuration, and back: the policies a topic really has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cursus_gateway.dialect import policies
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
    """The policies of a topic by the names, and in the order, that CREATE has for them. Other labels are none."""
    return {**policies.KEPT, **_own_policies(config)}


def _own_policies(config: TopicConfig) -> dict[str, str]:
    """What a topic was given. A retention of 0 is that of the broker."""
    own: dict[str, str] = {}
    hours, rest_ms = divmod(config.retention_ms, _HOUR_MS)
    if config.retention_ms == -1:
        own["retention_hours"] = "-1"
    elif rest_ms:
        own["retention_ms"] = str(config.retention_ms)
    else:
        own["retention_hours"] = str(hours)
    own["retention_bytes"] = str(config.retention_bytes)
    if is_idempotent(config):
        own["idempotent"] = "true"
    return own


def require_policies(command: CreateTopic, topic: Topic) -> None:
    """Refuse to confirm to the creator of a topic that exists what that topic does not do. Raises Refused."""
    has: Mapping[str, str] = _own_policies(topic.config)
    for key, value in _own_policies(wanted_config(command)).items():
        if value != "0" and has.get(key) != value:
            kept = f"with {key}={has[key]}" if has.get(key, "0") != "0" else f"without {key}"
            raise Refused(TOPIC_DIFFERS, f"{key}={value}: the topic exists {kept}, and CREATE does not change that")
