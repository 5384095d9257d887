"""Every refusal has a reason of its own and one status."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from google.rpc.error_details_pb2 import ErrorInfo

from cursus_broker import errors
from cursus_broker.errors import CursusError, InvalidRequest, PartitionDamaged, refusal_in
from cursus_broker.rpc.status import CODES, DOMAIN, internal_status, to_status


def subclasses(kind: type[CursusError]) -> Iterator[type[CursusError]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def test_every_error_with_a_reason_has_a_status() -> None:
    with_reason = {one for one in subclasses(CursusError) if one.reason}
    assert with_reason == CODES.keys()
    assert {one.__module__ for one in with_reason} == {errors.__name__}, "one tree in one module"


def test_a_class_without_a_reason_only_groups_others() -> None:
    for one in subclasses(CursusError):
        assert one.reason or one.__subclasses__(), f"{one.__name__} can be raised, but has no reason"


def test_reasons_are_unique_and_spelt_like_constants() -> None:
    reasons = [one.__dict__.get("reason", "") for one in CODES]
    assert all(reasons), "each class has its own, not its parent's"
    assert len(set(reasons)) == len(reasons)
    assert all(reason.isupper() and reason.replace("_", "").isalnum() for reason in reasons)


def test_no_refusal_is_called_a_success_or_a_bug() -> None:
    assert not {grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL} & set(CODES.values())


def test_a_status_carries_reason_domain_and_metadata() -> None:
    status = to_status(PartitionDamaged("segment.log", 17, "the checksum differs"))
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (status.code, info.reason, info.domain) == (15, "DATA_LOSS", DOMAIN)
    assert dict(info.metadata) == {"file": "segment.log", "position": "17", "cause": "the checksum differs"}
    assert "segment.log" in status.message


def test_a_bug_tells_a_client_nothing_but_that_it_is_one() -> None:
    status = internal_status()
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (status.code, info.reason) == (13, "INTERNAL")


def test_a_refusal_is_found_in_the_groups_that_wrap_it() -> None:
    refused = InvalidRequest("no")
    assert refusal_in(refused) is refused
    assert refusal_in(ExceptionGroup("a", [ExceptionGroup("b", [refused])])) is refused


def test_a_bug_beside_a_refusal_is_a_bug() -> None:
    assert refusal_in(ExceptionGroup("a", [InvalidRequest("no"), KeyError("bug")])) is None
    assert refusal_in(KeyError("bug")) is None
