"""A consumer in a process of its own. Run as `python -m tests.e2e.client.worker ADDRESS GROUP TOPIC DATABASE`.

It writes what it processes into an SQLite database and says `partition offset value` for each record on stdout. With a
database of `-` it commits to the group after each batch; with a file it keeps its offsets there, in one transaction
with the results, and seeks to them when it is assigned partitions.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence

from cursus_grpc import Consumer, Record, TopicPartition

SESSION_TIMEOUT_MS = 2_000


def text(record: Record) -> str:
    assert record.value is not None
    return record.value.decode()


def say(record: Record) -> None:
    sys.stdout.write(f"{record.partition} {record.offset} {text(record)}\n")


def commit_to_the_group(consumer: Consumer, topic: str) -> None:
    consumer.subscribe([topic])
    while True:
        for record in consumer.poll_batch(max_records=20):
            say(record)
        sys.stdout.flush()
        consumer.commit()


def commit_to_the_database(consumer: Consumer, topic: str, path: str) -> None:
    database = sqlite3.connect(path, timeout=30.0, isolation_level=None)
    database.execute("PRAGMA synchronous = OFF")  # the test kills processes, not the machine

    def find_my_place(partitions: Sequence[TopicPartition]) -> None:
        for place in partitions:
            found = database.execute("SELECT next FROM offsets WHERE partition = ?", (place.partition,)).fetchone()
            consumer.seek(place, found[0] if found else 0)

    consumer.subscribe([topic], on_assigned=find_my_place)
    for record in consumer:
        database.execute("BEGIN IMMEDIATE")
        row = database.execute("SELECT next FROM offsets WHERE partition = ?", (record.partition,)).fetchone()
        # Somebody else may have been given the partition while this process slept.
        if (row[0] if row else 0) == record.offset:
            database.execute("INSERT INTO results VALUES (?)", (text(record),))
            database.execute("REPLACE INTO offsets VALUES (?, ?)", (record.partition, record.offset + 1))
        database.execute("COMMIT")
        say(record)
        sys.stdout.flush()


def main() -> None:
    address, group, topic, database = sys.argv[1:]
    options = {"session_timeout_ms": SESSION_TIMEOUT_MS, "rebalance_timeout_ms": SESSION_TIMEOUT_MS}
    with Consumer(address, group=group, auto_commit=False, **options) as consumer:  # type: ignore[arg-type]  # integers
        if database == "-":
            commit_to_the_group(consumer, topic)
        else:
            commit_to_the_database(consumer, topic, database)


if __name__ == "__main__":
    main()
