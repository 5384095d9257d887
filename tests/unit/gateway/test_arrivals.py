"""Large frames that arrive: what is here counts, what is announced does not, and somebody always goes on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cursus_gateway.arrivals import Arrivals


class Peer:
    """A connection in the middle of a large frame."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.reads = True

    def go_on(self) -> None:
        self.reads = True

    def __repr__(self) -> str:
        return self.name


def test_a_frame_is_counted_by_what_is_here_of_it() -> None:
    arrivals, one = Arrivals(100), Peer()
    assert arrivals.arrived(one, 10)
    assert arrivals.arrived(one, 40)
    assert arrivals.used == 40
    arrivals.forget(one)
    assert arrivals.used == 0
    arrivals.forget(one)
    assert arrivals.used == 0


def test_whoever_finds_no_room_waits_and_goes_on_in_order() -> None:
    arrivals, first, second, third = Arrivals(100), Peer("1"), Peer("2"), Peer("3")
    arrivals.arrived(first, 10)
    for one in (second, third):
        one.reads = arrivals.arrived(one, 90)
    assert not second.reads or not third.reads
    second.reads = arrivals.arrived(second, 95)
    assert (second.reads, third.reads) == (False, False)
    arrivals.forget(first)
    arrivals.forget(third)
    assert second.reads


def test_with_everybody_in_the_middle_the_first_goes_on_beyond_the_bound() -> None:
    arrivals, first, second = Arrivals(100), Peer("1"), Peer("2")
    assert arrivals.arrived(first, 60)
    second.reads = arrivals.arrived(second, 60)
    assert not second.reads
    assert arrivals.arrived(first, 90)
    arrivals.forget(first)
    arrivals.keep(100)
    assert second.reads, "there was room for a moment"
    second.reads = arrivals.arrived(second, 70)
    assert not second.reads, "complete frames make room by themselves"
    arrivals.let_go(100)
    assert second.reads


@given(st.lists(st.integers(1, 64), min_size=1, max_size=12), st.data())
def test_every_frame_arrives_and_never_more_than_one_beyond_the_bound(sizes: list[int], data: st.DataObject) -> None:
    arrivals = Arrivals(100)
    peers = {Peer(str(number)): size for number, size in enumerate(sizes)}
    here = dict.fromkeys(peers, 0)
    kept: list[int] = []
    while here:
        reading = [peer for peer in here if peer.reads]
        if kept and (not reading or data.draw(st.booleans())):
            arrivals.let_go(kept.pop())
            continue
        assert reading, "nobody goes on"
        peer = data.draw(st.sampled_from(reading))
        here[peer] += min(data.draw(st.integers(1, 32)), peers[peer] - here[peer])
        if here[peer] == peers[peer]:
            arrivals.forget(peer)
            arrivals.keep(here.pop(peer))
            kept.append(peers[peer])
        else:
            peer.reads = arrivals.arrived(peer, here[peer])
        assert arrivals.used == sum(here.values()) + sum(kept)
        # Each of those that read together may find out only by its next bytes that there is no room; one may finish.
        assert arrivals.used < 100 + 64 + 32 * len(sizes)
