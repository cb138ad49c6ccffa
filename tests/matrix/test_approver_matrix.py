"""Who may decide what is exactly what the policy says, through real signed clicks."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from gateway.approvals.record import Verb
from tests.matrix.model import CELLS, Cell, Demand, Word, expected, sentence
from tests.matrix.people import Kind
from tests.matrix.playing import Played, Results, play

_VOTERS = (Kind.BY_ID, Kind.BY_GROUP, Kind.SENIOR, Kind.NO_GROUPS_BY_ID)
_LEFT = (Demand.AFTER_DEACTIVATED, Demand.AFTER_REVOKED)
_JUNIORS = (Kind.BY_ID, Kind.BY_GROUP, Kind.NO_GROUPS_BY_ID)
KNOWN_GAPS = frozenset(
    Cell(kind, demand, Verb.APPROVE)
    for kind, demand in (
        *itertools.product(_VOTERS, _LEFT),
        *itertools.product(_JUNIORS, (Demand.AFTER_DEMOTED,)),
        (Kind.NO_GROUPS_BY_ID, Demand.AFTER_SENIOR),
    )
)
"""Cells in which votes count at the last vote whose people may not vote any more.

Whoever closes one of these gaps takes it out of the table, or the test fails.
"""

_ALARMS = ("Traceback", "Error", "Exception", "500", "went wrong", "took too long")


pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def results() -> Results:
    return asyncio.run(play(CELLS))


def test_the_matrix_is_as_large_as_promised() -> None:
    assert len(set(CELLS)) == len(CELLS) >= 240
    words = Counter(expected(cell).word for cell in CELLS)
    assert min(words[word] for word in Word) >= 20, words


def test_every_cell_ends_as_the_policy_says(results: Results) -> None:
    other = {
        cell: (played.end, expected(cell))
        for cell, played in results.cells.items()
        if played.end != expected(cell)
    }

    told = "\n".join(f"{cell}: {ends}" for cell, ends in other.items())
    assert set(other) == KNOWN_GAPS, told
    assert set(results.cells) == set(CELLS)


def test_slack_is_answered_in_time_and_without_an_error(results: Results) -> None:
    troubled = {
        str(cell): played.trouble
        for cell, played in results.cells.items()
        if played.trouble
    }

    assert not troubled
    assert results.problems == ()


def test_the_person_reads_one_calm_sentence_or_none_and_nobody_else_does(
    results: Results,
) -> None:
    other = {
        str(cell): (played.told, played.leaked, sentence(cell))
        for cell, played in results.cells.items()
        if cell not in KNOWN_GAPS and not _is_as_it_should(played, sentence(cell))
    }

    assert not other, other


def _is_as_it_should(played: Played, words: str) -> bool:
    if played.leaked or len(played.told) != bool(words):
        return False
    return all(
        words in text and text.endswith(".") and not any(a in text for a in _ALARMS)
        for text in played.told
    )
