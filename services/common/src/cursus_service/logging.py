"""Structured logs on stderr: structlog for our own events, and the standard library's records through the same pipe.

An event is a stable dotted name and fields. JSON is for machines, console for a person at a terminal.
"""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_NOISY_LIBRARIES: Final = ("hpack", "asyncio")
"""Their debug records, several for every header of every call, bury our own."""


class LogFormat(StrEnum):
    JSON = "json"
    CONSOLE = "console"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def configure_logging(level: LogLevel, output: LogFormat, *, stream: TextIO | None = None) -> None:
    """Replaces whatever logging was configured before, in structlog and in the standard library.

    Levels below `level` are dropped before a field is formatted. A library's record becomes an event whose text is
    the record's message and whose `logger` field names the library.
    """
    target = sys.stderr if stream is None else stream
    threshold = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.processors.StackInfoRenderer(), *_rendering(output, target)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(target),
        # A logger made at import time must still see a later configuration, as tests do; binding costs little.
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_the_library],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(output, target)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for noisy in _NOISY_LIBRARIES:
        logging.getLogger(noisy).setLevel(max(threshold, logging.INFO))
    logging.captureWarnings(capture=True)


def _rendering(output: LogFormat, target: TextIO) -> list[Processor]:
    match output:
        case LogFormat.JSON:
            return [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer(default=str)]
        case LogFormat.CONSOLE:
            return [
                structlog.dev.ConsoleRenderer(colors=target.isatty(), exception_formatter=structlog.dev.plain_traceback)
            ]


def _name_the_library(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
    return event
