"""Runs in the environment of the legacy Python SDK, as a program of one of its users. Talks JSON lines on stdout.

Only the SDK's public names are used. `consume` ends when its stdin does.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
from typing import Any

# By name: the checkout has a directory proto/cursus, which type checkers take for this package.
cursus: Any = importlib.import_module("cursus")


def say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def producer_config(address: str, options: dict[str, Any]) -> Any:
    return cursus.ProducerConfig(
        topic=options["topic"],
        brokers=[address],
        partitions=4,
        linger_ms=10,
        acks=cursus.Acks(options.get("acks", "1")),
        idempotent=options.get("idempotent", False),
        compression_type=options.get("compression", "none"),
    )


def consumer_config(address: str, options: dict[str, Any]) -> Any:
    return cursus.ConsumerConfig(
        topic=options["topic"],
        brokers=[address],
        group_id=options["group"],
        mode=cursus.ConsumerMode(options["mode"]),
        heartbeat_interval_ms=200,
        # In the background: with immediate_commit the SDK raises out of start() when a rebalance took the partition
        # away, and the program ends.
        auto_commit_interval_s=0.1,
        commit_batch_size=1_000_000,
    )


def produce(address: str, options: dict[str, Any]) -> None:
    producer = cursus.Producer(producer_config(address, options))
    for number in range(options["first"], options["first"] + options["count"]):
        producer.send(f"m{number}", key=f"k{number % 17}")
    producer.flush()
    say(acknowledged=producer.unique_ack_count)
    producer.close()


async def produce_async(address: str, options: dict[str, Any]) -> None:
    async with cursus.AsyncProducer(producer_config(address, options)) as producer:
        for number in range(options["first"], options["first"] + options["count"]):
            await producer.send(f"m{number}", key=f"k{number % 17}")
        await producer.flush()
        say(acknowledged=producer.unique_ack_count)


def tell(message: Any) -> None:
    # The first version does not tell the partition.
    partition = getattr(message, "partition", None)
    say(payload=message.payload, partition=partition, offset=message.offset, key=message.key)


def consume(address: str, options: dict[str, Any]) -> None:
    consumer = cursus.Consumer(consumer_config(address, options))

    def wait_for_the_end() -> None:
        sys.stdin.read()
        consumer.close()

    ending = threading.Thread(target=wait_for_the_end)
    ending.start()
    consumer.start(tell)
    ending.join()  # It still leaves the group.


async def consume_async(address: str, options: dict[str, Any]) -> None:
    async with cursus.AsyncConsumer(consumer_config(address, options)) as consumer:

        async def read() -> None:
            async for message in consumer:
                tell(message)

        reading = asyncio.create_task(read())
        await asyncio.to_thread(sys.stdin.read)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def events(address: str, options: dict[str, Any]) -> None:
    store = cursus.EventStore(address, options["topic"], "p")
    try:
        store.append("key", 1, cursus.Event(type="Created", payload="{}"))
    except Exception as error:
        say(failure=str(error))
    store.close()


def main() -> None:
    what, address, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    try:
        if what in ("produce_async", "consume_async"):
            asyncio.run(globals()[what](address, options))
        else:
            globals()[what](address, options)
    except Exception as error:
        say(failure=f"{type(error).__name__}: {error}")
        os._exit(1)  # At once: a thread may still wait for stdin to end.


if __name__ == "__main__":
    main()
