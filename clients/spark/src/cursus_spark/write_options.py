"""What a write is asked for: where to, under which identity, and what an answer has to promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cursus_spark.options import ENDPOINT_OPTIONS, Endpoint, OptionRefused, Options

_TRANSACTION: Final = ("txnAppId", "txnVersion")

WRITE_OPTIONS: Final = (*ENDPOINT_OPTIONS, "topic", "acks", "delivery", "retryTimeout", *_TRANSACTION)

_ASYNCHRONOUS: Final = "asyncprogresstracking"
"""How Spark's options for asynchronous progress begin."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A batch write that may be repeated whole: the versions of an application rise."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Every option of a write, checked. `docs/spark.md` explains them to users."""

    endpoint: Endpoint
    topic: str | None
    acks: Literal[1, "all"]
    at_least_once: bool
    retry_timeout_s: float
    transaction: Transaction | None

    @classmethod
    def parse(cls, given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Raises OptionRefused."""
        for name, value in given.items():
            if name.lower().startswith(_ASYNCHRONOUS) and value.lower() != "false":
                raise OptionRefused(name, "a batch could be repeated after the next one has begun; leave it off")
        options = Options(
            {name: value for name, value in given.items() if not name.lower().startswith(_ASYNCHRONOUS)}, WRITE_OPTIONS
        )
        if streaming:
            options.refuse(_TRANSACTION, "is for batch writes; a stream has its query and batch ids")
        timeout_ms = options.duration_ms("retryTimeout")
        acks: Mapping[str, Literal[1, "all"]] = {"all": "all", "-1": "all", "1": 1}
        return cls(
            endpoint=options.endpoint(),
            topic=options.text("topic"),
            acks=options.choice("acks", acks, "all"),
            at_least_once=options.choice("delivery", {"exactlyOnce": False, "atLeastOnce": True}, False),
            retry_timeout_s=(120_000 if timeout_ms is None else timeout_ms) / 1000,
            transaction=_transaction(options),
        )


def _transaction(options: Options) -> Transaction | None:
    app_id, version = options.text("txnAppId"), options.integer("txnVersion", least=0)
    if app_id is None and version is None:
        return None
    if app_id is None or version is None:
        missing = "txnAppId" if app_id is None else "txnVersion"
        raise OptionRefused(missing, "is missing: a repeatable write needs both `txnAppId` and `txnVersion`")
    if len(app_id) > _LONGEST_APP_ID or not app_id.isprintable() or " " in app_id:
        raise OptionRefused("txnAppId", f"has to be printable, without spaces and at most {_LONGEST_APP_ID} characters")
    return Transaction(app_id, version)


_LONGEST_APP_ID: Final = 100
