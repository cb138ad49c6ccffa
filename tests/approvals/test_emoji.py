"""An emoji hides nothing, and nothing hides behind one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot.text import excerpt, fit, pieces, reveal
from keyturn.gateway.approvals.invisible_characters import has_hidden

EMOJI = (
    "👩‍💻",  # joined by U+200D
    "👩🏽‍🚒",  # with a skin tone
    "👨‍👩‍👧‍👦",
    "🧑🏿‍🤝‍🧑🏻",
    "👩‍❤️‍💋‍👨",
    "🕵️‍♂️",
    "🏃🏾‍♀️‍➡️",
    "🏳️‍🌈",
    "🏴‍☠️",
    "😶‍🌫️",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",  # Scotland
    "🇩🇪",
    "👍🏼",
    "1️⃣",
    "#️⃣",
    "❤️",
    "☑️",
    "⚡️",
    "©️",
)
HIDING = {
    "a joiner between letters": "pay\u200dpal",
    "a joiner behind an emoji": "👩\u200d",
    "two joiners": "👩\u200d\u200d💻",
    "emoji that nobody joins": "👩\u200d🍕",
    "a selector behind a letter": "pay\ufe0f",
    "a selector behind a digit that is no keycap": "1\ufe0f",
    "two selectors": "❤\ufe0f\ufe0f",
    "a selector of the plain form": "❤\ufe0e",
    "a supplementary selector": "❤\U000e0101",
    "tags without a flag": "\U000e0067\U000e0062\U000e007f",
    "tags behind a flag that spell something else": (
        "🏴\U000e0070\U000e0061\U000e0079\U000e007f"
    ),
    "tags behind any emoji": "😀\U000e0067\U000e0062\U000e0065\U000e006e\U000e007f",
    "a tone that is joined to nothing": "🏽\u200d♂️",
}


@pytest.mark.parametrize("emoji", EMOJI)
def test_an_emoji_is_shown_as_it_is_and_raises_no_alarm(emoji: str) -> None:
    text = f"Thanks {emoji}{emoji}, see you!"

    assert not has_hidden(text)
    assert reveal(text) == text
    assert [p.shown for p in pieces(emoji)] == [emoji]


@pytest.mark.parametrize("emoji", EMOJI)
@pytest.mark.parametrize(
    "hidden", ["\u202e", "\u200b", "\u200d", "\ufe0f", "\U000e0041"]
)
def test_what_hides_beside_an_emoji_is_shown(emoji: str, hidden: str) -> None:
    mark = f"⟦U+{ord(hidden):04X}⟧"

    for text in (f"a{hidden}{emoji}", f"{emoji}{hidden} a", f"{emoji}{hidden}{hidden}"):
        assert has_hidden(text)
        assert mark in reveal(text)


@pytest.mark.parametrize("text", HIDING.values(), ids=HIDING.keys())
def test_no_other_use_of_such_a_character_passes(text: str) -> None:
    assert has_hidden(text)
    assert "⟦U+" in reveal(text)


@given(st.lists(st.sampled_from([*EMOJI, *HIDING.values(), "a", "\u200d", "\ufe0f"])))
def test_what_an_emoji_hides_is_shown_in_any_company(parts: list[str]) -> None:
    text = "".join(parts)

    assert has_hidden(text) is ("⟦U+" in reveal(text))
    assert reveal(reveal(text)) == reveal(text)


def test_a_cut_keeps_an_emoji_whole_and_counts_code_points() -> None:
    text = "👨‍👩‍👧‍👦" * 60

    cut = excerpt(text, 120)

    assert not has_hidden(cut)
    missing = f"\n⟦{len(text) - 7 * cut.count(text[:7])} characters not shown here⟧\n"
    assert cut.replace(text[:7], "") == missing
    assert fit(text, 20) == "👨‍👩‍👧‍👦" * 2 + "…"


def test_a_megabyte_of_joiners_is_cut_at_once() -> None:
    for text in ("\u200d" * 1_000_000, "👩\u200d" * 300_000, "👩‍💻" * 300_000):
        assert len(excerpt(text, 200)) <= 200
