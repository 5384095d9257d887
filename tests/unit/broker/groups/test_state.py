from __future__ import annotations

from dataclasses import replace

import pytest

from cursus_broker.errors import (
    GenerationMismatch,
    InconsistentGroup,
    InvalidRequest,
    MemberFenced,
    MemberNotFound,
    NotOwner,
    ResourceLimit,
)
from cursus_broker.groups.assignors import Strategy
from cursus_broker.groups.members import JoinRequest
from cursus_broker.groups.state import Fencing, Group, GroupState
from cursus_broker.metadata.model import TopicPartition
from tests.unit.broker.groups.doubles import partitions, request

TOPICS = {"t": 4}
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def group_of(*member_ids: str, at_once: bool = False) -> Group:
    """Members joined at time 0 in this order, and everybody has acknowledged."""
    group = Group("readers")
    for member_id in member_ids:
        group.join(replace(request("t", member_id=member_id), at_once=at_once), "", TOPICS, 0)
        for known in group.members:
            group.acknowledge(known, group.generation, 0)
    return group


def test_a_lone_member_gets_everything_at_once() -> None:
    group = group_of("a")
    assert group.assignment("a").granted == partitions("t", 0, 1, 2, 3)
    assert group.assignment("a").complete
    assert (group.generation, group.state) == (1, GroupState.STABLE)


def test_a_partition_stays_with_its_holder_until_that_acknowledges() -> None:
    group = group_of("a")
    group.join(request("t", member_id="b"), "", TOPICS, 0)
    assert group.assignment("b").awaited == partitions("t", 1, 3)
    assert group.assignment("a").revoked == partitions("t", 1, 3)
    assert group.state is GroupState.REBALANCING

    effects = group.acknowledge("a", 2, 0)

    assert group.assignment("b").granted == partitions("t", 1, 3)
    assert "b" in effects.woken
    assert not effects.generation_raised


def test_a_member_that_does_not_let_go_loses_the_partition_after_its_rebalance_timeout() -> None:
    group = group_of("a")
    group.join(request("t", member_id="b"), "", TOPICS, 5)
    assert group.next_deadline_ms() == 10_005
    group.refresh("a", 10_000)
    group.refresh("b", 10_000)

    assert group.expire(TOPICS, 10_004).seized == ()
    effects = group.expire(TOPICS, 10_005)

    assert {partition for partition, _ in effects.seized} == partitions("t", 1, 3)
    assert group.assignment("b").granted == partitions("t", 1, 3)
    assert isinstance(group.refusal("a", 1, P1, Fencing.GENERATION), GenerationMismatch)
    assert group.generation == 2


def test_churn_does_not_prolong_a_handover() -> None:
    group = group_of("a")
    group.join(request("t", member_id="b"), "", TOPICS, 0)
    group.join(request("t", member_id="c"), "", TOPICS, 9_000)
    group.expire(TOPICS, 10_000)
    assert P1 in group.assignment("b").granted


def test_members_that_cannot_acknowledge_get_and_lose_partitions_immediately() -> None:
    group = Group("readers", strategy=Strategy.MODULO)
    group.join(request("t", member_id="a"), "", TOPICS, 0)
    group.join(replace(request("t", member_id="b"), at_once=True), "", TOPICS, 0)
    assert group.assignment("b").granted == partitions("t", 1, 3)
    assert not group.must_sync("b", 2)
    group.join(request("t", member_id="c"), "", TOPICS, 0)
    assert group.assignment("c").granted >= partitions("t", 2) - group.assignment("a").revoked
    assert not group.assignment("b").revoked
    assert group.must_sync("b", 2)


def test_joining_again_unchanged_changes_nothing() -> None:
    group = group_of("a", "b")
    _, effects = group.join(request("t", member_id="a"), "", TOPICS, 0)
    assert group.generation == 2
    assert not effects.generation_raised
    assert not effects.woken


def test_a_returning_instance_keeps_its_partitions_and_fences_its_predecessor() -> None:
    group = Group("readers")
    group.join(request("t", member_id="m", instance_id="i"), "", TOPICS, 0)
    group.join(request("t", member_id="zz", instance_id="j"), "", TOPICS, 0)
    group.acknowledge("m", 2, 0)

    # The new id sorts behind the other member's; the instance does not, so nothing moves.
    member, effects = group.join(request("t", instance_id="i"), "zzz", TOPICS, 0)

    assert member.id == "zzz"
    assert group.assignment("zzz").granted == partitions("t", 0, 2)
    assert group.generation == 2
    assert effects.woken == {"m", "zzz"}
    assert group.must_sync("zzz", 2)
    with pytest.raises(MemberFenced):
        group.refresh("m", 0)
    with pytest.raises(MemberFenced):
        group.join(request("t", member_id="m", instance_id="i"), "", TOPICS, 0)


def test_an_instance_and_a_member_spelt_alike_are_two() -> None:
    group = Group("readers")
    group.join(request("t", member_id="x"), "", TOPICS, 0)
    group.join(request("t", member_id="y", instance_id="x"), "", TOPICS, 0)
    group.acknowledge("x", 2, 0)
    assert len(group.assignment("x").granted) == len(group.assignment("y").granted) == 2


def test_a_live_member_cannot_become_another_instance() -> None:
    group = Group("readers")
    group.join(request("t", member_id="x", instance_id="i"), "", TOPICS, 0)
    with pytest.raises(InvalidRequest, match="instance"):
        group.join(request("t", member_id="x", instance_id="j"), "", TOPICS, 0)


def test_sessions_that_end_together_cost_one_generation() -> None:
    group = group_of("a", "b", "c")
    group.refresh("c", 20_000)
    effects = group.expire(TOPICS, 30_000)
    assert sorted(effects.expired) == ["a", "b"]
    assert effects.woken == {"a", "b", "c"}
    assert group.generation == 4
    assert group.assignment("c").granted == partitions("t", 0, 1, 2, 3)


def test_an_open_stream_keeps_a_silent_member_alive_and_its_end_starts_the_session() -> None:
    group = group_of("a")
    stream = group.attach("a", 0)
    assert group.expire(TOPICS, 10**9).expired == ()
    assert group.next_deadline_ms() is None
    group.detach("a", stream, 10**9)
    assert group.next_deadline_ms() == 10**9 + 30_000


def test_a_stream_of_an_earlier_life_does_not_end_the_present_one() -> None:
    group = group_of("a")
    earlier = group.attach("a", 0)
    group.leave("a", TOPICS, 0)
    group.join(request("t", member_id="a"), "", TOPICS, 0)
    group.attach("a", 0)
    group.detach("a", earlier, 0)
    assert group.expire(TOPICS, 10**9).expired == ()


def test_the_first_member_decides_the_strategy_and_an_empty_group_forgets_nothing_but_that() -> None:
    group = Group("readers")
    ranged = replace(request("t", member_id="a"), strategy=Strategy.RANGE)
    group.join(ranged, "", TOPICS, 0)
    group.join(request("t", member_id="b"), "", TOPICS, 0)
    with pytest.raises(InconsistentGroup, match="range"):
        group.join(replace(request("t", member_id="c"), strategy=Strategy.STICKY), "", TOPICS, 0)
    group.leave("a", TOPICS, 0)
    group.leave("b", TOPICS, 0)
    group.join(replace(request("t", member_id="c"), strategy=Strategy.STICKY), "", TOPICS, 0)
    assert group.strategy is Strategy.STICKY


@pytest.mark.parametrize(("legacy_first", "expected"), [(False, Strategy.STICKY), (True, Strategy.MODULO)])
def test_a_new_group_is_sticky_unless_a_legacy_member_is_its_first(legacy_first: bool, expected: Strategy) -> None:
    group = Group("readers")
    group.join(replace(request("t", member_id="a"), at_once=legacy_first), "", TOPICS, 0)
    group.join(replace(request("t", member_id="b"), at_once=not legacy_first), "", TOPICS, 0)
    assert group.strategy is expected
    group.leave("a", TOPICS, 0)
    group.leave("b", TOPICS, 0)
    group.join(replace(request("t", member_id="c"), at_once=not legacy_first), "", TOPICS, 0)
    assert group.strategy is expected, "it is no new group any more"


def test_a_full_group_refuses_newcomers_but_not_its_members() -> None:
    group = Group("readers", max_members=1)
    group.join(request("t", member_id="a", instance_id="i"), "", TOPICS, 0)
    with pytest.raises(ResourceLimit):
        group.join(request("t", member_id="b"), "", TOPICS, 0)
    group.join(request("t", instance_id="i"), "c", TOPICS, 0)
    assert list(group.members) == ["c"]


@pytest.mark.parametrize("generation", [1, 3])
def test_only_the_current_generation_can_be_acknowledged(generation: int) -> None:
    group = group_of("a", "b")
    with pytest.raises(GenerationMismatch, match="generation 2"):
        group.acknowledge("a", generation, 0)


def test_topics_matter_to_a_group_only_if_a_member_wants_them() -> None:
    group = group_of("a")
    assert not group.topics_changed({"t": 4, "other": 9}, 0).generation_raised
    assert group.topics_changed({"t": 6, "other": 9}, 0).generation_raised
    assert group.assignment("a").granted == partitions("t", *range(6))
    assert group.topics_changed({"other": 9}, 0).generation_raised
    assert group.assignment("a").granted == frozenset()


def test_a_deleted_topic_is_let_go_of_by_a_member_that_was_still_to_hand_it_over() -> None:
    """Found by the churn test: the partition had no target any more, so no rebalance looked at it, and a new topic of
    the same name would have begun with a holder that never asked for it.
    """
    group = Group("readers")
    topics = {"t": 1, "u": 1}
    group.join(request("t", "u", member_id="a"), "", topics, 0)
    group.join(request("t", member_id="a"), "", topics, 0)
    assert group.assignment("a").revoked == partitions("u", 0)
    effects = group.topics_changed({"t": 1}, 0)
    assert group.assignment("a").revoked == frozenset()
    assert not effects.generation_raised


class TestCommitting:
    def test_a_holder_may_commit_in_an_old_generation_until_it_lets_go(self) -> None:
        group = group_of("a")
        group.join(request("t", member_id="b"), "", TOPICS, 0)
        assert group.refusal("a", 1, P1, Fencing.GENERATION) is None
        group.acknowledge("a", 2, 0)
        assert isinstance(group.refusal("a", 1, P1, Fencing.GENERATION), GenerationMismatch)
        assert isinstance(group.refusal("a", 2, P1, Fencing.GENERATION), NotOwner)
        assert group.refusal("b", 2, P1, Fencing.GENERATION) is None

    def test_by_ownership_the_target_may_commit_before_it_holds(self) -> None:
        group = group_of("a")
        group.join(request("t", member_id="b"), "", TOPICS, 0)
        assert group.refusal("b", 0, P1, Fencing.OWNERSHIP) is None
        assert isinstance(group.refusal("b", 0, P0, Fencing.OWNERSHIP), NotOwner)
        assert isinstance(group.refusal("b", 2, P1, Fencing.GENERATION), NotOwner)

    def test_an_outsider_may_commit_only_where_nobody_reads(self) -> None:
        group = group_of("a")
        assert isinstance(group.refusal("", 0, P0, Fencing.GENERATION), NotOwner)
        group.leave("a", TOPICS, 0)
        assert group.refusal("", 0, P0, Fencing.GENERATION) is None


def test_leaving_frees_partitions_and_whoever_left_is_not_known() -> None:
    group = group_of("a", "b")
    group.leave("a", TOPICS, 0)
    assert group.assignment("b").granted == partitions("t", 0, 1, 2, 3)
    with pytest.raises(MemberNotFound):
        group.leave("a", TOPICS, 0)
    with pytest.raises(MemberNotFound):
        group.member_of_instance("nobody")


def test_a_member_must_sync_when_it_was_granted_more_in_the_same_generation() -> None:
    group = group_of("a")
    group.join(request("t", member_id="b"), "", TOPICS, 0)
    group.acknowledge("b", 2, 0)
    group.note_told("b")
    assert not group.must_sync("b", 2)
    group.acknowledge("a", 2, 0)
    assert group.must_sync("b", 2)


def test_a_member_told_of_its_instance_keeps_it_when_it_joins_without() -> None:
    group = Group("readers")
    group.join(request("t", member_id="a", instance_id="i"), "", TOPICS, 0)
    again: JoinRequest = request("t", member_id="a")
    group.join(again, "", TOPICS, 0)
    assert group.member_of_instance("i") == "a"
    assert group.generation == 1
