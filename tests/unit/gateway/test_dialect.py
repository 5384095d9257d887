from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cursus_gateway import dialect
from cursus_gateway.dialect import commands as c
from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import KEYWORDS, Command, Dialect, Malformed

SAME = [
    ("CREATE orders 4", "CREATE topic=orders partitions=4", c.CreateTopic("orders", 4)),
    ("CREATE orders", "CREATE topic=orders", c.CreateTopic("orders")),
    ("DELETE orders", "DELETE topic=orders", c.DeleteTopic("orders")),
    ("SETGROUP g", "SETGROUP group=g", c.SetGroup("g")),
    ("SUBSCRIBE orders g", "SUBSCRIBE topic=orders group=g", c.Subscribe("orders", "g")),
    ("SUBSCRIBE orders", "SUBSCRIBE topic=orders", c.Subscribe("orders", "default")),
    ("JOIN_GROUP t g m", "JOIN_GROUP topic=t group=g member=m", c.JoinGroup("t", "g", "m")),
    ("SYNC_GROUP t g m 3", "SYNC_GROUP topic=t group=g member=m generation=3", c.SyncGroup("t", "g", "m")),
    ("LEAVE_GROUP t g m", "LEAVE_GROUP topic=t group=g member=m", c.LeaveGroup("g", "m")),
    ("HEARTBEAT t g c m 3", "HEARTBEAT topic=t group=g member=m generation=3", c.Heartbeat("g", "m", 3)),
    ("COMMIT t g 1 5", "COMMIT topic=t partition=1 group=g offset=5", c.CommitOffset("t", 1, 5, "g")),
    ("COMMIT_OFFSET t g 1 5", "COMMIT_OFFSET topic=t partition=1 group=g offset=5", c.CommitOffset("t", 1, 5, "g")),
    (
        "BATCH_COMMIT t g m 2 P0:5,1:7",
        "BATCH_COMMIT topic=t group=g generation=2 member=m 0:5,P1:7",
        c.BatchCommit("t", "g", "m", 2, {0: 5, 1: 7}),
    ),
    ("FETCH_OFFSET t 1 g", "FETCH_OFFSET topic=t partition=1 group=g", c.FetchOffset("t", 1, "g")),
    ("LIST_OFFSETS t", "LIST_OFFSETS topic=t", c.ListOffsets("t")),
    ("LIST_OFFSETS t 2", "LIST_OFFSETS topic=t partition=2", c.ListOffsets("t", 2)),
    ("FIND_COORDINATOR g", "FIND_COORDINATOR group=g", c.FindCoordinator("g")),
    ("METADATA t", "METADATA topic=t", c.Metadata("t")),
    ("DESCRIBE t", "DESCRIBE topic=t", c.DescribeTopic("t")),
    ("GROUP_STATUS g", "GROUP_STATUS group=g", c.GroupStatus("g")),
    ("REGISTER_GROUP t g", "REGISTER_GROUP topic=t group=g", c.RegisterGroup("t", "g")),
    ("NEGOTIATE 1", "NEGOTIATE version=1", c.Negotiate(1)),
]


def command(text: str | bytes) -> Command:
    return dialect.parse(text if isinstance(text, bytes) else text.encode()).command


@pytest.mark.parametrize(("positional", "keyed", "expected"), SAME, ids=[row[0] for row in SAME])
def test_a_command_means_the_same_in_both_dialects(positional: str, keyed: str, expected: Command) -> None:
    assert command(positional) == command(keyed) == expected
    assert dialect.parse(positional.encode()).dialect is Dialect.POSITIONAL
    assert dialect.parse(keyed.encode()).dialect is Dialect.KEYED


def test_consume_is_two_commands() -> None:
    assert command("CONSUME orders 0 -1") == c.ConsumeAll("orders", 0, -1)
    assert command("CONSUME topic=orders partition=0 offset=5 member=m") == c.ConsumeBatch(
        "orders", 0, 5, "m", group="default-group"
    )
    assert command("CONSUME topic=orders 0 5") == c.ConsumeAll("topic=orders", 0, 5)


def test_consume_takes_what_any_sdk_sends() -> None:
    given = "CONSUME topic=t partition=1 offset=9 group=g generation=4 member=m"
    assert command(f"{given} autoOffsetReset=latest batch=10 wait_ms=7") == c.ConsumeBatch(
        "t", 1, 9, "m", "g", 4, 10, 7, latest_without_commit=True
    )


def test_stream_in_both_forms() -> None:
    assert command("STREAM t 1 9") == c.Stream("t", 1, "default-group", offset=9)
    text = "STREAM topic=t partition=1 group=g member=m generation=2"
    assert command(text) == c.Stream("t", 1, "g", "m", 2)


def test_a_positional_message_is_everything_behind_the_one_space() -> None:
    assert command("PUBLISH orders  two  spaces") == c.Publish("orders", b" two  spaces", by_content=True)
    assert command(b"PUBLISH orders \xff\xfe") == c.Publish("orders", b"\xff\xfe", by_content=True)
    assert command("PUBLISH orders x message=1") == c.Publish("orders", b"x message=1", by_content=True)


def test_a_keyed_message_is_everything_behind_message() -> None:
    found = command("PUBLISH topic=t acks=all producerId=p seqNum=3 epoch=2 isIdempotent=true message= a b=c ")
    assert found == c.Publish("t", b"a b=c", "-1", b"p", 3, 2, idempotent=True)


def test_message_is_recognised_only_at_the_start_of_a_word() -> None:
    found = command("PUBLISH topic=t producerId=xmessage=1 message=hello")
    assert found == c.Publish("t", b"hello", producer_id=b"xmessage=1")


def test_the_last_of_repeated_keys_wins_and_words_without_equals_are_ignored() -> None:
    assert command("CREATE topic=a noise topic=b") == c.CreateTopic("b")


def test_a_topic_may_look_like_an_assignment() -> None:
    assert command("CREATE a=b 4") == c.CreateTopic("a=b", 4)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("CREATE", "ERROR: missing topic name"),
        ("CREATE orders 0", "ERROR: partitions must be a positive integer"),
        ("CREATE orders x", "ERROR: partitions must be a positive integer"),
        ("SUBSCRIBE", "ERROR: missing topic name"),
        ("SETGROUP", "ERROR: group name cannot be empty"),
        ("PUBLISH orders", "ERROR: invalid PUBLISH syntax"),
        ("CONSUME", "(no messages)"),
        ("CONSUME a", "ERROR: invalid CONSUME syntax. Expected: CONSUME <topic> <partition> <offset>"),
        ("CONSUME topic=t partition=0", "ERROR: invalid_consume_syntax"),
        ("STREAM topic=t partition=0", "ERROR: invalid_stream_syntax"),
        ("JOIN_GROUP topic=t group=g", "ERROR: missing_member command=JOIN_GROUP"),
        ("PUBLISH topic=t message=x", "ERROR: missing_producer_id command=PUBLISH"),
        ("PUBLISH topic=t producerId=p", "ERROR: missing_message command=PUBLISH"),
        ("FETCH_OFFSET topic=t partition=x group=g", "ERROR: invalid_partition command=FETCH_OFFSET value=x"),
        ("LIST all", "ERROR: unknown command: LIST all. Type HELP for available commands."),
        ("BATCH_COMMIT topic=t group=g member=m generation=1", "ERROR: missing_offsets command=BATCH_COMMIT"),
        ("BATCH_COMMIT topic=t group=g 0:1,x", "ERROR: invalid_batch_commit_entry entry=x"),
    ],
)
def test_what_cannot_be_parsed_is_answered(text: str, answer: str) -> None:
    with pytest.raises(Malformed) as caught:
        command(text)
    assert str(caught.value) == answer


@pytest.mark.parametrize("text", [b"CREATE \xff\xfe", b"PUBLISH \xff x", b"PUBLISH topic=\xff producerId=p message=x"])
def test_a_name_that_is_not_utf8_is_refused(text: bytes) -> None:
    """Fuzzing found the second: a message may hold any bytes, the topic before it may not."""
    with pytest.raises(Malformed, match="invalid_encoding"):
        command(text)


@pytest.mark.parametrize(
    "text",
    [
        "CONSUME topic=t partition=0 offset=0 member=m isolation_level=read_committed",
        "JOIN_GROUP topic=t group=g member=m generation=1",
        "CREATE topic=t cleanup_policy=delete",
        "BATCH_COMMIT topic=t group=g member=m generation=1 P0:8",
        "LIST_OFFSETS topic=t",
        "NEGOTIATE version=1",
    ],
)
def test_the_third_generation_shows_in_its_wording(text: str) -> None:
    assert dialect.parse(text.encode()).third_generation


@pytest.mark.parametrize(
    "text", ["CREATE topic=t partitions=1 idempotent=true", "BATCH_COMMIT topic=t group=g generation=1 member=m 0:8"]
)
def test_the_second_generation_does_not(text: str) -> None:
    assert not dialect.parse(text.encode()).third_generation


@given(st.sampled_from(sorted(KEYWORDS)), st.text(max_size=40))
def test_any_arguments_are_parsed_or_answered(name: str, arguments: str) -> None:
    with contextlib.suppress(Malformed):
        dialect.parse(f"{name} {arguments}".encode())


@given(st.text(max_size=60))
def test_echoed_values_never_hold_words_that_clients_react_to(text: str) -> None:
    spelt = replies.error("code", value=f"NOT_LEADER LEADER_IS {text} GEN_MISMATCH")
    assert "NOT_LEADER" not in spelt
    assert "GEN_MISMATCH" not in spelt
