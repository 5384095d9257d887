"""Every error the wire document lists for the commands of generations 1 and 2, by its sections, in both dialects.

A positional request is refused in the first generation's sentence where that had one; a key=value request always by
`ERROR: ` and one code (RULE 13), whatever the second generation wrote there. Rules that make a success of what was an
error once are in the table too. After all but a positional CONSUME the connection is of use.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import pytest
import pytest_asyncio

from tests.harness.gateway import Stack, created, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEMBER: Final = "m-0001"
INTERNAL: Final = (
    "CATCHUP_SNAPSHOTS",
    "FETCH_SNAPSHOT",
    "INTERNAL_BATCH",
    "LIST_SNAPSHOTS",
    "RAFT_APPLY",
    "REPLICATE_MESSAGE",
    "REPLICATE_SNAPSHOT",
)


class Row(NamedTuple):
    section: str
    request: str
    answer: str
    """As it is, or a regular expression between slashes."""


def rows(section: str, answers: dict[str, str]) -> list[Row]:
    return [Row(section, request, answer) for request, answer in answers.items()]


NO_TOPIC, NO_TOPIC_NAME = "ERROR: topic_not_found topic=nope", "ERROR: missing topic name"
NO_PARTITIONS = "ERROR: partitions must be a positive integer"
NO_MEMBER = "ERROR: GEN_MISMATCH current=0 requested={} group={} member={} action=REBALANCE_REQUIRED"


def syntax(expected: str) -> str:
    return f'ERROR: invalid_syntax expected="{expected}"'


STREAM, JOIN = syntax("STREAM <topic> <partition> <offset>"), syntax("JOIN_GROUP <topic> <group> <consumer>")
SYNC = syntax("SYNC_GROUP <topic> <group> <member> <generation>")
LEAVE = syntax("LEAVE_GROUP <topic> <group> <consumer>")
BEAT = syntax("HEARTBEAT <topic> <group> <consumer> <member> <generation>")
FETCH, COMMIT = (
    syntax("FETCH_OFFSET <topic> <partition> <group>"),
    syntax("COMMIT <topic> <group> <partition> <offset>"),
)
BATCH = syntax("BATCH_COMMIT <topic> <group> <member> <generation> <partition:offset,...>")

ERRORS: Final = [
    *rows(
        "4.2 CREATE",
        {
            "CREATE": NO_TOPIC_NAME,
            "CREATE x 0": NO_PARTITIONS,
            "CREATE x -1": NO_PARTITIONS,
            "CREATE x many": NO_PARTITIONS,
            "CREATE x 99999999999": NO_PARTITIONS,
            "CREATE x 2000000": '/ERROR: invalid_partitions reason=".+"/',
            "CREATE a/b": '/ERROR: invalid_topic_name reason=".+"/',
            "CREATE .. 1": '/ERROR: invalid_topic_name reason=".+"/',
            "CREATE orders 2": "✅ Topic 'orders' now has 4 partitions",
            "CREATE topic=": "ERROR: missing_topic command=CREATE",
            "CREATE partitions=3": "ERROR: missing_topic command=CREATE",
            "CREATE topic=x partitions=": "ERROR: missing_partitions command=CREATE",
            "CREATE topic=x partitions=0": "ERROR: invalid_partitions command=CREATE value=0",
            "CREATE topic=x partitions=-1": "ERROR: invalid_partitions command=CREATE value=-1",
            "CREATE topic=x partitions=many": "ERROR: invalid_partitions command=CREATE value=many",
            "CREATE topic=x partitions=2000000": '/ERROR: invalid_partitions reason=".+"/',
            "CREATE topic=a/b": '/ERROR: invalid_topic_name reason=".+"/',
            "CREATE topic=.. partitions=1": '/ERROR: invalid_topic_name reason=".+"/',
            "CREATE topic=orders partitions=2": created("orders", 4),
        },
    ),
    *rows(
        "4.3 DELETE",
        {
            "DELETE": NO_TOPIC_NAME,
            "DELETE nope": "ERROR: topic 'nope' not found",
            "DELETE topic=": "ERROR: missing_topic command=DELETE",
            "DELETE topic=nope": NO_TOPIC,
        },
    ),
    *rows("4.4 LIST", {"LIST all": "ERROR: unknown command: LIST all. Type HELP for available commands."}),
    *rows("4.5 LIST topic=", {"LIST topic=": "ERROR: missing_topic command=LIST", "LIST topic=nope": NO_TOPIC}),
    *rows(
        "4.6 SETGROUP",
        {"SETGROUP": "ERROR: group name cannot be empty", "SETGROUP group=": "ERROR: group name cannot be empty"},
    ),
    *rows(
        "4.7 SUBSCRIBE",
        {
            "SUBSCRIBE": NO_TOPIC_NAME,
            "SUBSCRIBE nope": "ERROR: topic 'nope' does not exist",
            "SUBSCRIBE nope g": "ERROR: topic 'nope' does not exist",
            "SUBSCRIBE group=g": "ERROR: missing_topic command=SUBSCRIBE",
            "SUBSCRIBE topic=nope": NO_TOPIC,
        },
    ),
    *rows(
        "4.9 PUBLISH",
        {
            "PUBLISH": "ERROR: invalid PUBLISH syntax",
            "PUBLISH orders": "ERROR: invalid PUBLISH syntax",
            "PUBLISH nope hello": "ERROR: topic 'nope' does not exist",
            "PUBLISH a/b hello": "ERROR: topic 'a/b' does not exist",
            # RULE 10: without `topic=` before `message=` it is positional, and the topic is the first word.
            "PUBLISH producerId=p message=x": "ERROR: topic 'producerId=p' does not exist",
            "PUBLISH topic=orders": "ERROR: missing_producer_id command=PUBLISH",
            "PUBLISH topic=orders message=x": "ERROR: missing_producer_id command=PUBLISH",
            "PUBLISH topic=orders producerId=p": "ERROR: missing_message command=PUBLISH",
            "PUBLISH topic=orders producerId=p message=": "ERROR: missing_message command=PUBLISH",
            "PUBLISH topic=nope producerId=p message=x": (
                "ERROR: topic_not_found class=validation retryable=false topic=nope"
            ),
            "PUBLISH topic=orders producerId=p acks=5 message=x": (
                "ERROR: invalid_acks class=validation retryable=false acks=5"
            ),
            "PUBLISH topic=orders producerId=p partition=9 message=x": (
                "ERROR: partition_not_found class=validation retryable=false partition=9"
            ),
            "PUBLISH topic=orders producerId=p partition=x message=x": (
                "ERROR: invalid_partition command=PUBLISH value=x"
            ),
            "PUBLISH topic=orders producerId=p seqNum=x message=x": "ERROR: invalid_seqNum command=PUBLISH value=x",
            "PUBLISH topic=orders producerId=p epoch=x message=x": "ERROR: invalid_epoch command=PUBLISH value=x",
        },
    ),
    *rows(
        "4.10 CONSUME",
        {
            "CONSUME": "(no messages)",
            "CONSUME orders": "/ERROR: invalid CONSUME syntax. Expected: CONSUME <topic> <partition> <offset>/",
            "CONSUME orders 0 0 0": "/ERROR: invalid CONSUME syntax. Expected: CONSUME <topic> <partition> <offset>/",
            "CONSUME partition=0 offset=0 member=m": "ERROR: invalid_consume_syntax",
            "CONSUME topic=orders offset=0 member=m": "ERROR: invalid_consume_syntax",
            "CONSUME topic=orders partition=0 member=m": "ERROR: invalid_consume_syntax",
            "CONSUME topic=orders partition=0 offset=0": "ERROR: invalid_consume_syntax",
            "CONSUME topic=orders partition=x offset=0 member=m": "ERROR: invalid_partition command=CONSUME value=x",
            "CONSUME topic=orders partition=0 offset=x member=m": "ERROR: invalid_offset command=CONSUME value=x",
            "CONSUME topic=nope partition=0 offset=0 member=m": NO_TOPIC,
            "CONSUME topic=orders partition=9 offset=0 member=m": "ERROR: partition_not_found partition=9",
        },
    ),
    *rows(
        "4.11 STREAM",
        {
            "STREAM": STREAM,
            "STREAM orders 0": STREAM,
            "STREAM orders x 0": "ERROR: invalid_partition value=x",
            "STREAM orders 0 x": "ERROR: invalid_offset value=x",
            "STREAM nope 0 0": NO_TOPIC,
            "STREAM orders 9 0": "ERROR: partition_not_found partition=9",
            "STREAM partition=0 group=g": "ERROR: invalid_stream_syntax",
            "STREAM topic=orders group=g": "ERROR: invalid_stream_syntax",
            "STREAM topic=orders partition=0": "ERROR: invalid_stream_syntax",
            "STREAM topic=orders partition=x group=g": "ERROR: invalid_partition command=STREAM value=x",
            "STREAM topic=orders partition=0 group=g offset=x": "ERROR: invalid_offset command=STREAM value=x",
            "STREAM topic=nope partition=0 group=g": NO_TOPIC,
            "STREAM topic=orders partition=9 group=g": "ERROR: partition_not_found partition=9",
            "STREAM topic=shared partition={other} group=pair generation=1 member=a-0001": (
                "ERROR: GEN_MISMATCH current=2 requested=1 group=pair member=a-0001"
            ),
        },
    ),
    *rows(
        "4.12 JOIN_GROUP",
        {
            "JOIN_GROUP": JOIN,
            "JOIN_GROUP orders g": JOIN,
            "JOIN_GROUP nope g c": "ERROR: topic 'nope' does not exist",
            "JOIN_GROUP group=g member=c": "ERROR: missing_topic command=JOIN_GROUP",
            "JOIN_GROUP topic=orders member=c": "ERROR: missing_group command=JOIN_GROUP",
            "JOIN_GROUP topic=orders group=g": "ERROR: missing_member command=JOIN_GROUP",
            "JOIN_GROUP topic=nope group=g member=c": NO_TOPIC,
        },
    ),
    *rows(
        "4.13 SYNC_GROUP",
        {
            "SYNC_GROUP": SYNC,
            "SYNC_GROUP orders g m": SYNC,
            "SYNC_GROUP orders g m x": "ERROR: invalid_generation value=x",
            "SYNC_GROUP orders unheard m 1": "OK generation=0 member=m assignments=[]",
            "SYNC_GROUP group=g member=m": "ERROR: missing_topic command=SYNC_GROUP",
            "SYNC_GROUP topic=orders member=m": "ERROR: missing_group command=SYNC_GROUP",
            "SYNC_GROUP topic=orders group=g": "ERROR: missing_member command=SYNC_GROUP",
            "SYNC_GROUP topic=orders group=unheard member=m generation=1": "OK generation=0 member=m assignments=[]",
        },
    ),
    *rows(
        "4.14 LEAVE_GROUP",
        {
            "LEAVE_GROUP": LEAVE,
            "LEAVE_GROUP x": LEAVE,
            "LEAVE_GROUP unheard x": "OK group=unheard member=x left=true",
            "LEAVE_GROUP topic=orders member=m": "ERROR: missing_group command=LEAVE_GROUP",
            "LEAVE_GROUP topic=orders group=g": "ERROR: missing_member command=LEAVE_GROUP",
            "LEAVE_GROUP topic=orders group=unheard member=x": "OK group=unheard member=x left=true",
        },
    ),
    *rows(
        "4.15 HEARTBEAT",
        {
            "HEARTBEAT": BEAT,
            "HEARTBEAT g": BEAT,
            "HEARTBEAT orders known c m x": "ERROR: invalid_generation value=x",
            "HEARTBEAT unheard m": NO_MEMBER.format(0, "unheard", "m"),
            "HEARTBEAT orders known c ghost 1": NO_MEMBER.format(1, "known", "ghost"),
            "HEARTBEAT topic=orders member=m generation=1": "ERROR: missing_group command=HEARTBEAT",
            "HEARTBEAT topic=orders group=g generation=1": "ERROR: missing_member command=HEARTBEAT",
            "HEARTBEAT topic=orders group=unheard member=m generation=1": NO_MEMBER.format(1, "unheard", "m"),
            "HEARTBEAT topic=orders group=known member=ghost": NO_MEMBER.format(0, "known", "ghost"),
        },
    ),
    *rows(
        "4.16 FETCH_OFFSET",
        {
            "FETCH_OFFSET": FETCH,
            "FETCH_OFFSET orders 0": FETCH,
            "FETCH_OFFSET orders x g": "ERROR: invalid_partition value=x",
            "FETCH_OFFSET orders 0 unheard1": "OK offset=0",
            "FETCH_OFFSET topic=orders partition=0": "ERROR: missing_group command=FETCH_OFFSET",
            "FETCH_OFFSET topic=orders group=g": "ERROR: missing_partition command=FETCH_OFFSET",
            "FETCH_OFFSET partition=0 group=g": "ERROR: missing_topic command=FETCH_OFFSET",
            "FETCH_OFFSET topic=orders partition=x group=g": "ERROR: invalid_partition command=FETCH_OFFSET value=x",
            "FETCH_OFFSET topic=orders partition=0 group=unheard2": "OK offset=0",
        },
    ),
    *rows(
        "4.17 COMMIT and COMMIT_OFFSET",
        {
            "COMMIT": COMMIT,
            "COMMIT orders": COMMIT,
            "COMMIT orders g 0 x": "ERROR: invalid_offset value=x",
            "COMMIT orders g x 0": "ERROR: invalid_partition value=x",
            "COMMIT nope g 0 0": "ERROR: topic 'nope' does not exist",
            "COMMIT orders g 9 0": "ERROR: partition_not_found partition=9",
            "COMMIT orders g 0 9999": '/ERROR: invalid_request reason=".+"/',
            "COMMIT_OFFSET": COMMIT,
            "COMMIT_OFFSET nope 0 0": "ERROR: topic 'nope' does not exist",
            "COMMIT_OFFSET orders 0 x": "ERROR: invalid_offset value=x",
            "COMMIT_OFFSET partition=0 group=g offset=0": "ERROR: missing_topic command=COMMIT_OFFSET",
            "COMMIT_OFFSET topic=orders group=g offset=0": "ERROR: missing_partition command=COMMIT_OFFSET",
            "COMMIT_OFFSET topic=orders partition=0 offset=0": "ERROR: missing_group command=COMMIT_OFFSET",
            "COMMIT_OFFSET topic=orders partition=0 group=g": "ERROR: missing_offset command=COMMIT_OFFSET",
            "COMMIT_OFFSET topic=nope partition=0 group=g offset=0": NO_TOPIC,
            "COMMIT_OFFSET topic=orders partition=9 group=g offset=0": "ERROR: partition_not_found partition=9",
            "COMMIT_OFFSET topic=orders partition=0 group=g offset=9999": '/ERROR: invalid_request reason=".+"/',
            # RULE 23: an unknown group is made, and what lies behind is a success where no generation is named.
            "COMMIT_OFFSET topic=orders partition=0 group=made offset=2": "OK",
            "COMMIT_OFFSET topic=orders partition=0 group=made offset=1": "OK",
            "COMMIT_OFFSET topic=orders partition=0 group=made offset=1 generation=1": (
                '/ERROR: offset_regression reason=".+"/'
            ),
            "COMMIT_OFFSET topic=orders partition=0 group=known offset=1 generation=1 member=ghost": (
                "ERROR: NOT_OWNER partition=0 member=ghost group=known generation=1"
            ),
            "COMMIT topic=nope partition=0 group=g offset=0": NO_TOPIC,
        },
    ),
    *rows(
        "4.18 BATCH_COMMIT",
        {
            "BATCH_COMMIT": BATCH,
            f"BATCH_COMMIT orders known {MEMBER} 1": BATCH,
            f"BATCH_COMMIT orders known {MEMBER} x 0:1": "ERROR: invalid_generation value=x",
            f"BATCH_COMMIT orders known {MEMBER} 1 0:x": "ERROR: invalid_batch_commit_entry entry=0:x",
            f"BATCH_COMMIT nope known {MEMBER} 1 0:0": "ERROR: topic 'nope' does not exist",
            "BATCH_COMMIT orders known ghost 1 0:1": (
                "ERROR: NOT_OWNER partition=0 member=ghost group=known generation=1"
            ),
            "BATCH_COMMIT group=known generation=1 member=m 0:1": "ERROR: missing_topic command=BATCH_COMMIT",
            "BATCH_COMMIT topic=orders generation=1 member=m 0:1": "ERROR: missing_group command=BATCH_COMMIT",
            "BATCH_COMMIT topic=orders group=known generation=1 member=m": (
                "ERROR: missing_offsets command=BATCH_COMMIT"
            ),
            f"BATCH_COMMIT topic=orders group=known generation=1 member={MEMBER} 0:x": (
                "ERROR: invalid_batch_commit_entry entry=0:x"
            ),
            f"BATCH_COMMIT topic=orders group=known generation=1 member={MEMBER} 0:1,0:2": (
                "ERROR: duplicate_partition partition=0"
            ),
            f"BATCH_COMMIT topic=orders group=known generation=1 member={MEMBER} 9:1": (
                "ERROR: partition_not_found partition=9"
            ),
            f"BATCH_COMMIT topic=nope group=known generation=1 member={MEMBER} 0:0": NO_TOPIC,
            # Of several pairs those that can be are applied.
            f"BATCH_COMMIT topic=orders group=known generation=1 member={MEMBER} 0:1,9:1": "OK batched=1",
            "BATCH_COMMIT topic=orders group=known generation=1 member=ghost P0:1": (
                "ERROR: NOT_OWNER partition=0 member=ghost group=known generation=1"
            ),
        },
    ),
    *rows(
        "4.20 FIND_COORDINATOR",
        {
            "FIND_COORDINATOR": syntax("FIND_COORDINATOR <group>"),
            "FIND_COORDINATOR group=": "ERROR: missing_group command=FIND_COORDINATOR",
        },
    ),
    *rows(
        "4.21 METADATA",
        {
            "METADATA": syntax("METADATA <topic>"),
            "METADATA nope": "ERROR: topic 'nope' does not exist",
            "METADATA topic=": "ERROR: missing_topic command=METADATA",
            "METADATA topic=nope": NO_TOPIC,
        },
    ),
    *rows(
        "4.22 DESCRIBE, GROUP_STATUS, REGISTER_GROUP, LIST_GROUPS",
        {
            "DESCRIBE": syntax("DESCRIBE <topic>"),
            "DESCRIBE nope": "ERROR: topic 'nope' does not exist",
            "DESCRIBE topic=": "ERROR: missing_topic command=DESCRIBE",
            "DESCRIBE topic=nope": NO_TOPIC,
            "GROUP_STATUS": syntax("GROUP_STATUS <group>"),
            "GROUP_STATUS unheard": '/ERROR: group_status_failed reason=".+"/',
            "GROUP_STATUS group=": "ERROR: missing_group command=GROUP_STATUS",
            "GROUP_STATUS group=unheard": '/ERROR: group_status_failed reason=".+"/',
            "REGISTER_GROUP": syntax("REGISTER_GROUP <topic> <group>"),
            "REGISTER_GROUP orders": syntax("REGISTER_GROUP <topic> <group>"),
            "REGISTER_GROUP nope g": "ERROR: topic 'nope' does not exist",
            "REGISTER_GROUP group=g": "ERROR: missing_topic command=REGISTER_GROUP",
            "REGISTER_GROUP topic=orders": "ERROR: missing_group command=REGISTER_GROUP",
            "REGISTER_GROUP topic=nope group=g": NO_TOPIC,
            "LIST_GROUPS all": "ERROR: unknown command: LIST_GROUPS all. Type HELP for available commands.",
        },
    ),
    *(
        Row("4.24 to 4.28", f"{name} {form}", f"ERROR: not_supported class=validation retryable=false command={name}")
        for name in ("APPEND_STREAM", "SAVE_SNAPSHOT", "READ_SNAPSHOT", "STREAM_VERSION")
        for form in ("orders k", "topic=orders key=k version=1 message=x")
    ),
    Row("4.31 cluster", "LIST_CLUSTER", "ERROR: distribution_not_enabled"),
    *(Row("4.31 cluster", f"{name} x", f"ERROR: internal_command_unauthorized command={name}") for name in INTERNAL),
    *rows(
        "4.32 unknown commands",
        {
            "FROB": 'ERROR: unknown_command command="FROB"',
            "FROB it": 'ERROR: unknown_command command="FROB it"',
            "frob topic=orders": 'ERROR: unknown_command command="frob topic=orders"',
            "LISTEN": 'ERROR: unknown_command command="LISTEN"',
        },
    ),
]

FINAL_ERRORS: Final = rows(
    "4.10 CONSUME",
    {
        "CONSUME orders x 0": "ERROR: invalid_partition value=x",
        "CONSUME orders 0 x": "ERROR: invalid_offset value=x",
        "CONSUME nope 0 0": "ERROR: topic 'nope' does not exist",
        "CONSUME orders 9 0": "ERROR: partition_not_found partition=9",
    },
)
"""After these the connection ends: the client reads up to there."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("errors"), "--topics-auto-create=false") as stack:
        assert await stack.ask("LIST") == "(no topics)"  # 4.4, while it is true.
        await stack.ask("CREATE orders 4")
        await stack.ask("CREATE shared 2")
        for number in range(3):
            await stack.ask(f"PUBLISH topic=orders partition=0 producerId=p message={number}")
        await stack.ask(f"JOIN_GROUP topic=orders group=known member={MEMBER}")
        for member in ("a-0001", "b-0001"):
            await stack.ask(f"JOIN_GROUP topic=shared group=pair member={member}")
        yield stack


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def others_partition(stack: Stack) -> str:
    """The partition of `shared` that the member a-0001 of the group `pair` does not own."""
    synced = await stack.ask("SYNC_GROUP topic=shared group=pair member=b-0001 generation=2")
    match = re.fullmatch(r"OK generation=2 member=b-0001 assignments=\[(\d)\]", synced)
    assert match is not None, synced
    return match[1]


def names(table: list[Row]) -> list[str]:
    return [f"{row.section}: {row.request}" for row in table]


def fits(answer: str, expected: str) -> bool:
    if expected[0] == expected[-1] == "/":
        return re.fullmatch(expected[1:-1], answer) is not None
    return answer == expected


@pytest.mark.parametrize("row", ERRORS, ids=names(ERRORS))
async def test_an_error_is_answered_and_the_connection_stays_open(
    stack: Stack, others_partition: str, row: Row
) -> None:
    async with stack.connect() as client:
        answer = await client.ask(row.request.replace("{other}", others_partition))
        assert fits(answer, row.answer), answer
        assert await client.ask("LIST topic=orders") == "OK topic=orders partitions=4"


@pytest.mark.parametrize("row", FINAL_ERRORS, ids=names(FINAL_ERRORS))
async def test_an_error_of_a_positional_consume_is_the_last_frame(stack: Stack, row: Row) -> None:
    async with stack.connect() as client:
        answer = await client.ask(row.request)
        assert fits(answer, row.answer), answer
        assert await client.closed()


async def test_4_8_direct_messages_are_refused_by_reason(stack: Stack) -> None:
    async with stack.connect() as client:
        assert await client.ask("hello", topic="nope") == NO_TOPIC
        assert await client.ask("", topic="orders") == "ERROR: empty_command"
        assert await client.ask("hello", topic="orders") == "OK"


async def test_4_9_a_producer_of_an_old_epoch_is_told_in_json(stack: Stack) -> None:
    publish = "PUBLISH topic=orders producerId=f seqNum={} epoch={} isIdempotent=true partition=1 message=x"
    await stack.ask(publish.format(9, 5))
    refused = json.loads(await stack.ask(publish.format(10, 4)))
    assert (refused["status"], refused["error"]) == ("ERROR", "stale_producer_epoch producer=f current=5 got=4")


async def test_4_25_read_stream_fails_in_json_and_the_connection_ends_in_both_dialects(stack: Stack) -> None:
    for text in ("READ_STREAM orders k", "READ_STREAM topic=orders key=k"):
        async with stack.connect() as client:
            assert json.loads(await client.ask(text))["status"] == "ERROR"
            assert await client.closed()


async def test_4_32_an_unknown_raw_command_cannot_be_told_from_garbage(stack: Stack) -> None:
    async with stack.connect() as client:
        answer = await client.ask("FROB it", raw=True)
        assert answer == 'ERROR: decode_failed reason="not a command, envelope or batch"'
        assert await client.closed()
