"""Every command in both dialects against a real broker, by the sections of the wire document."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.harness.gateway import LegacyClient, Stack, created, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("commands")) as stack:
        await stack.ask("CREATE orders 4")
        await stack.ask("CREATE other 2")
        for partition in range(4):
            for number in range(3):
                await stack.ask(f"PUBLISH topic=orders partition={partition} producerId=p message={number}")
        await stack.ask("JOIN_GROUP topic=orders group=known member=m-0001")
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[LegacyClient]:
    async with stack.connect() as client:
        yield client


HOST = r"127\.0\.0\.1"
ANSWERS = [
    # 4.2 CREATE
    ("4.2", "CREATE fresh1 3", "✅ Topic 'fresh1' now has 3 partitions"),
    ("4.2", "CREATE fresh1 2", "✅ Topic 'fresh1' now has 3 partitions"),
    ("4.2", "CREATE fresh1 5", "✅ Topic 'fresh1' now has 5 partitions"),
    ("4.2", "CREATE fresh2", "✅ Topic 'fresh2' now has 4 partitions"),
    ("4.2", "CREATE", "ERROR: missing topic name"),
    ("4.2", "CREATE x -1", "ERROR: partitions must be a positive integer"),
    ("4.2", "CREATE topic=fresh3 partitions=2", created("fresh3", 2)),
    ("4.2", "CREATE topic=fresh3 partitions=1", created("fresh3", 2)),
    ("4.2", "CREATE topic=fresh4 partitions=1 idempotent=true", created("fresh4", 1, more=" idempotent=true")),
    ("4.2", "CREATE topic=fresh4 partitions=1 idempotent=false", created("fresh4", 1, more=" idempotent=true")),
    (
        "4.2",
        "CREATE topic=fresh3 partitions=9 idempotent=true",
        re.compile(
            r'ERROR: unsupported_topic_policy reason="idempotent=true: the topic exists without idempotent, .*"'
        ),
    ),
    ("4.2", "CREATE topic=fresh3 partitions=1", created("fresh3", 2)),
    (
        "4.2",
        "CREATE topic=fresh5 partitions=1 cleanup_policy=delete partitioner=hash_key auth_policy=open read_acl="
        " replication_factor=1 idempotent=false event_sourcing=false retention_hours=5 retention_bytes=-1",
        created("fresh5", 1, hours=5, size=-1),
    ),
    ("4.2", "CREATE topic=fresh5 partitions=1 retention_hours=5", created("fresh5", 1, hours=5, size=-1)),
    (
        "4.2",
        "CREATE topic=fresh5 retention_hours=6",
        re.compile(r"ERROR: unsupported_topic_policy .*=5, and CREATE .*"),
    ),
    ("4.2", "DELETE topic=fresh5", "OK topic=fresh5 deleted=true"),
    (
        "4.2",
        "CREATE topic=guarded partitions=1 auth_policy=acl read_acl=bob write_acl=bob",
        "ERROR: unsupported_topic_policy class=validation retryable=false auth_policy=acl",
    ),
    (
        "4.2",
        "CREATE topic=guarded partitions=1 cleanup_policy=bogus",
        "ERROR: invalid_topic_policy class=validation retryable=false cleanup_policy=bogus",
    ),
    ("4.2", "METADATA topic=guarded", "ERROR: topic_not_found topic=guarded"),
    ("4.2", "CREATE topic=a/b", re.compile(r"ERROR: invalid_topic_name reason=\".*\"")),
    ("4.2", "CREATE partitions=3", "ERROR: missing_topic command=CREATE"),
    ("4.2", "CREATE topic=x partitions=0", "ERROR: invalid_partitions command=CREATE value=0"),
    # 4.3 DELETE
    ("4.3", "DELETE fresh1", "🗑️ Topic 'fresh1' deleted"),
    ("4.3", "DELETE fresh1", "ERROR: topic 'fresh1' not found"),
    ("4.3", "DELETE topic=fresh2", "OK topic=fresh2 deleted=true"),
    ("4.3", "DELETE topic=fresh2", "ERROR: topic_not_found topic=fresh2"),
    ("4.3", "DELETE", "ERROR: missing topic name"),
    # 4.4 and 4.5 LIST
    ("4.4", "LIST", "fresh3, fresh4, orders, other"),
    ("4.5", "LIST topic=orders", "OK topic=orders partitions=4"),
    ("4.5", "LIST topic=nope", "ERROR: topic_not_found topic=nope"),
    # 4.6
    ("4.6", "HELP", re.compile(r"Available commands:\n.*CREATE.*", re.DOTALL)),
    ("4.6", "SETGROUP g", "✅ Consumer group set to 'g'"),
    ("4.6", "SETGROUP group=g", "✅ Consumer group set to 'g'"),
    ("4.6", "SETGROUP", "ERROR: group name cannot be empty"),
    # 4.7 SUBSCRIBE
    ("4.7", "SUBSCRIBE nope", "ERROR: topic 'nope' does not exist"),
    ("4.7", "SUBSCRIBE topic=nope group=g", "ERROR: topic_not_found topic=nope"),
    ("4.7", "SUBSCRIBE other g7", "✅ Subscribed to 'other' with group 'g7'"),
    ("4.7", "SUBSCRIBE topic=other group=g8", "✅ Subscribed to 'other' with group 'g8'"),
    # 4.9 PUBLISH
    ("4.9", "PUBLISH orders hello", "📤 Published to 'orders'"),
    ("4.9", "PUBLISH orders hello", "📤 Published to 'orders'"),
    ("4.9", "PUBLISH nope hello", "ERROR: topic 'nope' does not exist"),
    ("4.9", "PUBLISH orders", "ERROR: invalid PUBLISH syntax"),
    (
        "4.9",
        "PUBLISH topic=orders acks=all producerId=p seqNum=7 epoch=2 partition=3 message=a b",
        re.compile(
            r'\{"status":"OK","last_offset":\d+,"producer_epoch":2,"producer_id":"p","seq_start":7,"seq_end":7\}'
        ),
    ),
    ("4.9", "PUBLISH topic=orders acks=0 producerId=p message=x", "OK"),
    (
        "4.9",
        "PUBLISH topic=nope producerId=p message=x",
        "ERROR: topic_not_found class=validation retryable=false topic=nope",
    ),
    ("4.9", "PUBLISH topic=orders message=x", "ERROR: missing_producer_id command=PUBLISH"),
    (
        "4.9",
        "PUBLISH topic=orders producerId=p acks=5 message=x",
        re.compile("ERROR: invalid_acks class=validation .*"),
    ),
    # 4.10 CONSUME
    ("4.10", "CONSUME", "(no messages)"),
    ("4.10", "CONSUME orders 0", "ERROR: invalid CONSUME syntax. Expected: CONSUME <topic> <partition> <offset>"),
    ("4.10", "CONSUME topic=orders partition=0", "ERROR: invalid_consume_syntax"),
    ("4.10", "CONSUME topic=nope partition=0 offset=0 member=m", "ERROR: topic_not_found topic=nope"),
    ("4.10", "CONSUME topic=orders partition=9 offset=0 member=m", "ERROR: partition_not_found partition=9"),
    # 4.11 STREAM
    ("4.11", "STREAM topic=orders partition=0", "ERROR: invalid_stream_syntax"),
    ("4.11", "STREAM nope 0 0", "ERROR: topic_not_found topic=nope"),
    # 4.12 JOIN_GROUP
    ("4.12", "JOIN_GROUP orders g12 c", re.compile(r"OK generation=1 member=c-\d{4} assignments=\[0 1 2 3\]")),
    (
        "4.12",
        "JOIN_GROUP topic=orders group=g13 member=c",
        re.compile(r"OK generation=1 member=c-\d{4} assignments=\[0 1 2 3\]"),
    ),
    (
        "4.12",
        "JOIN_GROUP topic=orders group=known member=m-0001 generation=1",
        "OK generation=1 member=m-0001 assignments=[0 1 2 3] resumed=true",
    ),
    ("4.12", "JOIN_GROUP topic=nope group=g member=c", "ERROR: topic_not_found topic=nope"),
    ("4.12", "JOIN_GROUP topic=orders group=g", "ERROR: missing_member command=JOIN_GROUP"),
    # 4.13 SYNC_GROUP
    ("4.13", "SYNC_GROUP orders known m-0001 1", "OK generation=1 member=m-0001 assignments=[0 1 2 3]"),
    (
        "4.13",
        "SYNC_GROUP topic=orders group=known member=m-0001 generation=1",
        "OK generation=1 member=m-0001 assignments=[0 1 2 3]",
    ),
    ("4.13", "SYNC_GROUP topic=orders group=known member=x generation=1", "OK generation=1 member=x assignments=[]"),
    # 4.14 LEAVE_GROUP
    ("4.14", "LEAVE_GROUP orders g12 nobody", "OK group=g12 member=nobody left=true"),
    ("4.14", "LEAVE_GROUP topic=orders group=nope member=nobody", "OK group=nope member=nobody left=true"),
    # 4.15 HEARTBEAT
    ("4.15", "HEARTBEAT orders known c m-0001 1", "OK member=m-0001 generation=1"),
    ("4.15", "HEARTBEAT topic=orders group=known member=m-0001 generation=1", "OK member=m-0001 generation=1"),
    ("4.15", "HEARTBEAT known m-0001", "OK member=m-0001 generation=1"),
    (
        "4.15",
        "HEARTBEAT topic=orders group=known member=ghost generation=4",
        "ERROR: GEN_MISMATCH current=0 requested=4 group=known member=ghost action=REBALANCE_REQUIRED",
    ),
    # 4.17 COMMIT, COMMIT_OFFSET
    ("4.17", "COMMIT orders gc 0 1", "OK"),
    ("4.17", "COMMIT_OFFSET orders 1 0", "OK"),
    ("4.17", "COMMIT_OFFSET topic=orders partition=0 group=gc offset=1", "OK"),
    ("4.17", "COMMIT_OFFSET topic=orders partition=0 group=gc offset=0", "OK"),
    (
        "4.17",
        "COMMIT_OFFSET topic=orders partition=0 group=gc offset=0 generation=1",
        re.compile(r"ERROR: offset_regression reason=\".*\""),
    ),
    (
        "4.17",
        "COMMIT_OFFSET topic=orders partition=2 group=known offset=1 generation=1 member=m-0001",
        "OK",
    ),
    ("4.17", "COMMIT_OFFSET topic=nope partition=0 group=gc offset=1", re.compile("ERROR: topic_not_found .*")),
    # 4.16 FETCH_OFFSET
    ("4.16", "FETCH_OFFSET topic=orders partition=0 group=gc", "OK offset=1"),
    ("4.16", "FETCH_OFFSET topic=orders partition=3 group=never", "OK offset=0"),
    ("4.16", "FETCH_OFFSET orders 2 known", "OK offset=1"),
    # 4.18 BATCH_COMMIT
    ("4.18", "BATCH_COMMIT orders known m-0001 1 P0:1,1:2", "OK batched=2"),
    ("4.18", "BATCH_COMMIT topic=orders group=known generation=1 member=m-0001 0:1,1:2", "OK batched=2"),
    ("4.18", "BATCH_COMMIT topic=orders group=known member=m-0001 generation=1 P0:1", "OK batched=1"),
    (
        "4.18",
        "BATCH_COMMIT topic=orders group=known generation=1 member=ghost 0:3",
        "ERROR: NOT_OWNER partition=0 member=ghost group=known generation=1",
    ),
    ("4.18", "BATCH_COMMIT topic=orders group=known member=m 0:x", "ERROR: invalid_batch_commit_entry entry=0:x"),
    # 4.20 FIND_COORDINATOR
    ("4.20", "FIND_COORDINATOR g", re.compile(rf"OK coordinator_id=\S+ coordinator_type=group host={HOST} port=\d+")),
    (
        "4.20",
        "FIND_COORDINATOR group=g",
        re.compile(rf"OK coordinator_id=\S+ coordinator_type=group host={HOST} port=\d+"),
    ),
    # 4.21 METADATA
    (
        "4.21",
        "METADATA other",
        re.compile(rf"OK topic=other partitions=2 leaders={HOST}:\d+,{HOST}:\d+ epochs=\d+,\d+"),
    ),
    ("4.21", "METADATA topic=nope", "ERROR: topic_not_found topic=nope"),
    # 4.22
    ("4.22", "DESCRIBE topic=nope", "ERROR: topic_not_found topic=nope"),
    ("4.22", "GROUP_STATUS group=nope", re.compile(r"ERROR: group_status_failed reason=\".*\"")),
    ("4.22", "REGISTER_GROUP topic=orders group=r1", "OK group=r1 topic=orders registered=true"),
    ("4.22", "REGISTER_GROUP orders r2", "✅ Group 'r2' registered for topic 'orders'"),
    ("4.22", "REGISTER_GROUP topic=nope group=r1", "ERROR: topic_not_found topic=nope"),
    ("4.22", "LIST_GROUPS", re.compile(r"OK count=\d+ groups=\S*known\S*r1\S*r2")),
    # 4.23 to 4.29, 4.31: not served
    ("4.23", "BEGIN_TXN transactional_id=x", "ERROR: not_supported class=validation retryable=false command=BEGIN_TXN"),
    ("4.24", "APPEND_STREAM topic=o key=k", re.compile("ERROR: not_supported .*command=APPEND_STREAM")),
    ("4.29", "AUTH principal=p token=t", re.compile("ERROR: not_supported .*command=AUTH")),
    ("4.31", "CLUSTER_STATUS", "ERROR: distribution_required command=CLUSTER_STATUS"),
    ("4.31", "LIST_CLUSTER", "ERROR: distribution_not_enabled"),
    ("4.31", "RAFT_APPLY x", "ERROR: internal_command_unauthorized command=RAFT_APPLY"),
    # 4.32
    ("4.32", "FROB it", 'ERROR: unknown_command command="FROB it"'),
]


@pytest.mark.parametrize(("section", "text", "expected"), ANSWERS, ids=[f"{row[0]} {row[1]}" for row in ANSWERS])
async def test_commands_answer_as_the_wire_document_says(
    client: LegacyClient, section: str, text: str, expected: str | re.Pattern[str]
) -> None:
    answer = await client.ask(text)
    if isinstance(expected, str):
        assert answer == expected
    else:
        assert expected.fullmatch(answer), answer


async def test_exit_answers_and_closes(client: LegacyClient) -> None:
    assert await client.ask("EXIT") == "OK"
    assert await client.closed()


async def test_a_raw_find_coordinator_is_refused_so_that_java_streams_on_its_own_connection(
    client: LegacyClient,
) -> None:
    assert await client.ask("FIND_COORDINATOR group=g", raw=True) == "ERROR: coordinator_not_available"


async def test_describe_and_group_status_are_json(client: LegacyClient) -> None:
    described = json.loads(await client.ask("DESCRIBE topic=other"))
    assert (described["status"], described["topic"], len(described["partitions"])) == ("OK", "other", 2)
    status = json.loads(await client.ask("GROUP_STATUS group=known"))
    assert (status["state"], status["member_count"], status["partition_count"]) == ("Stable", 1, 4)


async def test_read_stream_fails_in_one_json_frame_and_the_connection_ends(client: LegacyClient) -> None:
    answer = json.loads(await client.ask("READ_STREAM topic=orders key=k"))
    assert answer == {"status": "ERROR", "error": "not_supported command=READ_STREAM"}
    assert await client.closed()


async def test_list_offsets_has_the_five_parts_clients_insist_on(client: LegacyClient) -> None:
    answer = await client.ask("LIST_OFFSETS topic=other")
    assert re.fullmatch(
        r"OK topic=other partitions=2 offsets=P0:earliest=0:latest=0:leo=0:hwm=0,P1:earliest=0:latest=0:leo=0:hwm=0",
        answer,
    )
    assert await client.ask("LIST_OFFSETS topic=other partition=7") == "ERROR: partition_not_found partition=7"


async def test_negotiating_structured_errors_classifies_what_follows(client: LegacyClient) -> None:
    assert (await client.ask("PROTOCOL_INFO")).startswith("OK protocol=cursus min_version=1 max_version=1 ")
    answer = await client.ask("NEGOTIATE version=1 features=structured_errors_v1,telepathy_v1")
    assert answer == "OK protocol_version=1 enabled=structured_errors_v1 unsupported=telepathy_v1"
    assert (
        await client.ask("METADATA topic=nope") == "ERROR: topic_not_found class=validation retryable=false topic=nope"
    )
    assert await client.ask("LIST") == "OK count=4 topics=fresh3,fresh4,orders,other"


async def test_negotiation_refuses_what_it_cannot_do(client: LegacyClient) -> None:
    assert (await client.ask("NEGOTIATE version=2")).startswith("ERROR: UNSUPPORTED_PROTOCOL_VERSION class=validation")
    refused = await client.ask("NEGOTIATE version=1 features=telepathy_v1 require_features=true")
    assert refused == "ERROR: UNSUPPORTED_FEATURE class=validation retryable=false features=telepathy_v1"
    assert (await client.ask("NEGOTIATE features=x")).startswith("ERROR: missing_protocol_version ")
