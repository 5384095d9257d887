"""The server serves every method of the contract, and the contract is documented to the last field."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from cursus_broker.rpc import server
from cursus_broker.rpc.cluster import ClusterServicer
from cursus_broker.rpc.consume import ConsumeServicer
from cursus_broker.rpc.groups import GroupServicer
from cursus_broker.rpc.publish import PublishServicer
from cursus_broker.rpc.subscribe import SubscribeServicer
from cursus_broker.rpc.topics import TopicServicer

PROTO = Path(__file__).parents[3] / "proto" / "cursus"

# Each class stands in for an instance of itself: only the names of its methods are looked at.
SERVICERS = server.Servicers(
    topics=cast("TopicServicer", TopicServicer),
    publish=cast("PublishServicer", PublishServicer),
    consume=cast("ConsumeServicer", ConsumeServicer),
    subscribe=cast("SubscribeServicer", SubscribeServicer),
    groups=cast("GroupServicer", GroupServicer),
    cluster=cast("ClusterServicer", ClusterServicer),
)

EXPECTED = {
    "TopicService": "CreateTopic DeleteTopic ListTopics DescribeTopic UpdateTopic AddPartitions ListOffsets"
    " DeleteRecords ReopenPartition",
    "PublishService": "Publish PublishStream DescribeProducers ReleaseProducers",
    "ConsumeService": "Fetch Consume Subscribe",
    "GroupService": "JoinGroup SyncGroup Heartbeat LeaveGroup CommitOffsets FetchOffsets ListGroups DescribeGroup"
    " DeleteGroup ResetOffsets",
    "ClusterService": "GetMetadata GetBrokerInfo",
}


def test_the_contract_has_the_services_and_methods_it_promises() -> None:
    found = {service.name: " ".join(method.name for method in service.methods) for service in server.SERVICES}
    assert found == EXPECTED


@pytest.mark.parametrize("service", server.SERVICES, ids=lambda service: service.name)
def test_every_method_has_a_handler(service: ServiceDescriptor) -> None:
    for method in service.methods:
        assert callable(server._find(SERVICERS, service.name, method.name))


@pytest.mark.parametrize("path", sorted(PROTO.rglob("*.proto")), ids=lambda path: path.stem)
def test_every_definition_has_a_comment(path: Path) -> None:
    """What buf checks where it is installed, checked everywhere."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    definition = re.compile(r"(message|enum|service|rpc|oneof) \w+|[\w.<>, ]+ \w+ = \d+( \[.*])?;|[A-Z_]+ = \d+;")
    for before, line in pairwise(lines):
        if definition.match(line):
            assert before.startswith("//"), f"{path.name}: {line!r} has no comment"
