"""The people who may decide are exactly those of the policy, with real signed clicks.

The short form plays every person with every requirement, and every end that a button
can have. In a deep run each person clicks each button.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest

from tests.levels import is_deep
from tests.matrix.model import (
    CELLS,
    KNOWN,
    Cell,
    Word,
    ending,
    expected,
    few,
    sentence,
)
from tests.matrix.people import Kind
from tests.matrix.playing import Played, Results, play

_ALARMS = ("Traceback", "Error", "Exception", "500", "went wrong", "took too long")


PLAYED = CELLS if is_deep() else few()

# One process plays the matrix for all of them.
pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("matrix")]


@pytest.fixture(scope="session")
def results() -> Results:
    return asyncio.run(play(PLAYED))


def test_the_matrix_is_as_large_as_promised() -> None:
    assert len(set(CELLS)) == len(CELLS) >= 240
    words = Counter(expected(cell).word for cell in CELLS)
    assert min(words[word] for word in Word) >= 20, words


def test_no_person_requirement_or_end_is_left_out_of_what_is_played() -> None:
    played = set(few())

    assert len(played) >= 240
    assert played >= KNOWN
    assert set(map(ending, played)) == set(map(ending, CELLS))
    for name, other in itertools.combinations(("kind", "requirement", "verb"), 2):
        pairs = {(getattr(cell, name), getattr(cell, other)) for cell in CELLS}
        assert {(getattr(c, name), getattr(c, other)) for c in played} == pairs


def test_every_cell_ends_as_the_policy_says(results: Results) -> None:
    other = {
        cell: (played.end, expected(cell))
        for cell, played in results.cells.items()
        if played.end != expected(cell) and not _is_known_already(cell, played)
    }

    told = "\n".join(f"{cell}: {ends}" for cell, ends in other.items())
    assert not other, told
    assert set(results.cells) == set(PLAYED)


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
        if not _is_as_it_should(played, sentence(cell))
        and not _is_known_already(cell, played)
    }

    assert not other, other


def _is_known_already(cell: Cell, played: Played) -> bool:
    """Return True if the bot refused a person who has just left.

    The decision of one person may use an answer of Slack that is a minute old, but
    other clicks of the same moment ask Slack again.
    """
    is_gone = cell.kind in {Kind.DEACTIVATED_NOW, Kind.REVOKED_NOW}
    end = played.end
    is_refused = end is not None and end.word is Word.REFUSED and not end.voters
    says_so = len(played.told) == 1 and not played.leaked
    return is_gone and not cell.requirement.is_escalated and is_refused and says_so


def _is_as_it_should(played: Played, words: str) -> bool:
    if played.leaked or len(played.told) != bool(words):
        return False
    return all(
        words in text and text.endswith(".") and not any(a in text for a in _ALARMS)
        for text in played.told
    )
