"""Writes the test vectors of key routing, which the clients of every language check themselves against.

The keys are the ones that implementations get wrong: none at all, bytes above 127 (sign extension), zero bytes, hashes
above 2**63 (a signed remainder), text beyond ASCII, long keys. With --check nothing is written; the exit status tells
whether the file is what would be written.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cursus_proto.partitioner import key_hash, partition_for_key

KEYS = (
    b"",
    b"a",
    b"b",
    b"foobar",
    b"user-123",
    b"user-456",
    b"order-1",
    b"\x00",
    b"\x00\x00",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xfe\xfd\xfc",
    "Grüße".encode(),
    "顧客-7".encode(),
    bytes(range(256)),
    b"k" * 100,
)
PARTITION_COUNTS = (1, 2, 3, 4, 12, 255, 1000, 10_000)
DESCRIPTION = (
    "Key routing: partition = FNV-1a 64 of the key, as an unsigned number, modulo the partition count. Keys and hashes"
    " are hexadecimal; a hash is too large for a JSON number."
)


def vectors() -> str:
    """Text of the file: a vector a line, so that a change shows as what it is."""
    lines = [
        json.dumps(
            {
                "key": key.hex(),
                "hash": f"{key_hash(key):016x}",
                "partition_count": count,
                "partition": partition_for_key(key, count),
            }
        )
        for key in KEYS
        for count in PARTITION_COUNTS
    ]
    body = ",\n".join(f"    {line}" for line in lines)
    return f'{{\n  "description": {json.dumps(DESCRIPTION)},\n  "vectors": [\n{body}\n  ]\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the test vectors of key routing.")
    parser.add_argument("file", type=Path, help="where they are kept: proto/testdata/routing.json")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not up to date")
    options = parser.parse_args()
    if not options.check:
        options.file.write_text(vectors(), encoding="utf-8", newline="\n")
    elif not options.file.exists() or options.file.read_text(encoding="utf-8") != vectors():
        print(f"{options.file} is not what `make proto` generates", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
