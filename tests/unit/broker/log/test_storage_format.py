"""docs/storage-format.md shows bytes. They are written here and compared with the page."""

from __future__ import annotations

from pathlib import Path

from cursus_broker.log.api import Batch
from cursus_broker.log.checkpoint import Checkpoint
from cursus_broker.log.entry import crc32c, pack_control, pack_header

PAGE = Path(__file__).parents[4] / "docs" / "storage-format.md"
CREATED_MS = 1_700_000_000_000


def example_segment() -> bytes:
    payload = b"two records"
    batch = Batch(payload, 2, crc32c(payload), producer_id=b"p1", producer_epoch=3, first_sequence=7)
    return pack_control(40, CREATED_MS, 40) + pack_header(batch, 40, CREATED_MS + 1234, 40) + payload


def hexdump(content: bytes) -> str:
    lines = []
    for at in range(0, len(content), 16):
        row = content[at : at + 16]
        halves = "  ".join(row[half : half + 8].hex(" ") for half in (0, 8) if row[half:])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {halves:<48}  |{text}|")
    return "\n".join(lines)


def test_the_page_shows_the_bytes_of_a_segment() -> None:
    assert f"```hexdump\n{hexdump(example_segment())}\n```" in PAGE.read_text()


def test_the_page_shows_a_checkpoint() -> None:
    assert f"```\n{Checkpoint(40, 42).pack().decode()}```" in PAGE.read_text()
