"""Options that only a broker can prove: what they do beyond being understood, which tests/unit/spark has."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cursus_grpc import TLS, Admin, Producer
from cursus_grpc.testing import Broker
from tests.harness.certificates import Authority
from tests.harness.waiting import eventually
from tests.spark.conftest import MakeTopic, Read


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[Broker]:
    """A broker that wants a certificate, under another name than the one it is reached by."""
    server = authority.server("broker.internal")
    flags = ["--tls-cert", str(server.certificate), "--tls-key", str(server.key)]
    with Broker(*flags, "--tls-client-ca", str(authority.certificate)) as broker:
        yield broker


@pytest.fixture(scope="module")
def good(authority: Authority, secure: Broker) -> dict[str, str]:
    client = authority.client()
    return {
        "bootstrap.servers": secure.address,
        "tls.ca": str(authority.certificate),
        "tls.cert": client.certificate.read_text(),
        "tls.key": client.key.read_text(),
        "tls.serverName": "broker.internal",
    }


def test_rows_are_written_and_read_over_mutual_tls(
    spark: SparkSession, authority: Authority, secure: Broker, good: Mapping[str, str]
) -> None:
    tls = TLS(
        ca=str(authority.certificate),
        cert=good["tls.cert"].encode(),
        key=good["tls.key"].encode(),
        server_name="broker.internal",
    )
    with Admin(secure.address, tls=tls) as admin:
        admin.create_topic("orders", 2)
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("cursus").mode("append").options(**good).option("topic", "orders").save()
    found = spark.read.format("cursus").options(**good).option("subscribe", "orders").load()
    assert sorted(int(row["value"]) for row in found.collect()) == list(range(100))


@pytest.mark.parametrize("wrong", ["ca", "no certificate", "name", "plain"])
def test_tls_that_does_not_fit_is_an_error_that_names_the_broker(
    spark: SparkSession, tmp_path: Path, secure: Broker, good: Mapping[str, str], wrong: str
) -> None:
    given = dict(good)
    match wrong:
        case "ca":
            given["tls.ca"] = str(Authority(tmp_path, "another").certificate)
        case "no certificate":
            del given["tls.cert"], given["tls.key"]
        case "name":
            given["tls.serverName"] = "somebody.else"
        case _:
            given = {"bootstrap.servers": secure.address}
    reader = spark.read.format("cursus").options(**given).option("subscribe", "orders")
    with pytest.raises(PySparkException, match=secure.address):
        reader.load().count()


def test_times_of_every_partition_bound_a_read(broker: Broker, admin: Admin, make_topic: MakeTopic, read: Read) -> None:
    topic = make_topic(2)
    for _ in range(2):
        with Producer(broker.address, acks="all") as producer:
            for number in range(10):
                producer.send(topic, b"%d" % number, partition=number % 2)
    times = {partition: admin.list_offsets(topic, 5, [partition])[partition].append_time_ms for partition in (0, 1)}
    given = json.dumps({topic: {str(partition): ms for partition, ms in times.items()}})
    everything = read(topic, extraColumns="append_time").selectExpr("partition", "unix_millis(append_time) AS ms")
    late = [row for row in everything.collect() if row["ms"] >= (times[row["partition"]] or 0)]
    assert late
    assert read(topic, startingOffsetsByTimestamp=given).count() == len(late)
    assert read(topic, endingOffsetsByTimestamp=given).count() == 20 - len(late)


def test_what_is_only_written_is_read_if_asked_for(broker: Broker, make_topic: MakeTopic, read: Read) -> None:
    """With acks 1 a record is there for `readUpTo` = written as soon as it is acknowledged."""
    topic = make_topic(1)
    with Producer(broker.address, acks=1) as producer:
        for number in range(50):
            producer.send(topic, b"%d" % number).result()
        assert read(topic, readUpTo="written").count() == 50


def test_tasks_wait_for_their_broker_no_longer_than_they_are_told(spark: SparkSession, tmp_path: Path) -> None:
    """The broker dies between planning and writing: the rows are the first to know."""
    with Broker() as broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", 1)
        planned, gone = tmp_path / "planned", tmp_path / "gone"

        def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            planned.touch()
            asyncio.run(eventually(gone.exists, 240.0))
            yield from batches

        def kill_when_planned() -> None:
            asyncio.run(eventually(planned.exists, 240.0))
            broker.kill()
            gone.touch()

        held = spark.range(0, 10, 1, 1).selectExpr("CAST(id AS STRING) AS value").mapInArrow(rows, "value string")
        writer = held.write.format("cursus").mode("append").option("bootstrap.servers", broker.address)
        killer = threading.Thread(target=kill_when_planned)
        killer.start()
        try:
            with pytest.raises(PySparkException, match=broker.address):
                writer.option("topic", "orders").option("retryTimeout", "1s").save()
        finally:
            killer.join()
