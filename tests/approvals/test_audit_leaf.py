"""A leaf of the audit tree reveals nothing of an erased text."""

from __future__ import annotations

import json
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.gateway.approvals.audit_leaf import (
    Hidden,
    Leaf,
    SealState,
    leaf_of,
    opened,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol import digest

EVENT = Event(
    name=EventName.ITEM_REJECTED,
    tenant="default",
    approval="ap_default_1",
    item="ap_default_1/0",
    actor="T1/U0ANA",
    roles=("finance",),
    reason="Zu teuer — 高すぎる",
    data={"gesture": "button", "empty": ""},
)


def leaf(event: str = "", *, nonce: bytes = b"n" * 12) -> Leaf:
    return leaf_of(
        seq="17-1",
        at="17",
        event=event or EVENT.model_dump_json(exclude_defaults=True),
        seal="n.c",
        state=SealState.SEALED,
        nonce=nonce,
    )


def test_who_acted_and_what_they_wrote_are_hashes_with_salts() -> None:
    text = leaf().text.decode()

    assert "ANA" not in text
    assert "teuer" not in text
    assert "button" not in text
    assert json.loads(text)["approval"] == "ap_default_1"
    assert json.loads(text)["roles"] == ["finance"]


def test_the_same_words_have_another_hash_in_another_entry() -> None:
    hidden = [json.loads(leaf(nonce=one).text)["hidden"] for one in (b"a", b"b")]

    assert not {*hidden[0].values()} & {*hidden[1].values()}


def test_an_entry_is_read_from_its_leaf_and_what_it_hides() -> None:
    found, there = leaf(), EVENT.with_(at_ms=17, seq="17-1")
    assert opened(json.loads(found.text), found.openings) == there
    # What was erased is empty, and the rest is there.
    erased = opened(json.loads(found.text), {})
    assert erased == there.with_(actor="", reason="", data={})


def test_another_value_than_the_hidden_one_is_refused() -> None:
    found = leaf()
    salt = found.openings["actor"].salt

    for name, other in (
        ("actor", Hidden(salt, "T1/U0BEN")),
        ("actor", Hidden(salt[::-1], "T1/U0ANA")),
        ("reason", found.openings["actor"]),
        ("data.more", Hidden(salt, "x")),
    ):
        with pytest.raises(NotVerified, match="leaf_wrong"):
            opened(json.loads(found.text), {name: other})


def test_what_is_no_event_is_hidden_as_a_whole() -> None:
    for junk in ("{}", "", "[1]", "\udcff{", '{"name": "no.such", "tenant": "x"}'):
        found = leaf(junk or " ")

        assert {*json.loads(found.text)["hidden"]} == {"raw", "seal"}
        assert opened(json.loads(found.text), found.openings) is None


@given(st.text(), st.text(), st.dictionaries(st.text(max_size=5), st.text()))
def test_a_leaf_is_canonical(actor: str, reason: str, data: dict[str, str]) -> None:
    event = EVENT.with_(actor=actor, reason=reason, data=data)
    found = leaf(event.model_dump_json(), nonce=secrets.token_bytes(12))

    assert digest.canonical(json.loads(found.text)) == found.text
    assert opened(json.loads(found.text), found.openings) == event.with_(
        at_ms=17, seq="17-1"
    )
