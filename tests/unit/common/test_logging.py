from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from cursus_service.logging import LogFormat, LogLevel, configure_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_fields() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.JSON, stream=stream)
    structlog.get_logger().bind(topic="orders").warning("log.recovery.cut", lost_bytes=7)
    (event,) = events(stream)
    assert event.pop("timestamp").endswith("Z")
    assert event == {"event": "log.recovery.cut", "level": "warning", "topic": "orders", "lost_bytes": 7}


def test_a_library_writes_through_the_same_pipe() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.JSON, stream=stream)
    logging.getLogger("grpc._server").error("stream %d broke", 3)
    (event,) = events(stream)
    assert (event["event"], event["level"], event["logger"]) == ("stream 3 broke", "error", "grpc._server")


def test_levels_below_the_threshold_are_dropped() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.WARNING, LogFormat.JSON, stream=stream)
    structlog.get_logger().info("quiet")
    logging.getLogger("some.library").info("quiet")
    assert events(stream) == []


@pytest.mark.parametrize("through", ["structlog", "standard library"])
def test_a_traceback_is_data_in_json(through: str) -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.JSON, stream=stream)
    try:
        raise LookupError("gone")
    except LookupError:
        if through == "structlog":
            structlog.get_logger().exception("lookup.failed")
        else:
            logging.getLogger("some.library").exception("lookup.failed")
    (event,) = events(stream)
    assert event["exception"][0]["exc_type"] == "LookupError"


def test_a_field_json_does_not_know_is_written_as_text() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.JSON, stream=stream)
    structlog.get_logger().info("started", version=complex(1, 2))
    assert events(stream)[0]["version"] == "(1+2j)"


def test_the_console_format_is_for_people() -> None:
    stream = io.StringIO()
    configure_logging(LogLevel.INFO, LogFormat.CONSOLE, stream=stream)
    structlog.get_logger().info("broker.listening", port=1)
    assert "broker.listening" in stream.getvalue()
    assert "port=1" in stream.getvalue()
    assert "\x1b[" not in stream.getvalue(), "no colours into a file"


def test_debug_is_not_buried_by_the_libraries_below() -> None:
    """hpack once wrote several lines for every header of every call."""
    stream = io.StringIO()
    configure_logging(LogLevel.DEBUG, LogFormat.JSON, stream=stream)
    logging.getLogger("hpack.hpack").debug("Decoded %d, consumed %d bytes", 1, 2)
    structlog.get_logger().debug("rpc.refused")
    assert [event["event"] for event in events(stream)] == ["rpc.refused"]
