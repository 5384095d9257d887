"""What every assignment strategy promises, for any members, subscriptions and history."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.groups.assignors import ASSIGNORS, Owners, Strategy, in_one_go, sticky
from cursus_broker.metadata.model import TopicPartition

TOPICS = ("t", "u", "v")
MEMBERS = ("a", "b", "c", "d", "e")

subscriptions = st.dictionaries(st.sampled_from(MEMBERS), st.frozensets(st.sampled_from(TOPICS)), min_size=1)
counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))
histories = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from((*TOPICS, "gone")), st.integers(0, 10)),
    st.sampled_from((*MEMBERS, "dead")),
)


@given(st.sampled_from(Strategy), subscriptions, counts, histories)
def test_each_wanted_partition_goes_to_one_subscriber(
    strategy: Strategy, members: dict[str, frozenset[str]], partitions: dict[str, int], current: Owners
) -> None:
    owners = in_one_go(ASSIGNORS[strategy](members, partitions, current))
    wanted = frozenset[str]().union(*members.values()) & partitions.keys()
    assert owners.keys() == {TopicPartition(topic, number) for topic in wanted for number in range(partitions[topic])}
    assert all(partition.topic in members[owner] for partition, owner in owners.items())


@given(st.frozensets(st.sampled_from(MEMBERS), min_size=1), counts, histories)
def test_sticky_is_even_and_moves_no_more_than_needed(
    members: frozenset[str], partitions: dict[str, int], current: Owners
) -> None:
    """With equal subscriptions the fewest moves are known: everybody keeps up to an even share, and the shares that are
    one larger go to those who have most.
    """
    owners = in_one_go(sticky(dict.fromkeys(members, TOPICS), partitions, current))
    loads = Counter(dict.fromkeys(members, 0))
    loads.update(owners.values())
    assert max(loads.values()) - min(loads.values()) <= 1

    had = Counter(member for partition, member in current.items() if member in members and partition in owners)
    share, extra = divmod(len(owners), len(members))
    quotas = [share + 1] * extra + [share] * (len(members) - extra)
    most_first = sorted((had[member] for member in members), reverse=True)
    may_stay = sum(min(count, quota) for count, quota in zip(most_first, quotas, strict=True))
    assert sum(current.get(partition) == owner for partition, owner in owners.items()) == may_stay


@given(subscriptions, counts, histories)
def test_sticky_leaves_its_own_answer_alone(
    members: dict[str, frozenset[str]], partitions: dict[str, int], current: Owners
) -> None:
    settled = in_one_go(sticky(members, partitions, current))
    assert in_one_go(sticky(members, partitions, settled)) == settled
