"""A seal is valid for exactly one purpose and content."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot import ids
from keyturn.bot.ids import (
    Action,
    BadSeal,
    Sealed,
    View,
    name_in,
    seal,
    seal_name,
    unseal,
    verify,
)
from keyturn.gateway.approvals.record import Approval
from tests.bot.samples import KEY, TEAM, a_refund, an_approval, an_item, edited

BATCH = an_approval(a_refund(), an_item({"n": 1}, index=1), an_item({}, index=2))


def _is_good(
    sealed: Sealed,
    approval: Approval = BATCH,
    *,
    key: bytes = KEY,
    team: str = TEAM,
    purpose: str = Action.APPROVE,
) -> bool:
    return verify(sealed, approval, key=key, team=team, purpose=purpose)


def _seal(
    index: int | None = 1, purpose: str = Action.APPROVE, *, page: int = 0
) -> str:
    return seal(BATCH, index, key=KEY, team=TEAM, purpose=purpose, page=page)


def test_a_seal_verifies_against_the_record_it_was_made_of() -> None:
    assert _is_good(unseal(_seal()))
    assert _is_good(unseal(_seal(None)))


@pytest.mark.parametrize("purpose", [*Action, *View, ids.PAGE])
def test_a_seal_is_good_for_one_purpose_only(purpose: str) -> None:
    sealed = unseal(_seal(purpose=purpose))

    others = {*Action, *View, ids.PAGE} - {purpose}

    assert _is_good(sealed, purpose=purpose)
    assert not any(_is_good(sealed, purpose=other) for other in others)


def test_the_seal_of_a_page_says_its_number_and_is_good_for_no_other() -> None:
    sealed = unseal(_seal(0, ids.PAGE, page=3))

    others = [replace(sealed, page=number) for number in (0, 1, 2, 4, 33)]

    assert (sealed.index, sealed.page) == (0, 3)
    assert unseal(_seal(0)).page == 0
    assert _is_good(sealed, purpose=ids.PAGE)
    assert not any(_is_good(other, purpose=ids.PAGE) for other in others)
    assert not _is_good(replace(unseal(_seal(0)), page=3))


def test_a_seal_of_another_key_team_approval_version_or_item_is_refused() -> None:
    sealed = unseal(_seal())
    other = BATCH.with_(id="ap_other")

    assert not _is_good(sealed, key=b"x" * 32)
    assert not _is_good(sealed, team="T0OTHER")
    assert not _is_good(sealed, other)
    assert not _is_good(replace(sealed, approval="ap_other"), other)
    assert not _is_good(sealed, BATCH.with_(version=2))
    assert not _is_good(replace(sealed, version=2), BATCH.with_(version=2))
    assert not _is_good(replace(sealed, index=0))
    assert not _is_good(replace(sealed, index=None))
    assert not _is_good(replace(sealed, index=99))


def test_a_seal_does_not_survive_other_arguments_in_the_record() -> None:
    changed = BATCH.replacing(edited(BATCH.items[1], {"n": 2}))

    assert not _is_good(unseal(_seal(1)), changed)
    assert not _is_good(unseal(_seal(None)), changed)
    assert _is_good(unseal(_seal(0)), changed)


def test_the_seal_of_a_batch_breaks_when_a_call_is_dropped_or_moved() -> None:
    sealed = unseal(_seal(None))
    dropped = BATCH.with_(items=BATCH.items[:2])
    moved = BATCH.with_(items=BATCH.items[::-1])

    assert not _is_good(sealed, dropped)
    assert not _is_good(sealed, moved)


@given(st.integers(0, 200), st.characters(codec="ascii"))
def test_every_altered_character_is_noticed(place: int, character: str) -> None:
    text = _seal(page=2)
    place %= len(text)
    altered = text[:place] + character + text[place + 1 :]

    try:
        is_good = _is_good(unseal(altered))
    except BadSeal:
        is_good = False

    assert is_good == (altered == text)


@given(st.text(max_size=300))
def test_any_text_is_a_seal_or_a_bad_seal(text: str) -> None:
    try:
        sealed = unseal(text)
    except BadSeal:
        return

    assert not _is_good(sealed)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ap_7f3k",
        ":1:0:" + "A" * 22,
        "ap:-1:0:" + "A" * 22,
        "ap:1:x:" + "A" * 22,
        "ap:1:0.01:" + "A" * 22,
        "ap:1:\u0661:" + "A" * 22,
        "ap:1:0:" + "A" * 21,
        "ap:1:0:" + "!" * 22,
        "ap:1:0:" + "A" * 22 + "\n",
        "a" * 300 + ":1:0:" + "A" * 22,
    ],
)
def test_a_malformed_seal_is_called_one(text: str) -> None:
    with pytest.raises(BadSeal):
        unseal(text)


def test_a_name_is_read_only_from_its_own_seal() -> None:
    keys, purpose = [b"x" * 32, KEY], Action.FREEZE_AGENT
    name = "é: a:b \u202e<!here>"
    value = seal_name(name, key=KEY, team=TEAM, purpose=purpose)
    halves = [f"\ud800{value}", f"{value}\ud800"]
    forged = ["", ":", value[:-1], f"x{value}", f"{name}:", *halves]

    assert name_in(value, keys=keys, team=TEAM, purpose=purpose) == name
    for text in forged:
        assert not name_in(text, keys=keys, team=TEAM, purpose=purpose)
    assert not name_in(value, keys=keys, team="T0OTHER", purpose=purpose)
    assert not name_in(value, keys=keys, team=TEAM, purpose=Action.TRY_AGAIN)
    assert not name_in(value, keys=keys[:1], team=TEAM, purpose=purpose)
