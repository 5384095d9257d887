"""The blocking faces. They hold no logic of their own: a call runs on one event loop in one background thread, which
all of them share. Only what has to be fast, taking a record and handing one out, happens on the caller's thread."""

from cursus_grpc.sync.admin import Admin
from cursus_grpc.sync.consumer import Consumer
from cursus_grpc.sync.producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]
