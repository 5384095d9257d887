from __future__ import annotations

import pytest

from cursus_broker.groups.assignors import ASSIGNORS, RUN_STEPS, Owners, Strategy, in_one_go, modulo, range_, sticky
from cursus_broker.metadata.model import TopicPartition


def by_member(owners: Owners) -> dict[str, set[tuple[str, int]]]:
    shares: dict[str, set[tuple[str, int]]] = {}
    for partition, member in owners.items():
        shares.setdefault(member, set()).add((partition.topic, partition.partition))
    return shares


def test_modulo_gives_partition_p_to_member_p_modulo_their_number() -> None:
    owners = in_one_go(modulo({"c": ["t"], "a": ["t"], "b": ["t"]}, {"t": 7}, {}))
    assert [owners[TopicPartition("t", number)] for number in range(7)] == ["a", "b", "c", "a", "b", "c", "a"]


def test_modulo_counts_only_the_members_that_subscribe_to_the_topic() -> None:
    owners = in_one_go(modulo({"a": ["t", "u"], "b": ["u"]}, {"t": 2, "u": 2}, {}))
    assert by_member(owners) == {"a": {("t", 0), ("t", 1), ("u", 0)}, "b": {("u", 1)}}


def test_range_gives_neighbours_and_the_first_members_one_more() -> None:
    owners = in_one_go(range_({"a": ["t"], "b": ["t"], "c": ["t"]}, {"t": 7}, {}))
    assert by_member(owners) == {
        "a": {("t", 0), ("t", 1), ("t", 2)},
        "b": {("t", 3), ("t", 4)},
        "c": {("t", 5), ("t", 6)},
    }


def test_sticky_moves_only_what_a_newcomer_is_due() -> None:
    before = in_one_go(sticky({"a": ["t"], "b": ["t"]}, {"t": 6}, {}))
    after = in_one_go(sticky({"a": ["t"], "b": ["t"], "c": ["t"]}, {"t": 6}, before))
    assert sum(before[partition] != after[partition] for partition in before) == 2


def test_sticky_evens_out_over_members_that_only_share_topics_indirectly() -> None:
    """No single move helps: the loads differ by one between neighbours and by two between the ends of the chain."""
    members = {"a": ["t"], "b": ["t", "u"], "c": ["u"]}
    current = {TopicPartition("t", n): "a" for n in range(4)}
    current |= {TopicPartition("u", n): "b" for n in range(3)}
    current |= {TopicPartition("u", n): "c" for n in range(3, 5)}
    owners = in_one_go(sticky(members, {"t": 4, "u": 5}, current))
    loads = {member: len(share) for member, share in by_member(owners).items()}
    assert loads == {"a": 3, "b": 3, "c": 3}


@pytest.mark.parametrize("strategy", Strategy)
def test_nobody_gets_nothing_out_of_nothing(strategy: Strategy) -> None:
    assign = ASSIGNORS[strategy]
    assert in_one_go(assign({}, {"t": 3}, {})) == {}
    assert in_one_go(assign({"a": ["t"]}, {}, {})) == {}
    assert in_one_go(assign({"a": ["gone"]}, {"t": 3}, {TopicPartition("gone", 0): "a"})) == {}


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("alike", [True, False])
def test_no_run_is_long_and_all_of_them_grow_with_the_partitions_only(strategy: Strategy, alike: bool) -> None:
    """Counted in steps, in a group whose members all come anew."""
    members = {f"m{n:03d}": ["t"] if alike or n % 2 else ["t", "u"] for n in range(200)}
    runs = list(ASSIGNORS[strategy](members, {"t": 4_000, "u": 4_000}, {}))
    assert max(runs) <= RUN_STEPS
    assert sum(runs) <= 12 * 8_000
