from __future__ import annotations

from collections.abc import Iterator

from cursus_broker.errors import CursusError
from cursus_gateway.dialect.replies import RESERVED
from cursus_gateway.refusals import SPELLINGS, Refused, spell


def reasons(cls: type[CursusError] = CursusError) -> Iterator[str]:
    for child in cls.__subclasses__():
        if child.reason:
            yield child.reason
        yield from reasons(child)


def test_every_reason_of_the_broker_has_a_spelling() -> None:
    assert set(reasons()) <= set(SPELLINGS)


def test_only_answers_that_mean_it_hold_the_words_clients_react_to() -> None:
    meant = {"GENERATION_MISMATCH", "NOT_OWNER", "GROUP_NOT_FOUND", "MEMBER_NOT_FOUND", "PRODUCER_FENCED"}
    for reason in SPELLINGS.keys() - meant:
        spelt = spell(Refused(reason, f"because of {reason}"))
        assert not [word for word in RESERVED if word in spelt], spelt


def test_the_class_stands_right_behind_the_code() -> None:
    refused = Refused("TOPIC_NOT_FOUND", "no", {"topic": "orders"})
    assert spell(refused) == "ERROR: topic_not_found topic=orders"
    assert spell(refused, classified=True) == "ERROR: topic_not_found class=validation retryable=false topic=orders"
    away = Refused("BROKER_UNAVAILABLE", "nobody is there")
    assert (
        spell(away, classified=True)
        == 'ERROR: broker_unavailable class=availability retryable=true reason="nobody is there"'
    )


def test_an_unknown_reason_is_an_internal_error() -> None:
    assert spell(Refused("SOMETHING_NEW", "x")) == "ERROR: broker_error reason=x"
