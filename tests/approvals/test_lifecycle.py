"""One table defines the allowed transitions."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from keyturn.gateway.approvals.lifecycle import (
    FINAL,
    TRANSITIONS,
    Transition,
    advance,
)
from keyturn.gateway.errors import IllegalTransition
from keyturn.gateway.protocol.records import ItemState

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize(
    ("state", "transition"), list(itertools.product(ItemState, Transition)), ids=str
)
def test_only_rows_of_the_table_can_happen(
    state: ItemState, transition: Transition
) -> None:
    if (state, transition) in TRANSITIONS:
        assert advance(state, transition) is TRANSITIONS[state, transition]
    else:
        with pytest.raises(IllegalTransition):
            advance(state, transition)


def test_nothing_executes_that_was_not_authorized() -> None:
    before_executing = {
        before for (before, _), after in TRANSITIONS.items() if after == "executing"
    }

    # What executes was authorized; another attempt may take over from a dead one.
    assert before_executing == {ItemState.AUTHORIZED, ItemState.EXECUTING}


def test_authorization_comes_from_a_decision_or_from_giving_a_claim_back() -> None:
    into = {
        (before, transition) for (before, transition), after in TRANSITIONS.items()
        if after is ItemState.AUTHORIZED
    }  # fmt: skip

    assert into == {
        (ItemState.PENDING, Transition.AUTHORIZE),
        (ItemState.PENDING, Transition.CLEAR),
        (ItemState.EXECUTING, Transition.RELEASE),
        (ItemState.IN_DOUBT, Transition.RETRY),
    }


def test_every_state_reaches_an_end() -> None:
    for start in ItemState:
        reached = {start}
        for _ in ItemState:
            reached |= {after for (b, _), after in TRANSITIONS.items() if b in reached}
        assert reached & FINAL


def test_the_diagram_in_the_readme_is_printed_from_the_table() -> None:
    rows = ["stateDiagram-v2", "    [*] --> pending"]
    rows += [
        f"    {before} --> {after}: {transition}"
        for (before, transition), after in TRANSITIONS.items()
    ]
    ends = FINAL | {ItemState.FAILED}
    rows += [f"    {state} --> [*]" for state in ItemState if state in ends]

    assert "\n".join(rows) in README.read_text(encoding="utf-8")
