"""Verifying a sealed segment from its first byte to its last, slowly, beside everything else."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from typing import Final

from cursus_broker.errors import PartitionDamaged
from cursus_broker.log.api import Pause
from cursus_broker.log.entry import CONTROL_BYTES, BadEntry, stored_bytes
from cursus_broker.log.files import Files
from cursus_broker.log.segment import Segment, read_control, walk
from cursus_broker.log.settings import KIB

_STEP_BYTES: Final = 64 * KIB
"""Verified without a pause. Of the smallest entries these are some hundred, which a thread that holds the interpreter
walks in a millisecond or two."""

_NICE: Final = 10


def verify(files: Files, segment: Segment, pause: Pause) -> bool:
    """Walk a segment that does not grow, both checksums of every entry. False if `pause` said to stop. Blocks, long.

    It has a descriptor of its own: those of the pool are for readers and writers. Raises PartitionDamaged, OSError.
    """
    descriptor = files.open(segment.path, writable=False)
    try:
        files.advise_once(descriptor)
        size_bytes = files.size(segment.path)
        if size_bytes < segment.size_bytes:
            raise BadEntry(size_bytes, f"the file ends here, and had {segment.size_bytes} bytes")
        read_control(files, descriptor)
        paused_at = 0
        for position, header, _ in walk(
            files, descriptor, segment.base_offset, CONTROL_BYTES, segment.size_bytes, payloads=True
        ):
            end = position + stored_bytes(header)
            if end - paused_at >= _STEP_BYTES:
                if not pause(end - paused_at):
                    return False
                paused_at = end
        return pause(segment.size_bytes - paused_at)
    except BadEntry as bad:
        raise PartitionDamaged(segment.path, bad.position, bad.cause) from bad
    finally:
        files.close(descriptor)


def lower_priority() -> None:
    """Let the thread that calls wait for others that want the processor. Where threads have no priority of their own,
    the pauses have to do."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
