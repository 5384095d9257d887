"""The `CURSUS_*` variables that mean something to some program of ours, so that each leaves those of the others alone.

A name here is one more line for every setting of a service; a test compares the list with the settings.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

_PREFIX: Final = "CURSUS_"

SERVICES: Final = frozenset(
    {
        "CURSUS_ADVERTISED_HOST",
        "CURSUS_ADVERTISED_PORT",
        "CURSUS_BROKER",
        "CURSUS_BROKER_ID",
        "CURSUS_CONFIG",
        "CURSUS_CONNECTIONS_BACKLOG",
        "CURSUS_CONNECTIONS_LARGE_FRAME_BYTES",
        "CURSUS_CONNECTIONS_LIMIT",
        "CURSUS_CONNECTIONS_READ_DEADLINE_MS",
        "CURSUS_CONNECTIONS_UNANSWERED_BYTES",
        "CURSUS_CONNECTIONS_WRITE_BUFFER_BYTES",
        "CURSUS_CONSUME_RESPONSE_BYTES",
        "CURSUS_CONSUME_TAIL_BYTES",
        "CURSUS_CONSUME_TAIL_RECORDS",
        "CURSUS_DATA_DIR",
        "CURSUS_ENABLE_GZIP",
        "CURSUS_GRACE_MS",
        "CURSUS_GROUPS_MAX_GROUPS",
        "CURSUS_GROUPS_MAX_MEMBERS",
        "CURSUS_GROUPS_SESSION_TIMEOUT_MS",
        "CURSUS_GROUPS_STREAM_AUTOCOMMIT",
        "CURSUS_GROUPS_STREAM_KEEPALIVE_MS",
        "CURSUS_GRPC_CLIENT_PING_INTERVAL_MS",
        "CURSUS_GRPC_KEEPALIVE_MS",
        "CURSUS_GRPC_KEEPALIVE_TIMEOUT_MS",
        "CURSUS_GRPC_MAX_INFLATED_BYTES",
        "CURSUS_GRPC_MAX_REQUEST_BYTES",
        "CURSUS_GRPC_MAX_STREAMS_PER_CONNECTION",
        "CURSUS_GRPC_PORT",
        "CURSUS_HEALTH_PORT",
        "CURSUS_HOST",
        "CURSUS_LISTEN",
        "CURSUS_LOGGING_FORMAT",
        "CURSUS_LOGGING_LEVEL",
        "CURSUS_LOG_DIR",
        "CURSUS_LOG_FLUSH_RECORDS",
        "CURSUS_LOG_INDEX_INTERVAL_BYTES",
        "CURSUS_LOG_LINGER_MS",
        "CURSUS_LOG_OPEN_FILES",
        "CURSUS_LOG_SCRUB_BYTES_PER_S",
        "CURSUS_LOG_SCRUB_INTERVAL_MS",
        "CURSUS_LOG_SEGMENT_BYTES",
        "CURSUS_LOG_SEGMENT_MS",
        "CURSUS_METRICS_PORT",
        "CURSUS_PORT",
        "CURSUS_PROFILE",
        "CURSUS_PUBLISH_BUFFER_BYTES",
        "CURSUS_PUBLISH_CLEANUP_INTERVAL_MS",
        "CURSUS_PUBLISH_DEDUP_MAX_ENTRIES",
        "CURSUS_PUBLISH_DEDUP_TOTAL_ENTRIES",
        "CURSUS_PUBLISH_DEDUP_WINDOW_MS",
        "CURSUS_PUBLISH_MAX_BATCH_BYTES",
        "CURSUS_PUBLISH_MAX_BATCH_RECORDS",
        "CURSUS_PUBLISH_MAX_UNPACKED_BYTES",
        "CURSUS_PUBLISH_PRODUCER_IDLE_MS",
        "CURSUS_PUBLISH_UNPACKING_BYTES",
        "CURSUS_PUBLISH_WINDOW_BYTES",
        "CURSUS_PUBLISH_WRITE_TIMEOUT_MS",
        "CURSUS_REPLY_PROFILE",
        "CURSUS_TLS_CERT",
        "CURSUS_TLS_CLIENT_CA",
        "CURSUS_TLS_KEY",
        "CURSUS_TOPICS_AUTO_CREATE",
        "CURSUS_TOPICS_AUTO_CREATE_PARTITIONS",
        "CURSUS_TOPICS_DEFAULT_PARTITIONS",
        "CURSUS_TOPICS_MAX_PARTITIONS",
        "CURSUS_TOPICS_MAX_TOPIC_PARTITIONS",
        "CURSUS_TOPICS_RETENTION_BYTES",
        "CURSUS_TOPICS_RETENTION_CHECK_MS",
        "CURSUS_TOPICS_RETENTION_MS",
        "CURSUS_UNPACKING_MAX_BYTES",
        "CURSUS_UNPACKING_MAX_RECORDS",
        "CURSUS_UNPACKING_SHARED_BYTES",
        "CURSUS_UPSTREAM_CHANNELS",
        "CURSUS_UPSTREAM_HEALTH_INTERVAL_MS",
        "CURSUS_UPSTREAM_PENDING_BYTES",
        "CURSUS_UPSTREAM_REQUEST_TIMEOUT_MS",
        "CURSUS_UPSTREAM_TLS_CA",
        "CURSUS_UPSTREAM_TLS_CERT",
        "CURSUS_UPSTREAM_TLS_KEY",
    }
)
"""Of the broker and the gateway."""

_COMMAND_LINE: Final = frozenset(
    {
        "CURSUS_BROKER",
        "CURSUS_COMPLETE",
        "CURSUS_CONFIG",
        "CURSUS_TIMEOUT",
        "CURSUS_TLS",
        "CURSUS_TLS_CA",
        "CURSUS_TLS_CERT",
        "CURSUS_TLS_KEY",
        "CURSUS_TLS_SERVER_NAME",
    }
)
_OTHERS: Final = ("CURSUS_CLI_", "CURSUS_CLIENT_", "CURSUS_SPARK_", "CURSUS_TEST_", "CURSUS_TOOLS_", "CURSUS_HELM_")

# What Kubernetes puts into every container for a Service called cursus-something.
_INJECTED: Final = re.compile(r"CURSUS_\w+_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_INJECTED_PORT: Final = re.compile(r"(tcp|udp|sctp)://\S+")

_CLOSE: Final = 0.85
"""Of the letters behind the prefix: CURSUS_DATADIR is close to CURSUS_DATA_DIR, CURSUS_BROKER not to …_BROKER_ID."""


def misspelt(name: str, value: str, known: Collection[str]) -> str | None:
    """The variable in `known` that somebody probably meant with this one; None if it is known to a program of ours,
    comes from Kubernetes, or is close to none."""
    if not name.startswith(_PREFIX) or name in known or name in SERVICES or name in _COMMAND_LINE:
        return None
    if name.startswith(_OTHERS) or _INJECTED.fullmatch(name):
        return None
    if name.endswith("_PORT") and _INJECTED_PORT.fullmatch(value):
        return None
    rests = {variable.removeprefix(_PREFIX): variable for variable in known}
    close = get_close_matches(name.removeprefix(_PREFIX).upper(), rests, n=1, cutoff=_CLOSE)
    return rests[close[0]] if close else None
