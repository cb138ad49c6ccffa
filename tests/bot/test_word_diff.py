"""A difference of two texts loses nothing, marks what changed, and imitates no mark."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot.cards.listing import (
    MAX_WORDS,
    changes_of,
    shown_lines,
    word_diff,
)
from keyturn.bot.text import reveal
from tests.bot.samples import an_item
from tests.bot.strategies import hostile

SAME, REMOVED, ADDED = "", "-", "+"
_words = st.lists(st.sampled_from(["a", "b", " ", "\n", "⟦+x⟧", "\u202e"])).map("".join)
_texts = st.one_of(hostile, _words)


def told(before: str, after: str) -> str:
    return "\n".join(line for _, line in shown_lines(word_diff(before, after)))


@given(_texts, _texts)
def test_the_parts_give_both_texts_back(before: str, after: str) -> None:
    parts = word_diff(before, after)

    assert "".join(part.text for part in parts if part.sign != ADDED) == before
    assert "".join(part.text for part in parts if part.sign != REMOVED) == after
    assert all(part.text for part in parts)


@given(_texts, _texts)
def test_only_changes_are_marked_and_nothing_hidden(before: str, after: str) -> None:
    text = told(before, after)

    assert reveal(text) == text
    assert (before == after) == (not re.search(r"⟦[-+]", text))


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (
            "Dear Ana,\nwe refund 20.00 euros for your order.",
            "Dear Ana,\nwe send back 20.00 euros for the order.",
            "Dear Ana,\nwe ⟦-refund⟧⟦+send back⟧ 20.00 euros for ⟦-your⟧⟦+the⟧ order.",
        ),
        ("the red fox", "the tall dog", "the ⟦-red fox⟧⟦+tall dog⟧"),
        # A text cannot imitate a change.
        ("a b", "a ⟦+c⟧", "a ⟦-b⟧⟦+⟦U+27E6⟧+c⟧⟧"),
    ],
)
def test_changed_words_are_marked_in_place(before: str, after: str, shown: str) -> None:
    assert told(before, after) == shown


def test_unchanged_words_far_from_a_change_are_counted() -> None:
    middle = "word " * 100
    text = told(f"1 {middle}end", f"2 {middle}fin")

    assert "characters unchanged⟧" in text
    assert text.startswith("⟦-1⟧⟦+2⟧ word word")
    assert text.endswith("word ⟦-end⟧⟦+fin⟧")
    assert len(text) < 200


def test_two_long_texts_are_one_change_and_take_no_time() -> None:
    before, after = ("a b " * MAX_WORDS, "b a " * MAX_WORDS)

    kinds = [part.sign for part in word_diff(f"x {before}", f"y {after}")]

    assert kinds == [REMOVED, ADDED, SAME]


def test_a_small_edit_of_a_long_text_shows_the_words_that_changed() -> None:
    letter = "Dear customer, " + "thank you for waiting. " * 100
    before, after = f"{letter}We refund 20 euros.", f"{letter}We refund 30 euros."

    rows = changes_of(an_item({}), {"body": before}, {"body": after}, budget=300)

    assert "refund ⟦-20⟧⟦+30⟧ euros." in rows
    assert rows.startswith("body\n~ ⟦")


def test_only_the_lines_with_changed_words_are_marked_as_changed() -> None:
    before = "Hello Sam,\n\nwe have taken care of it.\n\namount  1 → 2 ⟧\nThe shop"
    after = before.replace("taken care of it", "sent\nyour refund")

    rows = changes_of(an_item({}), {"body": before}, {"body": after}, budget=500)

    assert rows.splitlines() == [
        "body",
        "| Hello Sam,",
        "| ",
        "~ we have ⟦-taken care of it.⟧⟦+sent",
        "~ your refund.⟧",
        "| ",
        "| amount  1 → 2 ⟧",
        "| The shop",
    ]
