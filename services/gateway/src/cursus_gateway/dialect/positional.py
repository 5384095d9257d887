"""Commands whose arguments are known by their place: the first generation, seed 002, and the short-lived forms between.

Where no client ever wrote a command this way, the mandatory arguments stand in the order of the key=value form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cursus_gateway.dialect import commands as c
from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import Command, Malformed
from cursus_gateway.dialect.pairs import read_pairs
from cursus_gateway.dialect.texts import is_clean, to_bytes, words_of

_CONSUME_SYNTAX: Final = "ERROR: invalid CONSUME syntax. Expected: CONSUME <topic> <partition> <offset>"
_SPACE: Final = re.compile(r"[ \t\r\n]")


def parse(name: str, arguments: str) -> Command:
    """The command. Raises Malformed with the first generation's texts where it had one."""
    if name == "PUBLISH":
        return _publish(arguments)
    return _PARSERS[name](words_of(arguments))


def _publish(arguments: str) -> Command:
    """The message begins after the one space behind the topic and may hold any bytes, also such that are no text."""
    topic, *rest = _SPACE.split(arguments, maxsplit=1)
    if not topic or not rest or not rest[0]:
        raise Malformed("ERROR: invalid PUBLISH syntax")
    if not is_clean(topic):
        raise Malformed(replies.error("invalid_encoding", command="PUBLISH"))
    return c.Publish(topic, to_bytes(rest[0]), by_content=True)


def _create(words: Sequence[str]) -> Command:
    if not words:
        raise Malformed("ERROR: missing topic name")
    if len(words) == 1:
        return c.CreateTopic(words[0])
    _at_most(words, "CREATE <topic> [<partitions>]", 2)
    if not words[1].isascii() or not words[1].isdecimal() or not 0 < int(words[1][:11]) < 2**31:
        raise Malformed("ERROR: partitions must be a positive integer")
    return c.CreateTopic(words[0], int(words[1]))


def _delete(words: Sequence[str]) -> Command:
    if not words:
        raise Malformed("ERROR: missing topic name")
    _at_most(words, "DELETE <topic>", 1)
    return c.DeleteTopic(words[0])


def _subscribe(words: Sequence[str]) -> Command:
    if not words:
        raise Malformed("ERROR: missing topic name")
    _at_most(words, "SUBSCRIBE <topic> [<group>]", 2)
    return c.Subscribe(words[0], words[1]) if len(words) > 1 else c.Subscribe(words[0])


def _set_group(words: Sequence[str]) -> Command:
    if not words:
        raise Malformed(replies.EMPTY_GROUP)
    _at_most(words, "SETGROUP <group>", 1)
    return c.SetGroup(words[0])


def _consume(words: Sequence[str]) -> Command:
    if not words:
        raise Malformed("(no messages)")
    if len(words) != 3:
        raise Malformed(_CONSUME_SYNTAX)
    try:
        return c.ConsumeAll(words[0], _integer(words[1], "partition"), _integer(words[2], "offset"))
    except Malformed as malformed:
        # Whoever got the syntax right reads frames up to the end of the connection.
        raise Malformed(str(malformed), close=True) from None


def _stream(words: Sequence[str]) -> Command:
    topic, partition, offset = _exactly(words, "STREAM <topic> <partition> <offset>", 3)
    return c.Stream(topic, _integer(partition, "partition"), c.DEFAULT_GROUP, offset=max(0, _integer(offset, "offset")))


def _join(words: Sequence[str]) -> Command:
    topic, group, member = _exactly(words, "JOIN_GROUP <topic> <group> <consumer>", 3)
    return c.JoinGroup(topic, group, member)


def _sync(words: Sequence[str]) -> Command:
    topic, group, member, generation = _exactly(words, "SYNC_GROUP <topic> <group> <member> <generation>", 4)
    _integer(generation, "generation")
    return c.SyncGroup(topic, group, member)


def _leave(words: Sequence[str]) -> Command:
    syntax = "LEAVE_GROUP <topic> <group> <consumer>"
    _at_most(words, syntax, 3)
    group, member = _exactly(words[-2:], syntax, 2)
    return c.LeaveGroup(group, member)


def _heartbeat(words: Sequence[str]) -> Command:
    if len(words) == 2:
        return c.Heartbeat(words[0], words[1])
    syntax = "HEARTBEAT <topic> <group> <consumer> <member> <generation>"
    _, group, _, member, generation = _exactly(words, syntax, 5)
    return c.Heartbeat(group, member, _integer(generation, "generation"))


def _commit(words: Sequence[str]) -> Command:
    if len(words) == 3:
        topic, partition, offset = words
        return c.CommitOffset(topic, _integer(partition, "partition"), _integer(offset, "offset"))
    topic, group, partition, offset = _exactly(words, "COMMIT <topic> <group> <partition> <offset>", 4)
    return c.CommitOffset(topic, _integer(partition, "partition"), _integer(offset, "offset"), group)


def _batch_commit(words: Sequence[str]) -> Command:
    syntax = "BATCH_COMMIT <topic> <group> <member> <generation> <partition:offset,...>"
    topic, group, member, generation, pairs = _exactly(words, syntax, 5)
    return c.BatchCommit(topic, group, member, _integer(generation, "generation"), read_pairs(pairs))


def _fetch_offset(words: Sequence[str]) -> Command:
    topic, partition, group = _exactly(words, "FETCH_OFFSET <topic> <partition> <group>", 3)
    return c.FetchOffset(topic, _integer(partition, "partition"), group)


def _list_offsets(words: Sequence[str]) -> Command:
    if len(words) == 2:
        return c.ListOffsets(words[0], _integer(words[1], "partition"))
    (topic,) = _exactly(words, "LIST_OFFSETS <topic> [<partition>]", 1)
    return c.ListOffsets(topic)


def _register_group(words: Sequence[str]) -> Command:
    topic, group = _exactly(words, "REGISTER_GROUP <topic> <group>", 2)
    return c.RegisterGroup(topic, group)


def _negotiate(words: Sequence[str]) -> Command:
    (version,) = _exactly(words, "NEGOTIATE <version>", 1)
    return c.Negotiate(_integer(version, "version"))


def _one(syntax: str, make: Callable[[str], Command]) -> Callable[[Sequence[str]], Command]:
    return lambda words: make(*_exactly(words, syntax, 1))


def _none(name: str, command: Command) -> Callable[[Sequence[str]], Command]:
    def parse_nothing(words: Sequence[str]) -> Command:
        if words:
            raise Malformed(replies.unknown_command_first_generation(" ".join((name, *words))))
        return command

    return parse_nothing


_PARSERS: Final[Mapping[str, Callable[[Sequence[str]], Command]]] = {
    "BATCH_COMMIT": _batch_commit,
    "COMMIT": _commit,
    "COMMIT_OFFSET": _commit,
    "CONSUME": _consume,
    "CREATE": _create,
    "DELETE": _delete,
    "DESCRIBE": _one("DESCRIBE <topic>", c.DescribeTopic),
    "EXIT": lambda _: c.Exit(),
    "FETCH_OFFSET": _fetch_offset,
    "FIND_COORDINATOR": _one("FIND_COORDINATOR <group>", c.FindCoordinator),
    "GROUP_STATUS": _one("GROUP_STATUS <group>", c.GroupStatus),
    "HEARTBEAT": _heartbeat,
    "HELP": lambda _: c.Help(),
    "JOIN_GROUP": _join,
    "LEAVE_GROUP": _leave,
    "LIST": _none("LIST", c.ListTopics()),
    "LIST_GROUPS": _none("LIST_GROUPS", c.ListGroups()),
    "LIST_OFFSETS": _list_offsets,
    "METADATA": _one("METADATA <topic>", c.Metadata),
    "NEGOTIATE": _negotiate,
    "PROTOCOL_INFO": lambda _: c.ProtocolInfo(),
    "REGISTER_GROUP": _register_group,
    "SETGROUP": _set_group,
    "STREAM": _stream,
    "SUBSCRIBE": _subscribe,
    "SYNC_GROUP": _sync,
}


def _at_most(words: Sequence[str], syntax: str, count: int) -> None:
    """A word too many asks for something: it is not passed over."""
    if len(words) > count:
        raise Malformed(replies.error("invalid_syntax", expected=syntax))


def _exactly(words: Sequence[str], syntax: str, count: int) -> Sequence[str]:
    if len(words) != count:
        raise Malformed(replies.error("invalid_syntax", expected=syntax))
    return words


def _integer(text: str, what: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 19:
        raise Malformed(replies.error(f"invalid_{what}", value=text))
    return int(text)
