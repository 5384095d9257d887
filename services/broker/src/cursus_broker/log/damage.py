"""What readers and the scrubber have met of damage within one log that is served.

Damage that stops a log from being opened is another matter: then there is no log. Here one bad place costs those who
read it, and the operator is to hear of it before the next one does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Literal

from cursus_broker.errors import PartitionDamaged

Finder = Literal["reader", "scrub"]

ObserveDamage = Callable[[str, int, PartitionDamaged, Finder], None]
"""Told on the event loop, once for every place: directory, partition, damage, and who met it."""


def unseen(_directory: str, _partition: int, _damage: PartitionDamaged, _finder: Finder) -> None:
    """For logs whose damage nobody asks for."""


class Damages:
    """The last place met in each file that is retained. Lives on the event loop."""

    def __init__(self, directory: str, partition: int, observe: ObserveDamage) -> None:
        self._directory = os.path.basename(directory)
        self._partition = partition
        self._observe = observe
        self._by_path: dict[str, PartitionDamaged] = {}
        self._closed = False

    @property
    def last(self) -> PartitionDamaged | None:
        return next(reversed(self._by_path.values()), None)

    @property
    def paths(self) -> list[str]:
        return list(self._by_path)

    def note(self, damage: PartitionDamaged, finder: Finder) -> None:
        if self._closed:
            return  # its files may be gone with their topic
        known = self._by_path.get(damage.path)
        self._by_path[damage.path] = damage
        if known is None or known.position != damage.position:
            self._observe(self._directory, self._partition, damage, finder)

    def close(self) -> None:
        """The log lets go of its files: what becomes of them is no concern of it any more."""
        self._closed = True

    def found_sound(self, path: str) -> None:
        """All of the file was verified."""
        self._by_path.pop(path, None)

    def keep_only(self, paths: Collection[str]) -> None:
        """Forget the files that are no part of the log any more."""
        for path in [path for path in self._by_path if path not in paths]:
            del self._by_path[path]
