"""Every approval of a run is accounted for; a loss has no explanation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.linearizability.history import Operation, read_history, write_history
from tests.linearizability.reconciliation import (
    Fate,
    reconciled,
    report,
    unexplained,
)

ANA = "U0ANA"


def click(approval: str, said: str | None = "decided") -> Operation:
    return Operation(approval, "click", (ANA,), 1, 2, said)


def read(approval: str, state: str, by: str = ANA, at: int = 9) -> Operation:
    return Operation(approval, "read", (), at, at, (state, by))


def effect(approval: str) -> Operation:
    return Operation(approval, "effect", ("t",), 5, 5)


@pytest.mark.parametrize(
    ("history", "fate"),
    [
        ([click("a"), effect("a"), read("a", "executed")], Fate.RAN),
        ([click("a"), effect("a"), read("a", "in_doubt")], Fate.RAN_IN_DOUBT),
        ([click("a"), read("a", "in_doubt")], Fate.ENDED_IN_DOUBT),
        ([read("a", "superseded", "")], Fate.SUPERSEDED),
        ([click("a"), read("a", "lapsed")], Fate.LAPSED),
        ([read("a", "pending", "")], Fate.UNDECIDED),
        ([click("a"), read("a", "authorized")], Fate.NOT_OVER),
        ([click("a"), read("a", "executing")], Fate.NOT_OVER),
        ([click("a"), read("a", "pending", "")], Fate.LOST),
        ([click("a"), read("a", "superseded")], Fate.LOST),
        ([click("a"), read("a", "executed")], Fate.LOST),
        ([click("a"), effect("a"), read("a", "lapsed")], Fate.LOST),
        ([click("a")], Fate.LOST),
        ([click("a"), effect("a"), effect("a"), read("a", "executed")], Fate.TWICE),
        ([effect("a"), read("a", "executed", "")], Fate.UNDECIDED_RAN),
    ],
)
def test_an_approval_is_put_under_what_its_call_came_to(
    history: list[Operation], fate: Fate
) -> None:
    [account] = reconciled(history, {"a": "t"})

    assert account.fate is fate


def test_the_last_reading_counts_whatever_its_place() -> None:
    history = [read("a", "executed"), effect("a"), read("a", "authorized", at=3)]

    [account] = reconciled(history, {"a": "t"})

    assert (account.state, account.fate) == ("executed", Fate.RAN)


def test_what_lapsed_is_explained_by_what_was_asked_after_it() -> None:
    first, then = (
        [click("a"), read("a", "lapsed")],
        [effect("b"), read("b", "executed")],
    )

    alone = reconciled(first, {"a": "t"})
    both = reconciled([*first, *then], {"a": "t", "b": "t"})
    other = reconciled([*first, *then], {"a": "t", "b": "u"})

    assert [one.fate for one in both] == [Fate.LAPSED_ASKED_ANEW, Fate.RAN]
    assert not unexplained(both)
    assert [one.approval for one in unexplained(alone)] == ["a"]
    assert [one.approval for one in unexplained(other)] == ["a"]


def test_what_ran_without_an_approval_that_was_seen_is_wrong() -> None:
    [account] = reconciled([effect("call-1")], {})

    assert account.fate is Fate.UNDECIDED_RAN
    assert unexplained([account]) == [account]


def test_each_call_without_an_effect_is_named() -> None:
    history = [effect("a"), read("a", "executed"), click("b"), read("b", "lapsed")]

    told = "\n".join(report(reconciled(history, {"a": "t", "b": "u"})))

    assert f"b of u: lapsed, by {ANA}, confirmed, 0 effects: {Fate.LAPSED}" in told
    assert "a of t" not in told
    assert "1 confirmed to a person; without an explanation: 1" in told
    assert "effects per thread: {0: 1, 1: 1}" in told


def test_a_history_that_was_kept_is_the_same_when_it_is_read(tmp_path: Path) -> None:
    history = [click("a"), Operation("a", "click", (ANA,), 3), read("a", "lapsed")]

    write_history(tmp_path / "history.jsonl", history)

    assert read_history(tmp_path / "history.jsonl") == history
