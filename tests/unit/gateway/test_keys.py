"""Every key of every command: who sends it, and what becomes of it. None is passed over.

A key is *carried out*: another value makes another command. Or it is *taken*: it asks for what happens anyway, and the
values that would ask for something else are refused by name. A key without a row here fails the first test. Senders are
named as in the wire document: B1, T2, the SDKs J2 to G3 by language and generation, and "script" for nobody known.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cursus_gateway import dialect
from cursus_gateway.dialect import keyed
from cursus_gateway.dialect.commands import NOT_SERVED, SERVED, Command, Malformed, NotServed

DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "gateway.md"

# A request of each command with what it cannot do without.
LEAST: Final = {
    "BATCH_COMMIT": "topic=t group=g {} 0:5",
    "COMMIT": "topic=t partition=0 group=g offset=5 {}",
    "COMMIT_OFFSET": "topic=t partition=0 group=g offset=5 {}",
    "CONSUME": "topic=t partition=0 offset=5 member=m {}",
    "CREATE": "topic=t {}",
    "DELETE": "topic=t {}",
    "DESCRIBE": "topic=t {}",
    "FETCH_OFFSET": "topic=t partition=0 group=g {}",
    "FIND_COORDINATOR": "group=g {}",
    "GROUP_STATUS": "group=g {}",
    "HEARTBEAT": "topic=t group=g member=m {}",
    "JOIN_GROUP": "topic=t group=g member=m {}",
    "LEAVE_GROUP": "topic=t group=g member=m {}",
    "LIST": "topic=t {}",
    "LIST_OFFSETS": "topic=t {}",
    "METADATA": "topic=t {}",
    "NEGOTIATE": "version=1 {}",
    "PUBLISH": "topic=t producerId=p {} message=hello",
    "REGISTER_GROUP": "topic=t group=g {}",
    "SETGROUP": "group=g {}",
    "STREAM": "topic=t partition=0 group=g {}",
    "SUBSCRIBE": "topic=t group=g {}",
    "SYNC_GROUP": "topic=t group=g member=m {}",
}


class Carried(NamedTuple):
    """Another value makes another command."""

    senders: str
    one: str
    other: str
    refused: tuple[str, ...] = ()
    """Values that make no sense."""


class Taken(NamedTuple):
    """These values change nothing, because it is so anyway; the refused ones would have to change something."""

    senders: str
    why: str
    values: tuple[str, ...]
    refused: tuple[str, ...] = ()


SDKS: Final = "J2 P2 G2 J3 P3 G3"
BY_NAME: Final = "a group is known by its name, whatever topics it reads"
NO_TRANSACTIONS: Final = "nothing is ever uncommitted while there are no transactions"

TEXT = ("a", "b")
NUMBER = ("3", "4")
BAD_NUMBER = ("x", "-7")

_MEMBER: Final[dict[str, Carried | Taken]] = {
    "topic": Carried(SDKS, *TEXT),
    "group": Carried(SDKS, *TEXT),
    "member": Carried(SDKS, *TEXT),
    "generation": Carried(SDKS, *NUMBER, BAD_NUMBER),
}
_COMMIT: Final = {
    **_MEMBER,
    "partition": Carried(SDKS, *NUMBER, BAD_NUMBER),
    "offset": Carried(SDKS, *NUMBER, BAD_NUMBER),
}
_ISOLATION: Final = ("read_committed", "read_uncommitted")
_READ: Final[dict[str, Carried | Taken]] = {
    **_COMMIT,
    "batch": Carried("G3", "10", "20", BAD_NUMBER),
    "autoOffsetReset": Carried("G3", "earliest", "latest", ("sometimes",)),
    "isolation": Taken("G3", NO_TRANSACTIONS, _ISOLATION),
    "isolation_level": Taken("J3 P3", NO_TRANSACTIONS, _ISOLATION),
}
_TOPIC: Final[dict[str, Carried | Taken]] = {"topic": Carried("script", *TEXT)}
_TOPIC_GROUP: Final[dict[str, Carried | Taken]] = {**_TOPIC, "group": Carried("script", *TEXT)}

TABLE: Final[dict[str, dict[str, Carried | Taken]]] = {
    "BATCH_COMMIT": _MEMBER,
    "COMMIT": _COMMIT,
    "COMMIT_OFFSET": _COMMIT,
    "CONSUME": {**_READ, "wait_ms": Carried("script", "5", "6", BAD_NUMBER)},
    "CREATE": {
        "topic": Carried(SDKS, *TEXT),
        "partitions": Carried(SDKS, *NUMBER, ("0", *BAD_NUMBER)),
        "idempotent": Carried("G3", "true", "false", ("yes",)),
        "retention_hours": Carried("G3", "3", "-1", BAD_NUMBER),
        "retention_bytes": Carried("G3", "3", "-1", BAD_NUMBER),
        "event_sourcing": Taken(
            "event stores of all SDKs", "it is a log, and no event store", ("false",), ("true", "x")
        ),
        "replication_factor": Taken("script", "there is one copy", ("1",), ("2", "0", "x")),
        "cleanup_policy": Taken("G3", "old segments are deleted", ("delete",), ("compact", "compact,delete", "bogus")),
        "partitioner": Taken("G3", "keys are hashed", ("hash_key",), ("round_robin", "bogus")),
        "auth_policy": Taken(
            "G3", "there is no access control", ("open",), ("acl", "deny_read", "deny_write", "bogus")
        ),
        "read_acl": Taken("G3", "there is no access control", ("",), ("bob", "alice,bob")),
        "write_acl": Taken("G3", "there is no access control", ("",), ("bob", "alice,bob")),
    },
    "DELETE": _TOPIC,
    "DESCRIBE": {"topic": Carried("T2", *TEXT)},
    "FETCH_OFFSET": {
        "topic": Carried(SDKS, *TEXT),
        "partition": Carried(SDKS, *NUMBER, BAD_NUMBER),
        "group": Carried(SDKS, *TEXT),
        "member": Carried("script", *TEXT),
    },
    "FIND_COORDINATOR": {
        "group": Carried(SDKS, *TEXT),
        "transactional_id": Carried("J3 P3 G3", "", "x"),
        "txn": Carried("script", "", "x"),
        "transaction": Carried("script", "", "x"),
    },
    "GROUP_STATUS": {"group": Carried("T2", *TEXT)},
    "HEARTBEAT": {**_MEMBER, "topic": Taken(SDKS, BY_NAME, TEXT)},
    "JOIN_GROUP": _MEMBER,
    "LEAVE_GROUP": {
        **_MEMBER,
        "topic": Taken(SDKS, BY_NAME, TEXT),
        "generation": Taken("G3", "a member leaves, however old its generation", NUMBER),
    },
    "LIST": {"topic": Carried("J2 J3", *TEXT)},
    "LIST_OFFSETS": {"topic": Carried("J3 P3 G3", *TEXT), "partition": Carried("J3 P3 G3", *NUMBER, BAD_NUMBER)},
    "METADATA": {"topic": Carried(SDKS, *TEXT)},
    "NEGOTIATE": {
        "version": Carried("G3", "1", "2", BAD_NUMBER),
        "features": Carried("G3", "a,b", "*"),
        "require_features": Carried("G3", "true", "false", ("perhaps",)),
    },
    "PUBLISH": {
        "topic": Carried("T2", *TEXT),
        "acks": Carried("T2", "0", "all", ("2",)),
        "producerId": Carried("T2", *TEXT),
        "seqNum": Carried("T2", *NUMBER, BAD_NUMBER),
        "epoch": Carried("T2", *NUMBER, ("x",)),
        "isIdempotent": Carried("T2", "true", "false", ("perhaps",)),
        "key": Carried("script", *TEXT),
        "partition": Carried("script", *NUMBER, BAD_NUMBER),
    },
    "REGISTER_GROUP": _TOPIC_GROUP,
    "SETGROUP": {"group": Carried("script", *TEXT)},
    "STREAM": _READ,
    "SUBSCRIBE": _TOPIC_GROUP,
    "SYNC_GROUP": {
        **_MEMBER,
        "generation": Taken(SDKS, "the answer is of the current generation, and says which", NUMBER, BAD_NUMBER),
    },
}
_NO_ACCESS_CONTROL: Final = Taken("J3 P3", "everybody may do everything, whoever they are", TEXT)
CREDENTIALS: Final = {"principal": _NO_ACCESS_CONTROL, "auth_token": _NO_ACCESS_CONTROL}

# Commands that are refused whatever they carry, with what the wire document has for them.
REFUSED_WHOLE: Final = {
    "APPEND_STREAM": "topic key version event_type schema_version producerId metadata",
    "AUTH": "principal token",
    "BEGIN_TXN": "transactional_id txn transaction producerId producer_id epoch",
    "CATCHUP_SNAPSHOTS": "",
    "CLUSTER_STATUS": "",
    "ELECT_LEADER": "topic partition broker",
    "END_TXN": "transactional_id producerId epoch result action state",
    "FETCH_SNAPSHOT": "",
    "INIT_PRODUCER_ID": "transactional_id",
    "INTERNAL_BATCH": "",
    "LIST_CLUSTER": "",
    "LIST_SNAPSHOTS": "",
    "RAFT_APPLY": "",
    "READ_SNAPSHOT": "topic key",
    "READ_STREAM": "topic key from_version",
    "REPLICATE_MESSAGE": "",
    "REPLICATE_SNAPSHOT": "",
    "SAVE_SNAPSHOT": "topic key version",
    "SEND_OFFSETS_TO_TXN": "transactional_id producerId epoch topic group member generation",
    "STREAM_VERSION": "topic key",
    "TXN_PUBLISH": "transactional_id topic partition producerId seqNum epoch key",
    "TXN_STATUS": "transactional_id",
}
WITHOUT_KEYS: Final = {"EXIT", "HELP", "LIST_GROUPS", "PROTOCOL_INFO"}

ROWS: Final = [(command, key, row) for command, keys in TABLE.items() for key, row in keys.items()]
IDS: Final = [f"{command} {key}" for command, key, _ in ROWS]


def parse(name: str, more: str = "", *, without: str = "") -> Command:
    """The least request of a command, with more words and without one of its keys."""
    least = re.sub(rf"\b{without}=\S+ ?", "", LEAST[name]) if without else LEAST[name]
    return dialect.parse(f"{name} {least.format(more)}".encode()).command


def refusal(name: str, more: str, *, without: str = "") -> str:
    with pytest.raises(Malformed) as caught:
        parse(name, more, without=without)
    return str(caught.value)


def test_every_key_of_every_command_has_a_row() -> None:
    assert {name: frozenset(keys) for name, keys in TABLE.items()} == keyed.KEYS
    assert keyed.KEYS.keys() | WITHOUT_KEYS == SERVED
    assert REFUSED_WHOLE.keys() == NOT_SERVED
    assert CREDENTIALS.keys() == keyed.CREDENTIALS


@pytest.mark.parametrize(("name", "key", "row"), ROWS, ids=IDS)
def test_a_key_changes_the_command_or_asks_for_what_happens_anyway(name: str, key: str, row: Carried | Taken) -> None:
    if isinstance(row, Carried):
        assert parse(name, f"{key}={row.one}", without=key) != parse(name, f"{key}={row.other}", without=key)
    else:
        for value in row.values:
            assert parse(name, f"{key}={value}", without=key) == parse(name)


@pytest.mark.parametrize(("name", "key", "row"), ROWS, ids=IDS)
def test_a_value_that_is_not_done_is_refused_by_the_name_of_its_key(name: str, key: str, row: Carried | Taken) -> None:
    for value in row.refused:
        answer = refusal(name, f"{key}={value}", without=key)
        assert answer.startswith("ERROR: ")
        assert key in answer


@pytest.mark.parametrize("name", sorted(TABLE))
def test_an_unknown_key_is_refused_by_its_name(name: str) -> None:
    expected = f"ERROR: not_supported class=validation retryable=false command={name} key=frobnicate"
    assert refusal(name, "frobnicate=1") == expected
    assert refusal(name, "Topic=1").endswith("key=Topic"), "keys are case-sensitive"


@pytest.mark.parametrize("name", sorted(TABLE))
def test_credentials_are_taken_everywhere(name: str) -> None:
    for key, row in CREDENTIALS.items():
        for value in row.values:
            assert parse(name, f"{key}={value}") == parse(name)


@pytest.mark.parametrize("name", sorted(REFUSED_WHOLE))
def test_a_command_that_is_not_served_is_refused_whatever_it_carries(name: str) -> None:
    words = " ".join(f"{key}=1" for key in REFUSED_WHOLE[name].split())
    assert dialect.parse(f"{name} {words}".strip().encode()).command == NotServed(name)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("auth_policy=acl read_acl=bob write_acl=bob", "unsupported_topic_policy {} auth_policy=acl"),
        ("auth_policy=bogus", "invalid_topic_policy {} auth_policy=bogus"),
        ("read_acl=bob", "unsupported_topic_policy {} read_acl=bob"),
        ("write_acl=bob", "unsupported_topic_policy {} write_acl=bob"),
        ("cleanup_policy=compact", "unsupported_topic_policy {} cleanup_policy=compact"),
        ("cleanup_policy=bogus", "invalid_topic_policy {} cleanup_policy=bogus"),
        ("event_sourcing=true", "unsupported_topic_policy {} event_sourcing=true"),
        ("partitioner=round_robin", "unsupported_topic_policy {} partitioner=round_robin"),
        ("replication_factor=3", "unsupported_topic_policy {} replication_factor=3"),
        ("replication_factor=0", "invalid_topic_policy {} replication_factor=0"),
        ("idempotent=perhaps", "invalid_topic_policy {} idempotent=perhaps"),
        ("retention_hours=soon", "invalid_topic_policy {} retention_hours=soon"),
        ("retention_bytes=-2", "invalid_topic_policy {} retention_bytes=-2"),
    ],
)
def test_a_policy_that_is_not_kept_has_the_code_of_the_protocol(words: str, answer: str) -> None:
    assert refusal("CREATE", f"partitions=1 {words}") == "ERROR: " + answer.format("class=validation retryable=false")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE orders 4 auth_policy=acl",
        "DELETE orders force=true",
        "SUBSCRIBE orders g offset=0",
        "SETGROUP g h",
        "LEAVE_GROUP t g m generation=1",
    ],
)
def test_a_word_too_many_is_refused_in_the_positional_form_too(text: str) -> None:
    with pytest.raises(Malformed, match="invalid_syntax"):
        dialect.parse(text.encode())


def test_a_pattern_is_not_read_from_where_a_group_stands() -> None:
    with pytest.raises(Malformed, match="invalid_offset"):
        dialect.parse(b"CONSUME topic=t* partition=0 offset=-1 member=m")


def test_the_documentation_names_every_key_of_every_command() -> None:
    """In the table of keys: a row a command, carried out, then taken, each in backticks."""
    section = DOCUMENT.read_text(encoding="utf-8").split("## Keys\n")[1].split("\n## ")[0]
    documented: dict[str, tuple[set[str], set[str]]] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 3 and cells[0].isupper():
            carried, taken = (set(re.findall(r"`([A-Za-z_]+)(?:=[^`]*)?`", cell)) for cell in cells[1:])
            for name in cells[0].split(", "):
                documented[name] = carried, taken
    expected = {
        name: (
            {key for key, row in keys.items() if isinstance(row, Carried)},
            {key for key, row in keys.items() if isinstance(row, Taken)},
        )
        for name, keys in TABLE.items()
    }
    assert documented == expected
