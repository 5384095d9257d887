from __future__ import annotations

from cursus_gateway.peers import FORGET_AFTER_S, Peers
from cursus_gateway.settings import ReplyProfile

AUTO = ReplyProfile.AUTO
PLACE = ("10.0.0.1", "g", "orders", 0)


def test_the_form_of_the_published_clients_comes_first() -> None:
    assert not Peers().answers_bare(AUTO, *PLACE, now=0.0)


def test_a_peer_that_asks_again_at_once_gets_the_other_form_and_keeps_it() -> None:
    peers = Peers()
    peers.answers_bare(AUTO, *PLACE, now=0.0)
    assert peers.answers_bare(AUTO, *PLACE, now=0.1)
    assert peers.answers_bare(AUTO, "10.0.0.1", "g", "orders", 1, now=0.2)
    assert not peers.answers_bare(AUTO, "10.0.0.2", "g", "orders", 1, now=0.2)


def test_a_peer_that_used_the_answer_understood_it() -> None:
    peers = Peers()
    peers.answers_bare(AUTO, *PLACE, now=0.0)
    peers.moved_on(*PLACE)
    assert not peers.answers_bare(AUTO, *PLACE, now=1.0)


def test_a_member_that_joins_anew_asks_anew() -> None:
    """A rebalance makes members ask again before they have read anything; a bare number kills the published client."""
    peers = Peers()
    peers.answers_bare(AUTO, *PLACE, now=1.0)
    peers.joined("10.0.0.1", "g", now=1.5)
    assert not peers.answers_bare(AUTO, *PLACE, now=2.0)


def test_what_was_learned_is_forgotten() -> None:
    peers = Peers()
    peers.answers_bare(AUTO, *PLACE, now=0.0)
    peers.answers_bare(AUTO, *PLACE, now=0.1)
    assert not peers.answers_bare(AUTO, *PLACE, now=0.1 + FORGET_AFTER_S)


def test_a_profile_decides_alone() -> None:
    peers = Peers()
    for now in (0.0, 0.1, 0.2):
        assert peers.answers_bare(ReplyProfile.BARE, *PLACE, now=now)
        assert not peers.answers_bare(ReplyProfile.OK, *PLACE, now=now)
