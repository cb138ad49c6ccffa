"""A call is written so that no value can pass for another, and nothing gets lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot.cards.listing import argument_titles, boxes, changes, fitted
from keyturn.bot.text import chunks, reveal
from keyturn.gateway.approvals.policy_decision import Preview
from tests.bot.strategies import hostile

EMAIL = Preview.model_validate("email")
SQL = Preview.model_validate("sql")
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


def test_short_arguments_stand_aligned_and_sorted_under_the_tool() -> None:
    found = boxes("refund", {"order_id": "78291", "amount": 899.5, "ok": True}, ())

    assert found == (
        'refund\n  amount    899.5\n  ok        true\n  order_id  "78291"',
    )


def test_a_call_without_arguments_says_so() -> None:
    assert boxes("ping", {}, ()) == ("ping\n  (no arguments)",)


@pytest.mark.parametrize(
    "value", ["line\n  amount    1.00", "a" * 61, "a    b", "a\tb", {"a": 1}]
)
def test_what_could_draw_another_line_gets_a_box_of_its_own(value: Any) -> None:
    first, second = boxes("refund", {"note": value, "amount": 5}, ())

    assert first == "refund\n  amount  5"
    assert second.startswith("note\n")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("", '""'),
        (" a", '" a"'),
        ("a ", '"a "'),
        ('"', '"\\""'),
        ("false", '"false"'),
        ("null", '"null"'),
        ("78291", '"78291"'),
        ("[]", '"[]"'),
        ("•••••• (hidden by policy)", '"•••••• (hidden by policy)"'),
        ("plain", "plain"),
        ("2026-05-01", "2026-05-01"),
    ],
)
def test_a_text_that_would_be_misread_bare_is_quoted(value: str, shown: str) -> None:
    assert boxes("t", {"n": value}, ()) == (f"t\n  n  {shown}",)


def test_a_long_text_that_reads_as_another_value_says_that_it_is_text() -> None:
    _, body = boxes("mail", {"body": '{\n  "b": 1\n}'}, ())

    assert body == 'body\n⟦text⟧\n{\n  "b": 1\n}'


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


def test_a_title_and_a_unit_stand_behind_the_name() -> None:
    schema: Any = {
        "properties": {
            "amount": {"type": "number", "title": "Refund", "x-unit": "EUR"},
            "order_id": {"type": "string", "title": "Order Id"},
            "share": {"type": "number", "x-unit": "%"},
        }
    }
    titles = argument_titles(schema)

    (found,) = boxes(
        "refund", {"order_id": "A 7", "share": 5, "amount": 9}, (), titles=titles
    )

    assert found.splitlines() == [
        "refund",
        "  amount (Refund, EUR)  9",
        "  order_id              A 7",
        "  share (%)             5",
    ]


def test_a_name_cannot_pass_for_one_with_a_title() -> None:
    (plain,) = boxes("t", {"a (EUR)": 1}, ())
    (titled,) = boxes("t", {"a": 1}, (), titles={"a": "EUR"})

    assert (plain, titled) == ('t\n  "a (EUR)"  1', "t\n  a (EUR)  1")


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("x)  999", 'a ("x) 999")'),
        ("x) 999 (EUR", 'a ("x) 999 (EUR")'),
        ('x") 9 ("', 'a ("x\\") 9 (\\"")'),
        ("Total (net)", "a (Total (net))"),
        ("two\nlines", "a (two lines)"),
        ("\u202eb", "a (⟦U+202E⟧b)"),
        ("⟦text⟧", "a (⟦U+27E6⟧text⟧)"),
        ("w" * 99, f"a ({'w' * 59}…)"),
        (["list"], "a"),
        ("", "a"),
        ("A", "a"),
    ],
)
def test_a_title_adds_no_row_and_hides_nothing(title: object, shown: str) -> None:
    schema: Any = {"properties": {"a": {"title": title}}}

    text = "\n".join(boxes("t", {"a": 1}, (), titles=argument_titles(schema)))

    assert shown in text
    assert text.removeprefix("t\n").strip() in {f"{shown}  1", f"{shown}\n1"} or (
        text == f"t\n  (no arguments)\n{shown}\n1"
    )


@given(st.dictionaries(TEXTS, VALUES, max_size=3), st.data())
def test_two_calls_that_differ_never_read_the_same(
    one: dict[str, Any], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([*one, "a"]))
    other = {**one, data.draw(TEXTS): data.draw(VALUES | st.just(one.get(name)))}
    if data.draw(st.booleans()):
        other.pop(name, None)

    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (boxes("t", one, ()) == boxes("t", other, ())) == is_same


NAMES = TEXTS | st.sampled_from(
    ["to", "To", "TO", '"To"', "cc", "body", "Body", "statement", "SQL", "SQL (SELECT)"]
)
"""Arguments of a preview, and names that could pass for its labels."""
PARTS = (
    VALUES
    | st.sampled_from(["a, b", "a ⟦list of 1⟧", "SELECT 1", "UPDATE t SET x = 1"])
    | st.lists(st.sampled_from(["a", "b", "a, b", "a b", "a\nb", "⟦", "a" * 58]))
)


@given(st.dictionaries(NAMES, PARTS, max_size=3), st.data())
def test_two_previews_of_calls_that_differ_never_read_the_same(
    one: dict[str, Any], data: st.DataObject
) -> None:
    preview = data.draw(st.sampled_from([EMAIL, SQL]))
    name = data.draw(st.sampled_from([*one, "to"]))
    other: dict[str, Any] = {
        **one,
        data.draw(NAMES): data.draw(PARTS | st.just(one.get(name))),
    }
    if data.draw(st.booleans()):
        other.pop(name, None)

    is_same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    shown = [boxes("t", args, (), preview=preview) for args in (one, other)]

    assert (shown[0] == shown[1]) == is_same
    assert (changes(one, other, (), budget=99_999, preview=preview) == "") == is_same


def test_an_email_is_read_as_one() -> None:
    args: Any = {
        "body": "Dear Kim,\n\nhello.",
        "subject": "Your order",
        "cc": [],
        "to": ["kim@example.com", "lee@example.com"],
        "priority": 1,
    }

    assert boxes("mail", args, (), preview=EMAIL) == (
        """\
mail
  To        kim@example.com, lee@example.com ⟦list of 2⟧
  Cc        []
  Subject   Your order
  priority  1""",
        "Body\nDear Kim,\n\nhello.",
    )


def test_a_short_body_and_a_statement_have_a_box_of_their_own() -> None:
    assert boxes("m", {"body": "Hi"}, (), preview=EMAIL)[1:] == ("Body\nHi",)
    assert boxes("q", {"statement": "select 1"}, (), preview=SQL)[1:] == (
        "SQL (SELECT)\nselect 1",
    )


def test_many_addresses_stand_one_on_a_line() -> None:
    args: Any = {"to": ["Kim Lee <kim@a.example>"] * 3}

    _, found = boxes("m", args, (), preview=EMAIL)

    assert found == "To\n" + "Kim Lee <kim@a.example>\n" * 3 + "⟦list of 3⟧"


@pytest.mark.parametrize(
    ("to", "shown"),
    [
        ({"a": 1}, '{\n  "a": 1\n}'),
        ([1], "[\n  1\n]"),
        (["a, b"], '[\n  "a, b"\n]'),
        (["a\u202e"], "a⟦U+202E⟧ ⟦list of 1⟧"),
        ("", '""'),
        (None, "null"),
    ],
)
def test_what_is_no_list_of_addresses_is_shown_as_ever(to: Any, shown: str) -> None:
    text = "\n".join(boxes("m", {"to": to}, (), preview=EMAIL))

    assert text.endswith(f"To  {shown}" if "\n" not in shown else f"To\n{shown}")


def test_a_name_cannot_pass_for_a_label() -> None:
    (found,) = boxes("m", {"to": "a", "To": "b", "bcc ": "c"}, (), preview=EMAIL)

    assert found.splitlines()[1:] == ["  To      a", '  "To"    b', '  "bcc "  c']


def test_of_a_hidden_statement_not_even_the_kind_is_said() -> None:
    hidden = boxes("q", {"statement": "DROP TABLE t"}, ["args.statement"], preview=SQL)
    partly = boxes("m", {"to": ["a", "b"]}, ["args.to.0"], preview=EMAIL)

    assert hidden == ("q\n  SQL  •••••• (hidden by policy)",)
    assert partly[1] == 'To\n[\n  "•••••• (hidden by policy)",\n  "b"\n]'


def test_an_edit_of_an_email_is_shown_by_its_labels() -> None:
    before: Any = {"body": "We refund 20 euros for the lamp.", "to": "a", "priority": 1}
    after: Any = {
        "body": "We refund 30 euros for the lamp.",
        "to": ["a"],
        "priority": 2,
    }

    assert changes(before, after, (), budget=500, preview=EMAIL).splitlines() == [
        "To  a → a ⟦list of 1⟧",
        "Body",
        "~ We refund ⟦-20⟧⟦+30⟧ euros for the lamp.",
        "priority  1 → 2",
    ]


def test_a_blank_at_the_edge_of_a_long_text_is_marked() -> None:
    _, body = boxes("mail", {"body": " Dear Kim,\nall well.\n"}, ())

    assert body == "body\n⟦U+0020⟧Dear Kim,\nall well.⟦U+000A⟧"


def test_a_redacted_value_is_not_in_any_box() -> None:
    found = boxes("pay", {"card": "4111", "n": 1}, ("args.card",))

    assert found == ("pay\n  card  •••••• (hidden by policy)\n  n     1",)


def test_a_call_that_does_not_fit_says_how_much_is_shown() -> None:
    found = fitted(boxes("mail", {"to": "kim", "body": "x" * 5_000}, ()), budget=3_000)

    assert not found.is_complete
    missing = found.total - found.shown
    assert found.total == 5_000 + len("mail\n  to  kim\n  body\n  │ ")
    assert f"⟦{missing:,} characters not shown here⟧" in found.boxes[0]
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


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ({"n": 1}, {"n": 2}, "n  1 → 2"),
        ({"n": 1}, {"n": "1"}, 'n  1 → "1"'),
        ({"n": 1}, {}, "n  1 → ⟦not there⟧"),
        ({}, {"n": ""}, 'n  ⟦not there⟧ → ""'),
        ({"n": 1, "m": 2}, {"n": 1, "m": 2}, ""),
        (
            {"n": "a\n+ x"},
            {"n": "b"},
            "n\n- a\n- + x\n+ b",
        ),
        (
            {"card": "1", "n": 1},
            {"card": "2", "n": 1},
            "card  changed, •••••• (hidden by policy)",
        ),
        ({"n": "a → b"}, {"n": "c"}, "n\n- a → b\n+ c"),
        ({"n": "1"}, {"n": 2}, 'n  "1" → 2'),
    ],
)
def test_a_difference_is_shown_argument_by_argument(
    before: Any, after: Any, shown: str
) -> None:
    assert changes(before, after, ("args.card",), budget=500) == shown
