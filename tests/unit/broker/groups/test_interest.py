"""Which groups a topic concerns, against walking all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cursus_broker.groups.interest import Interest
from cursus_broker.groups.members import JoinRequest, Subscription
from cursus_broker.groups.state import Group

TOPICS = ("orders", "refunds", "order-lines")
PATTERNS = ("", "order.*", "refunds", "none-.*")
GROUPS = ("a", "b", "c")


def test_of_thousands_of_groups_only_those_that_read_a_topic_are_named() -> None:
    interest = Interest()
    for number in range(5_000):
        group = Group(f"group-{number}")
        group.join(JoinRequest(group.name, Subscription(frozenset({f"topic-{number}"}))), "m", {}, 0)
        interest.update(group)
    assert interest.in_topic("topic-17") == {"group-17"}
    assert interest.in_topic("new") == set()


@given(
    st.lists(
        st.tuples(
            st.sampled_from(GROUPS),
            st.sampled_from(("m1", "m2")),
            st.one_of(
                st.none(),
                st.builds(Subscription, st.frozensets(st.sampled_from(TOPICS)), st.sampled_from(PATTERNS)),
            ),
        ),
        max_size=30,
    )
)
def test_those_named_are_those_that_a_walk_over_all_groups_finds(
    steps: list[tuple[str, str, Subscription | None]],
) -> None:
    """None lets the member leave, a subscription joins it, or changes what it reads."""
    groups, interest = {name: Group(name) for name in GROUPS}, Interest()
    for name, member, subscription in steps:
        group = groups[name]
        if subscription is not None:
            group.join(
                JoinRequest(name, subscription, member_id=member if member in group.members else ""), member, {}, 0
            )
        elif member in group.members:
            group.leave(member, {}, 0)
        interest.update(group)
    for topic in TOPICS:
        walked = {
            group.name
            for group in groups.values()
            if any(one.request.subscription.resolve([topic]) for one in group.members.values())
        }
        assert interest.in_topic(topic) == walked
