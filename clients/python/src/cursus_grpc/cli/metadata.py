"""`cursus metadata`: who serves what, as clients learn it."""

from __future__ import annotations

import click

from cursus_grpc.cli import completion
from cursus_grpc.cli.output import Cell, column, json_document, number, plural, table
from cursus_grpc.cli.session import Command, Session, pass_session
from cursus_grpc.errors import TopicNotFound
from cursus_grpc.types import ClusterInfo


@click.command(cls=Command, epilog="Example: cursus metadata orders invoices")
@click.argument("topics", nargs=-1, shell_complete=completion.topics)
@pass_session
def metadata(session: Session, topics: tuple[str, ...]) -> None:
    """List the brokers, topics, partitions and their leaders.

    Without TOPICS all of them. It is what a client goes by: the addresses are those that brokers advertise.
    """
    with session.admin() as admin:
        found = admin.describe_cluster(topics)
    there = {topic.name for topic in found.topics}
    for name in topics:
        if name not in there:
            raise TopicNotFound(f"topic {name!r} does not exist", {"topic": name})
    if session.json:
        json_document(_json(found))
        return
    count = sum(len(topic.partitions) for topic in found.topics)
    held = f"{plural(len(found.topics), 'topic')}, {plural(count, 'partition')}"
    click.echo(f"cluster {found.cluster_id}: {plural(len(found.brokers), 'broker')}, {held}")
    click.echo()
    table([number("BROKER"), column("ADDRESS")], [[broker.broker_id, broker.target] for broker in found.brokers])
    if found.topics:
        click.echo()
        table([column("TOPIC"), column("ID"), *map(number, ("PARTITION", "LEADER", "EPOCH"))], _rows(found))


def _rows(found: ClusterInfo) -> list[list[Cell]]:
    return [
        [topic.name, topic.topic_id, part.partition, part.leader_id, part.leader_epoch]
        for topic in found.topics
        for part in topic.partitions
    ]


def _json(found: ClusterInfo) -> dict[str, object]:
    return {
        "cluster_id": found.cluster_id,
        "brokers": [
            {"broker_id": broker.broker_id, "host": broker.host, "port": broker.port} for broker in found.brokers
        ],
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {"partition": part.partition, "leader_id": part.leader_id, "leader_epoch": part.leader_epoch}
                    for part in topic.partitions
                ],
            }
            for topic in found.topics
        ],
    }
