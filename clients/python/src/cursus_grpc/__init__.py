"""The Cursus client for Python: producer, consumer and admin, each blocking and for asyncio.

Blocking names are bare (`Producer`), their asyncio twins have the prefix `Async`. Exceptions are in `errors`, plain
values in `types`, the testing kit in `testing`.
"""

from cursus_grpc._admin import AsyncAdmin
from cursus_grpc._batch import AsyncDelivery, Delivery
from cursus_grpc._consumer import AsyncConsumer
from cursus_grpc._producer import AsyncProducer
from cursus_grpc._records import Record, StoredBatch
from cursus_grpc.errors import CursusError
from cursus_grpc.sync import Admin, Consumer, Producer
from cursus_grpc.types import BEGINNING, END, TLS, RecordMetadata, Timestamp, TopicConfig, TopicPartition

__all__ = [
    "BEGINNING",
    "END",
    "TLS",
    "Admin",
    "AsyncAdmin",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncProducer",
    "Consumer",
    "CursusError",
    "Delivery",
    "Producer",
    "Record",
    "RecordMetadata",
    "StoredBatch",
    "Timestamp",
    "TopicConfig",
    "TopicPartition",
]
