"""What the acknowledgement of a batch says of its place."""

from __future__ import annotations

import pytest

from cursus_gateway.publishing import last_offset
from cursus_proto.v1.publish_service_pb2 import AppendedBatch

FRESH = AppendedBatch(base_offset=10, record_count=3, fresh_record_count=3)
PARTLY = AppendedBatch(base_offset=13, record_count=3, fresh_record_count=1)
REPEATED = AppendedBatch(base_offset=4, record_count=3, duplicate=True)
FORGOTTEN = AppendedBatch(base_offset=-1, record_count=3, duplicate=True)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([FRESH], 12),
        ([PARTLY], 13),
        ([REPEATED], 6),
        ([FORGOTTEN], 0),
        ([FRESH, REPEATED], 12),
        ([FRESH, FORGOTTEN], 12),
        ([REPEATED, PARTLY], 13),
        ([FORGOTTEN, REPEATED], 6),
    ],
)
def test_rule_29_the_last_offset_is_the_highest_assigned_now_or_else_the_original(
    parts: list[AppendedBatch], expected: int
) -> None:
    assert last_offset(parts) == expected
