"""What `approve.lua` would not be told whole is told to `change.lua`."""

from __future__ import annotations

import pytest

from tests.approvals.builders import an_approval, an_item
from twokey.gateway.store.approve_texts import APPROVE, ApproveTexts, approve_texts
from twokey.gateway.store.filling import Filling, Made, Pieces
from twokey.gateway.store.keys import KEEP_MS, KeptText, Keys
from twokey.gateway.store.templates import Later, Moment, Template

KEYS = Keys("s0")
MOMENT = Moment(1000, 900, "T0", "U0ANA", "Ana", "sha256:1")
USER = Moment._fields.index("user")
QUEUES: dict[str, object] = {"leaves": ["q1", "q2"], "enters": [], "groups": "g"}
PLAIN: dict[str, object] = {
    "id": "ap_s0_1",
    "rev": "7",
    "seen_ms": Later(0, 0),
    "before_ms": 5000,
    "as_read": {"0:s": "pending", "0:t": "", "h": "aa"},
    "states": {"1": "authorized"},
    "uses": {"1": {"rows": "[]", "totals": []}},
    "job": '{"kind":"resume"}',
    "rejection": {"ends": True},
    "queues": QUEUES,
    "fields": {"0:s": "authorized", "0:l": Later(0, 30), "h": Pieces((Made(0),))},
    "events": [Pieces((*("by ", USER), "\n", Made(1)))],
    "precedents": [("k", "c", "done", Pieces((Made(2), "body")), 60)],
}


def of(document: dict[str, object], filling: Filling) -> ApproveTexts | None:
    return approve_texts(KEYS, an_approval(an_item(0)), document, filling)


def test_texts_stand_in_the_order_of_the_header() -> None:
    filling = Filling(3)
    found = of(PLAIN, filling)
    assert found

    told = found.told(
        [*filling.texts(MOMENT), "bb", "seal", "s="],
        unfrozen=["list", "tenant"],
        assumed={"place": "C 1", "unseen": "key"},
        kept=[KeptText("url", "text", 9)],
    )

    assert told == [
        *("ap_s0_1", "7", "1000", "5000", "1", str(KEEP_MS), '{"kind":"resume"}'),
        *("aa", "bb"),
        *("2", "4", "2", "1", "1"),
        *("0:s", "0:t", "pending", ""),
        *("0:s", "authorized", "0:l", "1030"),
        *("q1", "q2"),
        *("k", "c", "done", "s=body", "60"),
        *("by U0ANA", "seal"),
        *("C 1", "", "", "", "key"),
        *(2, "list", "tenant"),
        *("url", "text", 9),
    ]
    assert len(APPROVE.args) == 15


CHANGED: list[dict[str, object]] = [
    {"fires": "remind"},
    {"set": [("release", 5)]},
    {"failed": ["ap_s0_1.0"]},
    {"seen": [("k", "1")]},
    {"standing": [("ap_s0_2", "authorized")]},
    {"before_ms": None},
    {"job": None},
    {"events": None},
    {"rejection": None},
    {"rejection": {"ends": True, "calls": [("c", "{}")]}},
    {"states": {"0": "rejected"}},
    {"states": {"0": "authorized", "1": "pending"}},
    {"uses": {"0": {"rows": '[["w","u 1",1]]', "totals": ["1"]}}},
    {"queues": QUEUES | {"enters": [("q3", [], [])]}},
    {"fields": {"0:s": False, "h": Pieces((Made(0),))}},
    {"fields": {"run": "00", "h": Pieces((Made(0),))}},
    {"fields": {"0:s": "authorized"}},
    {"as_read": {"0:s": "pending"}},
    {"as_read": {"h": "aa", "parts": "00"}},
    {"precedents": [("k", "c", False, "", 60)]},
    {"job": "with\0two"},
    {"job": Template(("a\0", USER))},
]


@pytest.mark.parametrize("changed", CHANGED, ids=repr)
def test_what_it_knows_nothing_of_is_told_otherwise(changed: dict[str, object]) -> None:
    document = {
        name: one for name, one in (PLAIN | changed).items() if one is not None
    }  # fmt: skip

    assert of(document, Filling(3)) is None


@pytest.mark.parametrize("name", ["uses", "queues", "precedents"])
def test_some_of_it_may_be_missing(name: str) -> None:
    document = {one: value for one, value in PLAIN.items() if one != name}

    assert of(document, Filling(3))


@pytest.mark.parametrize("name", ["totals", "large"])
def test_what_it_does_not_compare_is_compared_otherwise(name: str) -> None:
    found = of(PLAIN, Filling(3))
    assert found

    assert found.told([], unfrozen=[], assumed={name: [1]}, kept=[]) is None
