"""Our errors survive a pool of worker processes unchanged."""

from __future__ import annotations

import pickle

import pytest

from keyturn.gateway import errors
from keyturn.gateway.errors import (
    BadJson,
    CorruptRecord,
    ForgedRecord,
    KeyturnError,
    LeaseLost,
    NotConfirmed,
    ThreadUnknown,
    Unanswered,
)

MADE: list[KeyturnError] = [
    KeyturnError("Nothing."),
    BadJson("a duplicate key", "/a"),
    CorruptRecord("ap_7"),
    ForgedRecord("ap_7", "its seal", is_replayed=True),
    LeaseLost(),
    NotConfirmed(),
    ThreadUnknown("shop", "t1"),
    Unanswered("timeout", "ask again."),
]


def sent(error: KeyturnError) -> KeyturnError:
    """Return an error as another process of the same program gets it."""
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 - its own
    assert isinstance(found, KeyturnError)
    return found


@pytest.mark.parametrize("error", MADE, ids=lambda one: type(one).__name__)
def test_an_error_has_the_same_text_and_facts_in_another_process(
    error: KeyturnError,
) -> None:
    found = sent(error)

    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_every_error_of_ours_can_be_sent() -> None:
    kinds = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, KeyturnError)
    ]

    for kind in kinds:
        found = sent(kind.__new__(kind, "words"))
        assert type(found) is kind
        assert str(found) == "words"
