"""An error of ours comes out of a pool of worker processes as it went in."""

from __future__ import annotations

import pickle

import pytest

from twokey.agent import outages
from twokey.gateway import errors
from twokey.gateway.errors import (
    BadJson,
    CorruptRecord,
    ForgedRecord,
    LeaseLost,
    NotConfirmed,
    ThreadUnavailable,
    ThreadUnknown,
    TwokeyError,
    Unanswered,
)

MADE: list[TwokeyError] = [
    TwokeyError("Nothing."),
    BadJson("a duplicate key", "/a"),
    CorruptRecord("ap_7"),
    ForgedRecord("ap_7", "its seal", is_replayed=True),
    LeaseLost(),
    NotConfirmed(),
    ThreadUnknown("shop", "t1"),
    Unanswered("timeout", "ask again."),
]


def sent(error: TwokeyError) -> TwokeyError:
    """Return an error as another process of the same program gets it."""
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
    assert isinstance(found, TwokeyError)
    return found


@pytest.mark.parametrize("error", MADE, ids=lambda one: type(one).__name__)
def test_an_error_has_the_same_text_and_facts_in_another_process(
    error: TwokeyError,
) -> None:
    found = sent(error)

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_every_error_of_ours_can_be_sent() -> None:
    kinds = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, TwokeyError)
    ]

    for kind in kinds:
        found = sent(kind.__new__(kind, "words"))
        assert type(found) is kind
        assert str(found) == "words"


def test_an_outage_that_passed_by_other_middlewares_can_be_sent() -> None:
    with pytest.raises(ThreadUnavailable) as raised, outages.passing():
        raise ThreadUnavailable("Later.")

    assert type(raised.value) is not ThreadUnavailable
    assert type(sent(raised.value)) is ThreadUnavailable
