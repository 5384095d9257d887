"""What the tests of a running gateway share. Each module says itself what its `stack` of broker and gateway is."""

from __future__ import annotations

import uuid

import pytest_asyncio

from tests.harness.gateway import Stack


@pytest_asyncio.fixture(loop_scope="module")
async def topic(stack: Stack) -> str:
    """A new topic with one partition."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    await stack.ask(f"CREATE topic={name} partitions=1")
    return name
