"""What all logs of one engine share: files, descriptors, index cache, a read buffer and the fault hook."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cursus_broker.log.damage import ObserveDamage, unseen
from cursus_broker.log.descriptors import DescriptorPool
from cursus_broker.log.files import Files, ReadBuffers
from cursus_broker.log.index import IndexCache
from cursus_broker.log.settings import KIB, MIB, LogSettings

Fault = Callable[[str], None]
"""Called at named points of writing, syncing and deleting. Only crash tests set it, and raise from it."""

# The usual request asks for a mebibyte; a search from an index item may begin up to an interval before it.
READ_BUFFER_BYTES: Final = MIB + 256 * KIB


def no_fault(_point: str) -> None:
    """The fault hook of a broker that is not under test."""


ObserveSync = Callable[[float], None]
"""Told after every sync how many seconds it took. Called in threads."""


def unobserved(_seconds: float) -> None:
    """For logs whose syncs nobody measures."""


@dataclass(frozen=True, slots=True)
class Resources:
    files: Files
    pool: DescriptorPool
    indexes: IndexCache
    settings: LogSettings
    fault: Fault = no_fault
    observe_sync: ObserveSync = unobserved
    observe_damage: ObserveDamage = unseen
    buffers: ReadBuffers = field(default_factory=lambda: ReadBuffers(READ_BUFFER_BYTES))

    @classmethod
    def of(
        cls,
        files: Files,
        settings: LogSettings,
        fault: Fault = no_fault,
        observe_sync: ObserveSync = unobserved,
        observe_damage: ObserveDamage = unseen,
    ) -> Resources:
        pool = DescriptorPool(files, settings.open_files)
        return cls(files, pool, IndexCache(), settings, fault, observe_sync, observe_damage)
