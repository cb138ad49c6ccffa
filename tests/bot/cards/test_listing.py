"""A call is written so that no value can pass for another, and nothing gets lost."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from keyturn.bot.cards.listing import (
    Forms,
    argument_titles,
    boxes,
    boxes_of,
    changes_of,
    diff,
    fitted,
    state_text,
    state_title,
)
from keyturn.bot.text import chunks, reveal
from keyturn.gateway.approvals.policy_decision import Preview
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.digest import BusinessState, with_state
from tests.bot.samples import an_item, edited
from tests.bot.snapshots import CARD_TEXTS, assert_all_same
from tests.bot.strategies import hostile

EMAIL = Preview.model_validate("email")
SQL = Preview.model_validate("sql")
CHANGE = Preview.model_validate("change")
TEXTS = st.lists(
    st.sampled_from(
        ["a", "1", " ", "  ", '"', "\n", "[", "]", "{", "}", ":", "true", "\u202e",
         "⟦", "⟧", "⟦text⟧", "⟦U+202E⟧", "⟦U+0020⟧", "\\", "a" * 58]
    ),
    max_size=4,
).map("".join)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 11) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2)
    ),
    max_leaves=3,
)
"""Small values out of whatever could imitate another value, a row or a mark."""


def listed(args: Any, *redact: str, **more: Any) -> str:
    """Return the boxes of a call, one below the other."""
    return "\n--\n".join(boxes("refund", args, redact, Forms(**more)))


def changed(before: Any, after: Any, *, budget: int = 500, **more: Any) -> str:
    return changes_of(an_item({}, **more), before, after, budget=budget)


SCHEMA: Any = {
    "properties": {
        "amount": {"type": "number", "title": "Refund", "x-unit": "EUR"},
        "share": {"type": "number", "x-unit": "%"},
        "closes its bracket": {"title": "x)  999"},
        "closes and opens": {"title": 'x") 9 ("'},
        "brackets": {"title": "Total (net)"},
        "lines": {"title": "two\nlines"},
        "hidden": {"title": "\u202eb"},
        "mark": {"title": "⟦text⟧"},
        "long": {"title": "w" * 99},
        "no text": {"title": ["list"]},
        "same": {"title": "Same"},
    }
}
LETTER = {
    "body": "Dear Kim,\n\nhello.",
    "subject": "Your order",
    "cc": [],
    "to": ["kim@example.com", "lee@example.com"],
    "priority": 1,
    "To": "b",
}
LISTINGS = {
    "short arguments are aligned and sorted": listed({"b": "78291", "amount": 899.5}),
    "no arguments": listed({}),
    "a hidden value is in no box": listed({"card": "4111", "n": 1}, "args.card"),
    "texts that would be misread bare are quoted": listed(
        {
            "empty": "",
            "edge": " a",
            "false": "false",
            "list": "[]",
            "number": "78291",
            "plain": "2026-05-01",
            "posing as hidden": "•••••• (hidden by policy)",
            "quote": '"',
        }
    ),
    "what could draw another line has a box": listed(
        {
            "amount": 5,
            "gap": "a    b",
            "lines": "line\n  amount    1.00",
            "long": "a" * 61,
            "nested": {"a": 1},
            "tab": "a\tb",
        }
    ),
    "a long text that reads as another value": listed({"body": '{\n  "b": 1\n}'}),
    "a blank at the edge of a long text": listed({"body": " Dear Kim,\nall well.\n"}),
    "titles and units": listed(
        dict.fromkeys(SCHEMA["properties"], 1), titles=argument_titles(SCHEMA)
    ),
    "a name is none with a title": listed({"a (EUR)": 1}),
    "an e-mail": listed(LETTER, preview=EMAIL),
    "a short body, and addresses": listed(
        {"body": "Hi", "to": ["Kim Lee <kim@a.example>"] * 3}, preview=EMAIL
    ),
    "no lists of addresses": listed(
        {"to": {"a": 1}, "cc": ["a, b"], "bcc": "", "subject": None}, preview=EMAIL
    ),
    "a hidden character in an address": listed({"to": ["a\u202e"]}, preview=EMAIL),
    "an address that is hidden": listed({"to": ["a", "b"]}, "args.to.0", preview=EMAIL),
    "a statement": listed({"statement": "select 1"}, preview=SQL),
    "a change of a text": listed(
        {
            "path": "app.py",
            "before": "def f():\n    return 1\n- x = 1\n",
            "after": "def f():\n    return 2\n- x = 1\n\n+ y\u202e",
        },
        preview=CHANGE,
    ),
    "a change without a text before": listed(
        {"path": "app.py", "before": "", "after": "a\nb\n"}, preview=CHANGE
    ),
    "a change whose text before is hidden": listed(
        {"before": "a", "after": "b"}, "args.before", preview=CHANGE
    ),
    "a hidden statement, not even its kind": listed(
        {"statement": "DROP TABLE t"}, "args.statement", preview=SQL
    ),
}


def test_a_call_is_listed_as_written_down() -> None:
    assert_all_same(CARD_TEXTS, "listings", LISTINGS)


BEFORE: Any = {
    "same": 2,
    "number": 1,
    "text": "1",
    "gone": 1,
    "card": "1",
    "arrow": "a → b",
    "lines": "a\n+ x",
}
AFTER: Any = {
    "same": 2,
    "number": "1",
    "text": 2,
    "new": "",
    "card": "2",
    "arrow": "c",
    "lines": "b",
}
MAIL_BEFORE: Any = {"body": "We refund 20 euros for the lamp.", "to": "a", "n": 1}
MAIL_AFTER: Any = {"body": "We refund 30 euros for the lamp.", "to": ["a"], "n": 2}


def test_a_difference_is_shown_argument_by_argument() -> None:
    texts = {
        "values": changed(BEFORE, AFTER, redact=("args.card",)),
        "nothing": changed(BEFORE, BEFORE),
        "an e-mail": changed(MAIL_BEFORE, MAIL_AFTER, preview=EMAIL),
    }

    assert_all_same(CARD_TEXTS, "differences", texts)


@pytest.mark.parametrize(
    ("literal", "marked"),
    [
        ("a⟦U+202E⟧b", "a\u202eb"),
        ("⟦text⟧\n{}\n", "{}\n"),
        ("⟦U+0020⟧" + "a" * 70, " " + "a" * 70),
    ],
)
def test_a_mark_that_a_text_brings_along_is_none(literal: str, marked: str) -> None:
    assert boxes("t", {"a": literal}, ()) != boxes("t", {"a": marked}, ())
    assert boxes("t", {literal: 1}, ()) != boxes("t", {marked: 1}, ())


@given(st.dictionaries(TEXTS, VALUES, max_size=3), st.data())
def test_other_calls_read_differently(one: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*one, "a"]))
    other = {**one, data.draw(TEXTS): data.draw(VALUES | st.just(one.get(name)))}
    if data.draw(st.booleans()):
        other.pop(name, None)

    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (boxes("t", one, ()) == boxes("t", other, ())) == is_same


NAMES = TEXTS | st.sampled_from(
    ["to", "To", "TO", '"To"', "cc", "body", "Body", "statement", "SQL", "SQL (SELECT)",
     "before", "Before", "after", "Change"]
)  # fmt: skip
"""Arguments of a preview, and names that could pass for its labels."""
PARTS = (
    VALUES
    | st.sampled_from(["a, b", "a ⟦list of 1⟧", "SELECT 1", "UPDATE t SET x = 1"])
    | st.sampled_from(["a\n", "a\na", "+ a", "- a\n+ a", "| a", "\n\n", "a\n\na"])
    | st.lists(st.sampled_from(["a", "b", "a, b", "a b", "a\nb", "⟦", "a" * 58]))
)


@given(st.dictionaries(NAMES, PARTS, max_size=3), st.data())
def test_other_previews_differ(one: dict[str, Any], data: st.DataObject) -> None:
    preview = data.draw(st.sampled_from([EMAIL, SQL, CHANGE]))
    name = data.draw(st.sampled_from([*one, "to"]))
    other: dict[str, Any] = {
        **one,
        data.draw(NAMES): data.draw(PARTS | st.just(one.get(name))),
    }
    if data.draw(st.booleans()):
        other.pop(name, None)

    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    shown = [boxes("t", args, (), Forms(preview=preview)) for args in (one, other)]

    assert (shown[0] == shown[1]) == is_same
    assert (changed(one, other, budget=99_999, preview=preview) == "") == is_same


def test_a_call_that_does_not_fit_says_how_much_is_shown() -> None:
    found = fitted(boxes("mail", {"to": "kim", "body": "x" * 5_000}, ()), budget=3_000)

    assert not found.is_complete
    (missing,) = re.findall(r"⟦([0-9,]+) characters not shown here⟧", found.boxes[0])
    assert 4_200 < int(missing.replace(",", "")) < 5_000
    assert found.boxes[0].startswith("mail\n  to  kim\n  body\n  │ xxx")


@given(hostile, st.integers(100, 400))
def test_a_listing_is_complete_or_says_that_it_is_not(text: str, budget: int) -> None:
    whole = boxes(text or "t", {"a": text, "b": text * 9}, ())

    found = fitted(whole, budget=budget)

    assert found.is_complete == (found.boxes == whole)
    assert sum(map(len, found.boxes)) <= max(budget, 80)


@given(st.lists(hostile, max_size=20).map("".join), st.integers(101, 300))
def test_chunks_of_a_text_are_the_text(text: str, size: int) -> None:
    shown = reveal(text)

    parts = chunks(shown, size)

    assert "".join(parts) == shown
    assert all(len(part) <= size for part in parts)
    assert all(reveal(part) == part for part in parts)


def test_a_chunk_ends_at_a_line_break_and_never_inside_a_mark() -> None:
    assert chunks("a" * 100 + "\n" + "b" * 60, 120) == ["a" * 100 + "\n", "b" * 60]
    assert chunks("a" * 116 + "⟦U+202E⟧" + "b", 120) == ["a" * 116, "⟦U+202E⟧b"]
    assert chunks("a" * 119 + "e\u0301", 120) == ["a" * 119, "e\u0301"]


FORMATS = (
    "args.amount|eur",
    "args.due|date",
    "args.fee|gbp_minor",
    "args.deep.fee|eur",
    "args.secret|eur",
)


@pytest.mark.parametrize(
    ("name", "before", "after", "row"),
    [
        ("amount", 899, 449.5, "amount  €899.00 → €449.50"),
        ("fee", 250, 1, "fee  £2.50 → £0.01"),
        ("due", "2026-11-21", "2026-12-01", "due  21 Nov 2026 → 1 Dec 2026"),
        ("order", 1, 2, "order  1 → 2"),
        # The format does not tell these apart, or does not fit both.
        ("amount", 899, "899", 'amount  €899.00 → €899.00 ("899")'),
        ("amount", 899, "€899.00", 'amount  €899.00 → "€899.00"'),
        ("amount", 899, None, "amount  €899.00 → null"),
        ("secret", 899, 2, "secret  changed, •••••• (hidden by policy)"),
        ("deep", {"fee": 1}, {}, "deep.fee  €1.00 → ⟦not there⟧"),
        ("deep", {"a": [{"fee": 1}]}, {"a": [{"fee": 2}]}, "deep.a.0.fee  1 → 2"),
        (
            "deep",
            {"a": [1]},
            {"a": [1, 2]},
            "deep.a\n- [\n-   1\n- ]\n+ [\n+   1,\n+   2\n+ ]",
        ),
        ("a.b", {"c.d": 1}, {"c.d": 2}, "a\\.b.c\\.d  1 → 2"),
    ],
)
def test_an_edit_is_shown_in_the_format_of_the_argument(
    name: str, before: JsonValue, after: JsonValue, row: str
) -> None:
    item = an_item({name: before}, formats=FORMATS, redact=("args.secret",))

    assert diff(edited(item, {name: after}), budget=200) == row


AMOUNTS = st.sampled_from(
    ["€5.00", "5", "5.00", "05", "5.0", "5.00\u200b", "2026-12-01", "1 Dec 2026"]
)


@given(
    one=AMOUNTS | st.integers(4, 6) | st.none() | hostile,
    other=AMOUNTS | st.integers(4, 6) | st.none() | hostile,
    form=st.sampled_from([(), ("args.a|eur",), ("args.a|date",), ("args.a|number",)]),
    kind=st.sampled_from(["string", "number"]),
)
def test_formatted_values_look_alike_only_if_they_are_equal(
    one: JsonValue, other: JsonValue, form: tuple[str, ...], kind: str
) -> None:
    schema: Any = {"properties": {"a": {"type": kind}}}
    item = an_item({}, formats=form, args_schema=schema)

    first, second = boxes_of(item, {"a": one}), boxes_of(item, {"a": other})

    assert (first == second) == (one == other)


def with_business_state(args: Any, state: Any, **more: Any) -> Item:
    item = an_item(args, **more)
    action = with_state(item.action, BusinessState(value=state))
    return item.with_(requested=action, action=action)


def test_a_present_value_is_shown_beside_the_one_that_the_call_sets() -> None:
    args = {"order": "7", "address": "9 New St", "paid": 2}
    state = {"order": "7", "address": "12 Old St", "paid": 2, "version": 3}

    item = with_business_state(args, state)

    assert state_title(item) == "State when asked → with this call"
    assert state_text(item).splitlines() == [
        "address  12 Old St → 9 New St",
        'order  "7"',
        "paid  2",
        "version  3",
    ]


@pytest.mark.parametrize("now", ["12", "34"])
def test_a_hidden_argument_hides_its_present_value(now: str) -> None:
    item = with_business_state({"pin": "12"}, {"pin": now}, redact=("pin",))
    later = with_state(item.action, BusinessState(value={"pin": "56"}))

    for one in (item, item.with_(action=later)):
        assert "pin" in state_text(one)
        assert not any(pin in state_text(one) for pin in ("12", "34", "56"))
