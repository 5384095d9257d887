from __future__ import annotations

import pytest

from cursus_broker.errors import InvalidTopicConfig
from cursus_broker.topics.config import UNLIMITED, TopicConfig

FULL = TopicConfig(
    retention_ms=1,
    retention_bytes=UNLIMITED,
    segment_bytes=1_048_576,
    segment_ms=60_000,
    content_deduplication=False,
    min_value_bytes=0,
    max_value_bytes=10,
    labels={"team": "zahlung ✓"},
)


@pytest.mark.parametrize("config", [TopicConfig(), FULL])
def test_a_configuration_survives_its_json(config: TopicConfig) -> None:
    assert TopicConfig.from_json(config.to_json()) == config


def test_what_is_not_set_is_not_written() -> None:
    assert TopicConfig().to_json() == "{}"
    assert TopicConfig(content_deduplication=False).to_json() == '{"content_deduplication": false}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"retention": 5}',
        '{"retention_ms": "5"}',
        '{"retention_ms": true}',
        '{"retention_ms": -2}',
        '{"segment_bytes": 1}',
        '{"segment_ms": 0}',
        '{"content_deduplication": 1}',
        '{"labels": []}',
        '{"labels": {"a": 1}}',
        '{"labels": {"": "x"}}',
        '{"max_value_bytes": 9223372036854775808}',
    ],
)
def test_json_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicConfig):
        TopicConfig.from_json(text)


def test_bounds_of_values_must_not_cross() -> None:
    with pytest.raises(InvalidTopicConfig, match="min_value_bytes 5 is above max_value_bytes 4"):
        TopicConfig(min_value_bytes=5, max_value_bytes=4).validate()


def test_an_update_changes_what_it_sets_and_nothing_else() -> None:
    merged = FULL.merged(TopicConfig(retention_ms=9, labels={"owner": "me", "team": ""}))
    assert merged.retention_ms == 9
    assert merged.segment_ms == FULL.segment_ms
    assert merged.content_deduplication is False
    assert merged.labels == {"owner": "me"}
