"""What a topic may set for itself. A field that is None follows the broker's default, also when the default changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final

from cursus_broker.errors import InvalidTopicConfig

UNLIMITED: Final = -1
"""A retention of -1 keeps records for ever, whatever the broker's default says."""

MIN_SEGMENT_BYTES: Final = 1024
MAX_SEGMENT_BYTES: Final = 1024**3
MAX_LABELS: Final = 64
MAX_LABEL_CHARS: Final = 256
_MAX_INT64: Final = 2**63 - 1

_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "retention_ms": (UNLIMITED, _MAX_INT64),
    "retention_bytes": (UNLIMITED, _MAX_INT64),
    "segment_bytes": (MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES),
    "segment_ms": (1, _MAX_INT64),
    "min_value_bytes": (0, _MAX_INT64),
    "max_value_bytes": (0, _MAX_INT64),
}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    retention_ms: int | None = None
    """Sealed segments whose newest record is older than this are deleted; UNLIMITED keeps them."""
    retention_bytes: int | None = None
    """The oldest sealed segments of a partition are deleted while it is larger than this; UNLIMITED keeps them."""
    segment_bytes: int | None = None
    segment_ms: int | None = None
    content_deduplication: bool | None = None
    min_value_bytes: int | None = None
    """Setting this or `max_value_bytes` makes the broker look into every record set of the topic."""
    max_value_bytes: int | None = None
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """For people and tools; the broker gives them no meaning."""

    def validate(self) -> None:
        """Raises InvalidTopicConfig for the first value that makes no sense."""
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or not low <= value <= high):
                raise InvalidTopicConfig(f"{name} is {value!r}, allowed is {low} to {high}", field=name, value=value)
        if self.content_deduplication is not None and not isinstance(self.content_deduplication, bool):
            raise InvalidTopicConfig(
                f"content_deduplication is {self.content_deduplication!r}, allowed is true or false",
                field="content_deduplication",
            )
        least, most = self.min_value_bytes, self.max_value_bytes
        if least is not None and most is not None and least > most:
            raise InvalidTopicConfig(
                f"min_value_bytes {least} is above max_value_bytes {most}", field="min_value_bytes", value=least
            )
        _validate_labels(self.labels)

    def merged(self, update: TopicConfig) -> TopicConfig:
        """This configuration with the fields `update` sets. Labels are added one by one; an empty value removes one."""
        changes = {
            entry.name: value
            for entry in fields(update)
            if entry.name != "labels" and (value := getattr(update, entry.name)) is not None
        }
        labels = {key: value for key, value in {**self.labels, **update.labels}.items() if value}
        return replace(self, **changes, labels=labels)

    def without(self, names: Sequence[str]) -> TopicConfig:
        """This configuration with the named fields back at the broker's default.

        Raises InvalidTopicConfig for a name that is not a setting of a topic.
        """
        known = {entry.name for entry in fields(self)} - {"labels"}
        for name in names:
            if name not in known:
                raise InvalidTopicConfig(f"a topic has no setting {name!r} to reset", field=name)
        cleared: dict[str, Any] = dict.fromkeys(names)
        return replace(self, **cleared)

    def set_fields(self) -> dict[str, object]:
        """What is not left to the broker's defaults, by name."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "labels"}
        found = {name: value for name, value in values.items() if value is not None}
        return {**found, "labels": dict(self.labels)} if self.labels else found

    def to_json(self) -> str:
        """Only what is set, in a fixed order: equal configurations give equal text."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "labels"}
        document: dict[str, object] = {name: value for name, value in values.items() if value is not None}
        if self.labels:
            document["labels"] = dict(self.labels)
        return json.dumps(document, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> TopicConfig:
        """Raises InvalidTopicConfig for anything `to_json` did not write: a setting is never dropped unnoticed."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InvalidTopicConfig(f"the topic configuration is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise InvalidTopicConfig("the topic configuration is not a JSON object")
        if unknown := document.keys() - {entry.name for entry in fields(cls)}:
            raise InvalidTopicConfig(f"unknown topic settings: {', '.join(sorted(unknown))}")
        config = cls(**document)
        config.validate()
        return config


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _validate_labels(labels: object) -> None:
    if not isinstance(labels, Mapping) or len(labels) > MAX_LABELS:
        raise InvalidTopicConfig(f"labels must be at most {MAX_LABELS} pairs of text", field="labels")
    for key, value in labels.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidTopicConfig(f"label {key!r} is not text", field="labels")
        if not 0 < len(key) <= MAX_LABEL_CHARS or len(value) > MAX_LABEL_CHARS:
            raise InvalidTopicConfig(
                f"label {key[:32]!r} is empty or above {MAX_LABEL_CHARS} characters", field="labels"
            )
