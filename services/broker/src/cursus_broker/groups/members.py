"""What a member is and asks for: its subscription, its timeouts, and the bounds of all of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import re2  # type: ignore[import-untyped]  # the package has neither types nor stubs

from cursus_broker.errors import InvalidRequest
from cursus_broker.groups.assignors import MemberId, Strategy
from cursus_broker.metadata.model import TopicPartition

MAX_NAME_CHARS: Final = 249
MAX_TOPICS: Final = 10_000
MAX_PATTERN_CHARS: Final = 1_000
MIN_SESSION_TIMEOUT_MS: Final = 1_000
MAX_TIMEOUT_MS: Final = 600_000
DEFAULT_SESSION_TIMEOUT_MS: Final = 30_000
DEFAULT_REBALANCE_TIMEOUT_MS: Final = 10_000

NOTHING_SYNCED: Final = -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics a member wants: by name, by pattern, or both. Topics that do not exist yet may be named."""

    topics: frozenset[str] = frozenset()
    pattern: str = ""
    """An RE2 expression that must match a whole topic name; empty means no pattern."""

    def resolve(self, existing: Collection[str]) -> frozenset[str]:
        """The topics among `existing` that are meant."""
        named = self.topics.intersection(existing)
        if not self.pattern:
            return named
        matches = compile_pattern(self.pattern).fullmatch
        return named.union(name for name in existing if matches(name))


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A wish to be, or to stay, a member. An empty `member_id` asks the coordinator for one."""

    group: str
    subscription: Subscription
    member_id: MemberId = ""
    instance_id: str = ""
    """Set for a static member: a later process with the same instance id takes its place and its partitions."""
    strategy: Strategy | None = None
    """None accepts what the group runs with."""
    session_timeout_ms: int = DEFAULT_SESSION_TIMEOUT_MS
    rebalance_timeout_ms: int = DEFAULT_REBALANCE_TIMEOUT_MS
    """How long the member may keep a partition it has to hand over."""
    at_once: bool = False
    """The member cannot acknowledge assignments: partitions come to it and go from it without waiting."""
    client_id: str = ""
    host: str = ""

    def validate(self) -> None:
        """Raises InvalidRequest for the first field that is out of bounds."""
        validate_name("group name", self.group)
        for what, name in (("member id", self.member_id), ("instance id", self.instance_id)):
            if name:
                validate_name(what, name)
        if self.client_id and not (self.client_id.isprintable() and len(self.client_id) <= MAX_NAME_CHARS):
            raise InvalidRequest(f"the client id has control characters or more than {MAX_NAME_CHARS} characters")
        if not self.subscription.topics and not self.subscription.pattern:
            raise InvalidRequest("a member subscribes to at least one topic or a pattern")
        if len(self.subscription.topics) > MAX_TOPICS:
            raise InvalidRequest(f"a member subscribes to at most {MAX_TOPICS} topics by name")
        for topic in self.subscription.topics:
            validate_name("topic name", topic)
        if self.subscription.pattern:
            compile_pattern(self.subscription.pattern)
        _validate_range("session_timeout_ms", self.session_timeout_ms, MIN_SESSION_TIMEOUT_MS)
        _validate_range("rebalance_timeout_ms", self.rebalance_timeout_ms, 1)


class Stream:
    """Stands for one open stream of a member. Compared by identity: a stream that ends late never ends the stream of a
    member that has meanwhile joined anew under the same id.
    """


@dataclass(slots=True)
class Member:
    """One live member. Owned and changed by `state.Group` only."""

    id: MemberId
    request: JoinRequest
    """The last join: subscription, timeouts and who asked."""
    joined_ms: int
    heard_ms: int
    """When it gave its last sign of life; means nothing while streams are attached."""
    deadline_ms: int
    """End of the session unless the member is heard of before; means nothing while streams are attached."""
    streams: set[Stream] = field(default_factory=set)
    topics: frozenset[str] = frozenset()
    """The subscription, resolved against the topics there are."""
    target: set[TopicPartition] = field(default_factory=set)
    """What the member is to read in the current generation."""
    held: set[TopicPartition] = field(default_factory=set)
    """What it was granted and has not let go of: in part outside the target, until it acknowledges."""
    target_generation: int = 0
    """The generation that last changed the target; 0 before the first one that knows the member."""
    version: int = 0
    """The group's version when the member last asked for something new."""
    synced_generation: int = NOTHING_SYNCED
    grants: int = 0
    """Counts changes of `held`; `told` is the count at its last answer to a sync."""
    told: int = 0

    @property
    def is_synced(self) -> bool:
        """True if it has acknowledged what it is to read."""
        return self.synced_generation >= self.target_generation

    @property
    def sort_key(self) -> str:
        """The name assignors see. A process that takes over an instance inherits it, so nothing moves. The NUL, which
        no id may contain, keeps an instance apart from a member whose id happens to be spelt like it.
        """
        return self.request.instance_id + "\0" if self.request.instance_id else self.id


def validate_name(what: str, name: str) -> None:
    """Raises InvalidRequest unless `name` is 1 to 249 printable characters without white space."""
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise InvalidRequest(f"the {what} has {len(name)} characters, allowed are 1 to {MAX_NAME_CHARS}")
    if not name.isprintable() or " " in name:
        raise InvalidRequest(f"the {what} {name!r} contains white space or characters that cannot be printed")


# RE2 and not `re`: its time is linear in the name, so no pattern of a client can stall the event loop. Each may take
# `max_mem`, so few are remembered: members of a group mostly subscribe alike.
@lru_cache(maxsize=64)
def compile_pattern(pattern: str) -> Any:
    """Raises InvalidRequest if the pattern is too long or not an RE2 expression."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidRequest(f"the pattern has {len(pattern)} characters, allowed are {MAX_PATTERN_CHARS}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        cause = error.args[0] if error.args else "unknown error"
        text = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
        raise InvalidRequest(f"the pattern {pattern!r} is not an RE2 expression: {text}") from error


def _validate_range(name: str, value: int, low: int) -> None:
    if not low <= value <= MAX_TIMEOUT_MS:
        raise InvalidRequest(f"{name} is {value}, allowed is {low} to {MAX_TIMEOUT_MS}", field=name, value=value)
