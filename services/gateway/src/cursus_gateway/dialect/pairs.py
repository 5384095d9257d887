"""The `partition:offset` list of BATCH_COMMIT, the same in both dialects: `P0:5,P1:7` or `0:5,1:7`."""

from __future__ import annotations

import re
from typing import Final

from cursus_gateway.dialect import replies
from cursus_gateway.dialect.commands import Malformed

_PAIR: Final = re.compile(r"[Pp]?(\d{1,9}):(\d{1,19})", re.ASCII)


def read_pairs(text: str) -> dict[int, int]:
    """Partition → offset. Raises Malformed; a partition that is there twice is refused, since only one can be meant."""
    pairs: dict[int, int] = {}
    for entry in text.split(","):
        match = _PAIR.fullmatch(entry)
        if match is None:
            raise Malformed(replies.error("invalid_batch_commit_entry", entry=entry))
        partition = int(match[1])
        if partition in pairs:
            raise Malformed(replies.error("duplicate_partition", partition=partition))
        pairs[partition] = int(match[2])
    return pairs
