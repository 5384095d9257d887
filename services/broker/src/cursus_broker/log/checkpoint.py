"""The few numbers about a partition that its segments cannot tell: where it begins, and how far it is known synced.

The file is two lines of text: a JSON object and its CRC32C in hexadecimal. It is replaced as a whole (temporary file,
sync, rename, sync of the directory), so power loss leaves the old or the new one; a file that does not check is damage.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Final

from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.entry import crc32c
from cursus_broker.log.files import Files, read_file, replace_file
from cursus_broker.log.names import TEMPORARY_SUFFIX, checkpoint_name

_VERSION: Final = 1
_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    earliest_offset: int = 0  # trim and retention moved the beginning of the log to here
    synced_offset: int = 0  # all below was synced; noted when a segment is sealed and at a clean close

    def pack(self) -> bytes:
        body = json.dumps(
            {"version": _VERSION, "earliest_offset": self.earliest_offset, "synced_offset": self.synced_offset}
        ).encode()
        return b"%s\n%08x\n" % (body, crc32c(body))


def unpack_checkpoint(content: bytes, path: str) -> Checkpoint:
    """Raises PartitionDamaged."""
    body, _, rest = content.partition(b"\n")
    if rest != b"%08x\n" % crc32c(body):
        raise PartitionDamaged(path, 0, "the checksum of the checkpoint differs")
    fields = json.loads(body)
    if fields.get("version") != _VERSION:
        raise PartitionDamaged(path, 0, f"unknown checkpoint version {fields.get('version')}")
    return Checkpoint(fields["earliest_offset"], fields["synced_offset"])


class CheckpointFile:
    """The checkpoint of one partition on disk. Its numbers only grow; safe to use from any thread."""

    def __init__(self, files: Files, directory: str, partition: int) -> None:
        self._files = files
        self._directory = directory
        self.path = f"{directory}/{checkpoint_name(partition)}"
        self._lock = threading.Lock()
        self._stored: Checkpoint | None = None

    def load(self) -> Checkpoint | None:
        """None if there is no such file. Raises PartitionDamaged and OSError."""
        if not self._files.exists(self.path):
            return None
        try:
            content = read_file(self._files, self.path, _MAX_BYTES)
        except FileNotFoundError:
            return None
        self._stored = unpack_checkpoint(content, self.path)
        return self._stored

    def advance(self, *, earliest_offset: int = 0, synced_offset: int = 0) -> None:
        """Store the higher of these and the stored numbers, so that it survives power loss. Blocks. Raises OSError."""
        with self._lock:
            before = self._stored or Checkpoint()
            after = Checkpoint(max(before.earliest_offset, earliest_offset), max(before.synced_offset, synced_offset))
            if after == self._stored:
                return
            replace_file(self._files, self.path, after.pack(), temporary=self.path + TEMPORARY_SUFFIX)
            self._files.sync_directory(self._directory)
            self._stored = after
