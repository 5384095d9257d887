"""What is left behind by a sync that the operating system refused: a mark, for whoever opens the log next.

After a failed sync the kernel takes the pages for clean, whether the disk has them or not. A later sync succeeds and
proves nothing, and so does reading the bytes, which come from memory. They have to be written anew, into another file,
and synced there. The mark is needed exactly as long as the page cache is believed: it survives the death of the process
because it is a name in the same file system, and power loss, which may take it, takes the doubtful pages too. So it is
not synced.
"""

from __future__ import annotations

from contextlib import suppress

from cursus_broker.log.files import Files
from cursus_broker.log.names import refused_sync_name


class RefusedSync:
    """The mark of one partition."""

    def __init__(self, files: Files, directory: str, partition: int) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{refused_sync_name(partition)}"

    def leave(self) -> None:
        """Never raises: a file system that takes no names either has to be mounted anew, which empties its cache."""
        with suppress(OSError):
            self._files.close(self._files.open(self._path, writable=True, create=True))

    def is_there(self) -> bool:
        return self._files.exists(self._path)

    def remove(self) -> None:
        """To be called when everything was written anew, and synced. Raises OSError."""
        self._files.unlink(self._path)
        self._files.sync_directory(self._directory)
