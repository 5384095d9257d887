"""The Cursus client for Python: producer, consumer and admin, each blocking and for asyncio.

Blocking names are bare (`Producer`), their asyncio twins have the prefix `Async`. Exceptions are in `errors`, plain
values in `types`, the testing kit in `testing`.

A name is imported when it is first used: whoever needs a `TopicPartition` does not pay for gRPC. Type checkers see all
of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cursus_grpc import errors as errors
    from cursus_grpc import sync as sync
    from cursus_grpc import types as types
    from cursus_grpc._admin import AsyncAdmin
    from cursus_grpc._batch import AsyncDelivery, Delivery
    from cursus_grpc._consumer import AsyncConsumer
    from cursus_grpc._many import AsyncDeliveries, Deliveries
    from cursus_grpc._producer import AsyncProducer
    from cursus_grpc._records import Record, StoredBatch
    from cursus_grpc.errors import CursusError
    from cursus_grpc.sync.admin import Admin
    from cursus_grpc.sync.consumer import Consumer
    from cursus_grpc.sync.producer import Producer
    from cursus_grpc.types import BEGINNING, END, TLS, RecordMetadata, Timestamp, TopicConfig, TopicPartition

__all__ = [
    "BEGINNING",
    "END",
    "TLS",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncDeliveries",
    "AsyncDelivery",
    "AsyncProducer",
    "Consumer",
    "CursusError",
    "Deliveries",
    "Delivery",
    "Producer",
    "Record",
    "RecordMetadata",
    "StoredBatch",
    "Timestamp",
    "TopicConfig",
    "TopicPartition",
]

_HOMES = {
    "_admin": ("AsyncAdmin",),
    "_batch": ("AsyncDelivery", "Delivery"),
    "_consumer": ("AsyncConsumer",),
    "_many": ("AsyncDeliveries", "Deliveries"),
    "_producer": ("AsyncProducer",),
    "_records": ("Record", "StoredBatch"),
    "errors": ("CursusError",),
    "sync.admin": ("Admin",),
    "sync.consumer": ("Consumer",),
    "sync.producer": ("Producer",),
    "types": ("BEGINNING", "END", "TLS", "RecordMetadata", "Timestamp", "TopicConfig", "TopicPartition"),
}
"""Where each name is defined. A test compares it with what type checkers are told above."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("errors", "sync", "types")
"""Modules that are there without being imported by name."""


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"cursus_grpc.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'cursus_grpc' has no attribute {name!r}")
    value: object = getattr(import_module(f"cursus_grpc.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
