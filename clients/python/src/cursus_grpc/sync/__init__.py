"""The blocking faces. They hold no logic of their own: a call runs on one event loop in one background thread, which
all of them share. Only what has to be fast, taking a record and handing one out, happens on the caller's thread.

Imported when first used, as in the package above.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cursus_grpc.sync.admin import Admin
    from cursus_grpc.sync.consumer import Consumer
    from cursus_grpc.sync.producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'cursus_grpc.sync' has no attribute {name!r}")
    value: object = getattr(import_module(f"cursus_grpc.sync.{name.lower()}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
