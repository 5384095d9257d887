"""What is decided otherwise than in the broker that legacy clients come from: the table *Differences* of
docs/gateway.md, row by row."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio

from tests.harness.gateway import Stack, created, read_batch, running_stack
from tests.harness.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATTERN_REFUSED = (
    'ERROR: not_supported class=validation retryable=false command={} topic=log-* reason="only CONSUME takes'
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("differences")) as stack:
        yield stack


@pytest.mark.parametrize(
    "command",
    [
        "COMMIT topic=log-* partition=0 group=g offset=1",
        "COMMIT_OFFSET topic=log-* partition=0 group=g offset=1",
        "COMMIT_OFFSET log-* g 0 1",
        "BATCH_COMMIT topic=log-* group=g generation=0 member=m P0:1",
        "FETCH_OFFSET topic=log-* partition=0 group=g",
        "JOIN_GROUP topic=log-* group=g member=m",
        "SYNC_GROUP topic=log-* group=g member=m generation=1",
        "REGISTER_GROUP topic=log-* group=g",
        "STREAM topic=log-* partition=0 group=g",
        "SUBSCRIBE topic=log-* group=g",
    ],
)
async def test_a_pattern_is_read_and_not_committed(stack: Stack, command: str) -> None:
    """A single offset for topics of different lengths would, committed, skip what the shorter ones get later."""
    for name in ("log-a", "log-b"):
        await stack.ask(f"CREATE topic={name} partitions=1")
        await stack.ask(f"PUBLISH topic={name} producerId=p message=of-{name}")
    async with stack.connect() as client:
        answer = await client.ask(command)
        assert answer.startswith(PATTERN_REFUSED.format(command.split()[0])), answer
        payloads = {message["payload"] for message in read_batch(await client.consume("log-*"))}
    assert payloads == {b"of-log-a", b"of-log-b"}


async def test_group_status_tells_when_members_joined_were_heard_of_and_rebalanced(stack: Stack, topic: str) -> None:
    began = time.time()
    joined = await stack.ask(f"JOIN_GROUP topic={topic} group=timed member=m")
    member = joined.split("member=")[1].split()[0]
    first = json.loads(await stack.ask("GROUP_STATUS group=timed"))

    async def heard_of_later() -> dict[str, Any]:
        await stack.ask(f"HEARTBEAT topic={topic} group=timed member={member} generation=1")
        status: dict[str, Any] = json.loads(await stack.ask("GROUP_STATUS group=timed"))
        assert status["members"][0]["last_heartbeat"] > first["members"][0]["last_heartbeat"]
        return status

    status: dict[str, Any] = await eventually(heard_of_later)
    (seen,) = status["members"]
    times = [
        datetime.fromisoformat(text) for text in (seen["joined"], status["last_rebalance"], seen["last_heartbeat"])
    ]
    # The broker reckons with two clocks, whose readings may be a moment apart.
    assert began - 1 < times[0].timestamp() <= times[2].timestamp() <= time.time() + 1
    assert abs((times[1] - times[0]).total_seconds()) < 1


async def test_a_group_that_has_not_rebalanced_since_the_start_has_no_time_for_it(stack: Stack, topic: str) -> None:
    await stack.ask(f"COMMIT_OFFSET topic={topic} partition=0 group=offsets-only offset=0")
    status = json.loads(await stack.ask("GROUP_STATUS group=offsets-only"))
    assert (status["last_rebalance"], status["members"]) == ("0001-01-01T00:00:00Z", [])


async def test_topic_names_have_no_equals_sign(stack: Stack) -> None:
    """Everything that takes `name=value` would have to guess where such a name ends."""
    for command in ("CREATE topic=a=b partitions=1", "CREATE a=b 1"):
        answer = await stack.ask(command)
        assert answer.startswith("ERROR: invalid_topic_name reason=\"topic name 'a=b' holds '='; letters,"), answer
    assert await stack.ask("a message", topic="a=b") == answer, "the direct message does not make it either"


async def test_the_missing_producer_is_spelt_as_of_old(stack: Stack, topic: str) -> None:
    assert await stack.ask(f"PUBLISH topic={topic} message=x") == "ERROR: missing_producer_id command=PUBLISH"


async def test_create_and_describe_tell_every_policy_and_retention(stack: Stack) -> None:
    answer = await stack.ask("CREATE topic=kept partitions=1 retention_hours=5 retention_bytes=1000000")
    assert answer == created("kept", 1, hours=5, size=1_000_000)
    assert await stack.ask("CREATE topic=kept") == answer
    assert await stack.ask("CREATE topic=as-the-broker partitions=1") == created("as-the-broker", 1)
    assert json.loads(await stack.ask("DESCRIBE topic=kept"))["policy"] == {
        "cleanup_policy": "delete",
        "partitioner": "hash_key",
        "auth_policy": "open",
        "read_acl": "",
        "write_acl": "",
        "retention_hours": "5",
        "retention_bytes": "1000000",
    }


async def test_a_group_may_join_a_second_topic_and_keeps_their_offsets_apart(stack: Stack) -> None:
    members: dict[str, str] = {}
    for name in ("one", "two"):
        await stack.ask(f"CREATE topic={name} partitions=2")
        for number in range(2):
            await stack.ask(f"PUBLISH topic={name} producerId=p partition={number} message={name}-{number}")
        answer = await stack.ask(f"JOIN_GROUP topic={name} group=both member=m-{name}")
        assert answer.endswith("assignments=[0 1]"), "members of the other topic take none of these partitions"
        members[name] = answer.split("member=")[1].split()[0]
    commit = f"COMMIT_OFFSET topic=one partition=0 group=both offset=1 member={members['one']}"
    assert await stack.ask(commit) == "OK"
    assert await stack.ask("FETCH_OFFSET topic=one partition=0 group=both") == "OK offset=1"
    assert await stack.ask("FETCH_OFFSET topic=two partition=0 group=both") == "OK offset=0"
