"""Topic settings, saved offsets and the doctor's judgements, as far as they need no broker."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click
import pytest

from cursus_grpc import BEGINNING, TopicConfig, TopicPartition
from cursus_grpc.cli import answering, doctor, resets
from cursus_grpc.cli.failures import Failed
from cursus_grpc.cli.topic_settings import config_of
from cursus_grpc.types import BrokerInfo

BROKER = BrokerInfo("0.1.0", 0, "c", 0, 1_000, 1, 0, 0, 50, 100, 0)


def test_settings_take_units() -> None:
    said = (
        ("retention_ms", "7d"),
        ("segment_bytes", "64MiB"),
        ("retention_bytes", "-1"),
        ("content_deduplication", "off"),
    )
    assert config_of(said, (("team", "a=b"),)) == TopicConfig(
        retention_ms=604_800_000,
        segment_bytes=64 * 2**20,
        retention_bytes=-1,
        content_deduplication=False,
        labels={"team": "a=b"},
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention_ms", "7y"),
        ("segment_bytes", "7d"),
        ("retention_ms", ""),
        ("nonsense", "1"),
        ("content_deduplication", "2"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(name: str, value: str) -> None:
    with pytest.raises(click.UsageError):
        config_of(((name, value),), ())


def test_saved_offsets_are_read_from_lines_or_json(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_text("# mine\norders 0 12\norders,1,7  # behind\n\n")
    lines = resets.read_saved(path)
    path.write_text(
        '{"partitions": [{"topic": "orders", "partition": 0, "committed_offset": 12},'
        ' {"topic": "orders", "partition": 1, "committed_offset": 7},'
        ' {"topic": "orders", "partition": 2, "committed_offset": null}]}'
    )
    expected = {TopicPartition("orders", 0): 12, TopicPartition("orders", 1): 7}
    assert lines == resets.read_saved(path) == expected


@pytest.mark.parametrize("text", ["orders 0\n", "orders x 1\n", "{", '{"partitions": [{}]}', '{"partitions": 1}'])
def test_a_file_that_holds_something_else_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "saved"
    path.write_text(text)
    with pytest.raises(Failed, match="saved"):
        resets.read_saved(path)


def test_a_reset_has_one_source_and_a_partition_one_topic() -> None:
    with pytest.raises(click.UsageError, match="one of --to"):
        resets.Wanted(None, None, None, (), ())
    with pytest.raises(click.UsageError, match="one of --to"):
        resets.Wanted(BEGINNING, "other", None, (), ())
    with pytest.raises(click.UsageError, match="the one --topic"):
        resets.Wanted(BEGINNING, None, None, (), (0,))


@pytest.mark.parametrize(("free", "state"), [(50, "ok"), (9, "warning"), (1, "failed")])
def test_the_doctor_minds_the_disk(free: int, state: str) -> None:
    assert doctor.disk(replace(BROKER, disk_free_bytes=free)).state == state


def test_the_doctor_minds_clocks_but_not_a_slow_answer() -> None:
    assert doctor.clock(100.0, 99.0, 2.0).state == "ok"
    assert doctor.clock(105.0, 100.0, 0.1).state == "warning"
    assert doctor.clock(105.0, 100.0, 9.0).state == "ok"


@pytest.mark.parametrize(
    ("address", "parts"),
    [("a:1", ("a", 1)), ("a", ("a", 50051)), ("[::1]:7", ("::1", 7)), ("[::1]", ("::1", 50051))],
)
def test_addresses_are_split_as_the_client_does(address: str, parts: tuple[str, int]) -> None:
    assert answering.split_address(address) == parts


def page(status: int, identity: str) -> answering.Page:
    return answering.Page(status, {"cursus-identity": identity} if identity else {}, b"")


INFO = BrokerInfo("0.1.0", 3, "c-1", 1_000, 2_000, 1, 0, 0, 1, 1, 0)


@pytest.mark.parametrize(
    ("found", "named", "state", "detail"),
    [
        (page(200, "broker cluster=c-1 id=3 started=1000"), False, "ok", "URL says OK"),
        (page(503, "broker cluster=c-1 id=3 started=1000"), False, "failed", "URL says OK"),
        (page(200, "broker cluster=c-2 id=3 started=1000"), False, "warning", "another broker (cluster c-2, broker 3)"),
        (page(200, "broker cluster=c-2 id=3 started=1000"), True, "failed", "another broker (cluster c-2, broker 3)"),
        # The same data, but another process: one of the two is a copy, or was restarted.
        (page(200, "broker cluster=c-1 id=3 started=999"), True, "failed", "another broker"),
        (page(503, "broker"), False, "warning", "another broker, not of this broker (cluster c-1, broker 3)"),
        (page(200, "gateway"), False, "warning", "the page of a gateway, not of this broker"),
        (page(200, ""), True, "warning", "and not whose health that is"),
    ],
)
def test_a_health_page_counts_only_if_it_is_this_brokers(
    found: answering.Page, named: bool, state: str, detail: str
) -> None:
    told = doctor.whose(found, "URL", "OK", INFO, named=named)
    assert told.state == state
    assert detail in told.detail
    assert bool(told.advice) == (state != "ok")
