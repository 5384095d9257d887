"""How answers are spelt. Clients match some of them byte for byte, so every text of the wire is here and nowhere else.

An error is `ERROR: code`, then `key=value` words, quoted where they hold white space. A success of a key=value command
is `OK` and such words. Nothing ends with a newline. Words that clients search for anywhere in an answer are kept out
of echoed values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from cursus_gateway.dialect.commands import CLUSTER, INTERNAL, SERVED

CHECK: Final = "\u2705 "
BIN: Final = "\U0001f5d1\ufe0f "
OUTBOX: Final = "\U0001f4e4 "

OK: Final = "OK"
NOT_UNDERSTOOD: Final = 'ERROR: decode_failed reason="not a command, envelope or batch"'
EMPTY_GROUP: Final = "ERROR: group name cannot be empty"
NO_COORDINATOR: Final = "ERROR: coordinator_not_available"

# Substrings that make some client rejoin, redirect or stop (RULE 14). `NOT_FOUND` covers all that end so.
RESERVED: Final = (
    "NOT_LEADER",
    "NOT_COORDINATOR",
    "LEADER_IS",
    "REBALANCE_REQUIRED",
    "GEN_MISMATCH",
    "NOT_OWNER",
    "NOT_FOUND",
    "member_not_found",
    "group_not_found",
    "producer_fenced",
    "stale_producer_epoch",
    "idempotency",
    "first message",
    "seqnum 1",
)
_MAX_ECHO: Final = 200

FEATURES: Final = ("idempotent_producer_v1", "offset_resume_v1", "stream_control_v1", "structured_errors_v1")
_ERROR_CLASSES: Final = "authorization,availability,conflict,fencing,internal,not_found,routing,validation"


def error(code: str, **fields: object) -> str:
    """`ERROR: code key=value …`. Values are shortened and freed of what clients would misread."""
    return " ".join((f"ERROR: {code}", *(f"{key}={quote(value)}" for key, value in fields.items())))


def is_error(text: str) -> bool:
    """Whether an answer tells a client no."""
    return text.startswith(("ERROR:", '{"status":"ERROR"'))


def refusal(code: str, *, retryable: bool, **fields: object) -> str:
    """An error that says whether to try again, in the words of the third generation (RULE 32)."""
    kind = "availability" if retryable else "validation"
    return error(code, **{"class": kind, "retryable": str(retryable).lower(), **fields})


def quote(value: object) -> str:
    """The value as one word, in double quotes if it has white space or none at all. Escapes are not understood by all
    clients, so what would need one is replaced."""
    text = str(value)[:_MAX_ECHO].replace('"', "'")
    for word in RESERVED:
        text = text.replace(word, word.replace("_", "-").replace(" ", "-"))
    text = "".join(char if char.isprintable() else " " for char in text)
    return f'"{text}"' if " " in text or not text else text


def unknown_command(text: str) -> str:
    return error("unknown_command", command=text) if " " in text else f'ERROR: unknown_command command="{quote(text)}"'


def unknown_command_first_generation(text: str) -> str:
    return f"ERROR: unknown command: {quote(text).strip(chr(34))}. Type HELP for available commands."


def not_served(name: str) -> str:
    if name in INTERNAL:
        return error("internal_command_unauthorized", command=name)
    if name == "LIST_CLUSTER":
        return error("distribution_not_enabled")
    if name in CLUSTER:
        return error("distribution_required", command=name)
    return refusal("not_supported", retryable=False, command=name)


def pattern_not_served(name: str, topic: str) -> str:
    reason = "only CONSUME takes a pattern; a group joins and commits topics by their names"
    return refusal("not_supported", retryable=False, command=name, topic=topic, reason=reason)


def not_served_json(name: str) -> str:
    """For READ_STREAM, whose clients wait for JSON and then for a second frame."""
    return _json({"status": "ERROR", "error": f"not_supported command={name}"})


def acknowledgement(
    last_offset: int, epoch: int, producer_id: bytes, first_sequence: int, last_sequence: int, problem: str = ""
) -> str:
    """The JSON answer to a batch, keys in the order Java searches for them, no space before a colon."""
    fields: dict[str, object] = {
        "status": "ERROR" if problem else "OK",
        "last_offset": last_offset,
        "producer_epoch": epoch,
        "producer_id": producer_id.decode(errors="replace"),
        "seq_start": first_sequence,
        "seq_end": last_sequence,
    }
    if problem:
        fields["error"] = problem
    return _json(fields)


def help_text() -> str:
    return "Available commands:\n" + "\n".join(f"  {name}" for name in sorted(SERVED))


def help_third_generation() -> str:
    return f"OK commands={','.join(sorted(SERVED))}"


def created(topic: str, partitions: int, policies: Mapping[str, str]) -> str:
    more = "".join(f" {key}={value}" for key, value in policies.items())
    return f"OK topic={topic} partitions={partitions}{more}"


def created_first_generation(topic: str, partitions: int) -> str:
    return f"{CHECK}Topic '{topic}' now has {partitions} partitions"


def topic_list(names: Sequence[str]) -> str:
    return ", ".join(names) or "(no topics)"


def topic_list_third_generation(names: Sequence[str]) -> str:
    return f"OK count={len(names)} topics={','.join(names)}"


def assignments(partitions: Sequence[int]) -> str:
    """In brackets, separated by spaces: Java takes nothing else."""
    return f"assignments=[{' '.join(map(str, partitions))}]"


def joined(generation: int, member: str, partitions: Sequence[int], *, resumed: bool) -> str:
    return f"OK generation={generation} member={member} {assignments(partitions)}{' resumed=true' if resumed else ''}"


def must_rejoin(group: str, member: str, requested: int, current: int) -> str:
    """On a heartbeat, for every client but Java's."""
    return f"{generation_mismatch(group, member, requested, current)} action=REBALANCE_REQUIRED"


def generation_mismatch(group: str, member: str, requested: int, current: int) -> str:
    return f"ERROR: GEN_MISMATCH current={current} requested={requested} group={group} member={member}"


def java_must_rejoin_later(group: str, current: int) -> str:
    """On a heartbeat of a Java member: the second generation ignores it, the third rejoins."""
    return f"ERROR: NOT_OWNER generation={current} group={group}"


def java_must_rejoin(group: str, current: int) -> str:
    """On the data path of a Java member, deliberately without `ERROR`: Java ignores it with the prefix."""
    return f"REBALANCE_REQUIRED generation={current} group={group}"


def java_stream_ends(reason: str) -> str:
    return f"REBALANCE_REQUIRED reason={reason}"


def stream_ends(reason: str, offset: int, extra: str = "") -> str:
    return f"STREAM_CONTROL type=CLOSE reason={reason} offset={offset}{extra}"


def not_owner(partition: int, member: str, group: str, generation: int) -> str:
    return f"ERROR: NOT_OWNER partition={partition} member={member} group={group} generation={generation}"


def protocol_info() -> str:
    return (
        "OK protocol=cursus min_version=1 max_version=1 default_version=1 "
        f"features={','.join(FEATURES)} error_classes={_ERROR_CLASSES}"
    )


def negotiated(version: int, enabled: Sequence[str], unsupported: Sequence[str]) -> str:
    return f"OK protocol_version={version} enabled={','.join(enabled)} unsupported={','.join(unsupported)}"


def offsets(topic: str, entries: Sequence[tuple[int, int, int]]) -> str:
    """Partition, earliest and next offset each. The last four fields of an entry are a fixed list to the clients."""
    spelt = ",".join(
        f"P{partition}:earliest={earliest}:latest={end}:leo={end}:hwm={end}" for partition, earliest, end in entries
    )
    return f"OK topic={topic} partitions={len(entries)} offsets={spelt}"


def metadata(topic: str, partitions: int, address: str, epochs: Sequence[int]) -> str:
    leaders = ",".join([address] * partitions)
    return f"OK topic={topic} partitions={partitions} leaders={leaders} epochs={','.join(map(str, epochs))}"


def described(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, indent=2)


def _json(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, separators=(",", ":"))
