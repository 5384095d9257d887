from __future__ import annotations

from cursus_broker.log import names


def test_a_name_is_parsed_as_it_was_spelled() -> None:
    assert names.parse_segment_file(names.segment_name(3, 12)) == (3, 12, "log")
    assert names.parse_segment_file(names.index_name(3, 12)) == (3, 12, "index")
    assert names.parse_segment_file(names.cut_name(3, 12, 1)) == (3, 12, "cut-1")


def test_other_names_are_left_alone() -> None:
    for name in (names.checkpoint_name(3), names.prepared_name(3), "partition_3_segment_12.log.bak", "notes.txt"):
        assert names.parse_segment_file(name) is None


def test_unfinished_files_belong_to_one_partition() -> None:
    assert names.is_temporary(names.prepared_name(3), 3)
    assert names.is_temporary(names.index_name(3, 1) + ".tmp", 3)
    assert not names.is_temporary(names.prepared_name(33), 3)
    assert not names.is_temporary(names.segment_name(3, 1), 3)


def test_a_file_is_told_from_those_of_other_partitions_by_how_it_begins() -> None:
    ours = [names.segment_name(3, 1), names.index_name(3, 1), names.cut_name(3, 1, 0), names.checkpoint_name(3)]
    assert all(name.startswith(names.file_prefixes(3)) for name in [*ours, names.prepared_name(3)])
    assert not any(name.startswith(names.file_prefixes(33)) for name in ours)
    assert not names.checkpoint_name(33).startswith(names.file_prefixes(3))
