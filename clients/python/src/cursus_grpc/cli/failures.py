"""What went wrong, as one line with a hint. The only module that turns exceptions into text and exit statuses."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from typing import Final

import click

from cursus_grpc.cli.connection import BadConfiguration
from cursus_grpc.cli.formats import printable
from cursus_grpc.errors import CursusError

REFUSED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
"""128 + SIGINT, as shells have it."""


class Failed(Exception):
    """A command could not do what it was asked to, for a reason of its own. Status 1."""

    def __init__(self, message: str, hint: str = "", reason: str = "FAILED") -> None:
        super().__init__(message)
        self.hint = hint
        self.reason = reason


HINTS: Final = {
    "INVALID_REQUEST": "see the command's --help",
    "INVALID_TOPIC_NAME": "a name has 1 to 249 letters, digits, '.', '_' or '-'",
    "INVALID_PARTITION_COUNT": "a topic has at least one partition, and never fewer than before",
    "INVALID_TOPIC_CONFIG": "`cursus topic update --help` lists the settings",
    "PARTITION_REQUIRED": "name one with --partition",
    "UNKNOWN_CODEC": "the broker is older than this command; try --compression none",
    "CORRUPT_RECORD_SET": "the broker and this command do not agree; compare versions with `cursus doctor`",
    "RECORD_TOO_LARGE": "split it, or raise the topic's max_value_bytes or the broker's publish.max_batch_bytes",
    "RECORD_TOO_SMALL": "`cursus topic describe` shows the topic's min_value_bytes",
    "RECORD_SET_TOO_LARGE": "publish fewer records in a batch, or raise the broker's limit",
    "REQUEST_TOO_LARGE": "name fewer things at once",
    "TOO_MANY_ITEMS": "name fewer things at once; docs/limits.md has the limits",
    "TOPIC_NOT_FOUND": "`cursus topic list` shows the topics, `cursus topic create` makes one",
    "PARTITION_NOT_FOUND": "`cursus topic describe` shows the partitions",
    "GROUP_NOT_FOUND": "`cursus group list` shows the groups",
    "MEMBER_NOT_FOUND": "`cursus group describe` shows the members",
    "TOPIC_EXISTS": "choose another name, or `cursus topic update` this one",
    "OFFSET_OUT_OF_RANGE": "`cursus topic describe` shows what each partition holds, --partition chooses one",
    "LOG_TRUNCATED": "power loss or damage took the records that were read; go on from the offset named",
    "NOT_LEADER": "try again in a moment",
    "PRODUCER_FENCED": "another producer runs under the same identity",
    "PRODUCER_FORGOTTEN": "what it sent last may be stored; read the topic, then publish what is missing",
    "SEQUENCE_GAP": "records before these were lost; publish them again",
    "SEQUENCE_CONFLICT": "the broker holds other records under these numbers; publish again",
    "SEQUENCE_TOO_OLD": "another producer runs under the same identity, and is ahead",
    "GENERATION_MISMATCH": "the group is rebalancing; try again",
    "NOT_OWNER": "the group is rebalancing; try again",
    "MEMBER_FENCED": "a newer process runs under the same instance id",
    "OFFSET_REGRESSION": "`cursus group reset` moves offsets back",
    "GROUP_NOT_EMPTY": "stop its members first; `cursus group describe` shows them",
    "INCONSISTENT_GROUP": "all members of a group have to ask for the same strategy",
    "SHUTTING_DOWN": "try again when the broker is back",
    "STORAGE_FAILED": "look at the broker's disk and its log; `cursus doctor` shows which partitions take no more",
    "PARTITION_REOPENED": "try again: the partition was opened anew meanwhile",
    "DISK_FULL": "make room on the broker's disk: shorten retention, delete records or topics, or enlarge the volume",
    "WRITE_TIMEOUT": "the broker's disk is behind; publish more slowly (--rate) or try again",
    "RESOURCE_LIMIT": "the broker's settings bound this; see docs/configuration.md",
    "DATA_LOSS": "stop the broker and run `cursus segments inspect` on its data directory",
    "INTERNAL": "the broker's log has the details",
    "BROKER_UNREACHABLE": "is it running, and is --broker right? `cursus doctor` finds out",
    "TLS_FAILED": "check --tls-ca, --tls-cert and --tls-key; `cursus doctor` shows what is used",
    "DEADLINE_EXCEEDED": "try again, or give it longer with --timeout",
    "DELIVERY_TIMEOUT": "`cursus doctor` checks the broker",
    "BUFFER_FULL": "publish more slowly (--rate)",
    "PARTITIONER_FAILED": "the program's own choice of a partition is wrong",
    "DESERIALIZER_FAILED": "the record was not written with the serializer that is expected here",
    "CLIENT_CLOSED": "try again",
    "CORRUPT_BATCH": "run `cursus segments inspect` on the broker's data directory",
    "BATCH_TOO_LARGE": "go on behind it with --from and --partition, or move the group with `cursus group reset`",
    "NO_COMMITTED_OFFSET": "`cursus group reset` sets one",
    "COMMIT_FAILED": "`cursus group describe` shows who owns the partitions",
}
"""A next step for every reason. A test compares the keys with the client's exceptions."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What to tell, and how to exit."""

    message: str
    reason: str
    hint: str
    status: int

    def line(self) -> str:
        """One line, whatever is in the message."""
        reason = f" ({self.reason})" if self.status == REFUSED else ""
        hint = f"; {self.hint}" if self.hint else ""
        return printable(f"{self.message.strip().rstrip('.')}{reason}{hint}".replace("\n", " "))

    def json(self) -> str:
        return json.dumps({"error": {"reason": self.reason, "message": self.message, "hint": self.hint}})


def explain(error: BaseException) -> Failure:
    """The failure behind an exception that ended a command."""
    match error:
        case CursusError():
            return Failure(str(error), error.reason, HINTS.get(error.reason, ""), REFUSED)
        case Failed():
            return Failure(str(error), error.reason, error.hint, REFUSED)
        case BadConfiguration():
            return Failure(str(error), "BAD_CONFIGURATION", "`cursus --help` lists the flags and variables", USAGE)
        case click.UsageError():
            command = error.ctx.command_path if error.ctx is not None else "cursus"
            return Failure(_lowered(error.format_message()), "USAGE", f"see `{command} --help`", USAGE)
        case click.ClickException():
            return Failure(error.format_message(), "FAILED", "", REFUSED)
        case KeyboardInterrupt() | click.Abort():
            return Failure("interrupted", "INTERRUPTED", "", INTERRUPTED)
        case OSError():
            name = f"{error.filename}: " if error.filename else ""
            return Failure(f"{name}{error.strerror or error}", "IO_FAILED", "", REFUSED)
        case _:
            what = traceback.format_exception_only(error)[-1].strip()
            return Failure(
                f"this is a bug: {what}", "BUG", "run it again with --debug and report what it prints", REFUSED
            )


def _lowered(text: str) -> str:
    """As the rest of a sentence; an option's or a file's name at the front keeps its case."""
    return text[:1].lower() + text[1:] if text[1:2].islower() else text
