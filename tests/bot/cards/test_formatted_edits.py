"""Edited values have the format that the policy defines for the argument."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import JsonValue

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.listing import diff
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.bot.readable import readable
from tests.bot.samples import an_approval, an_item, edited, frame

POLICY = """\
version: 1
defaults: {needs: U0ANA}
tools:
  refund:
    description: Refund {args.amount|eur} until {args.due|date} of {args.order}
    totals: [args.fee|gbp_minor, args.amount|usd, args.deep.fee|eur]
"""


def _item(before: JsonObject, after: JsonObject, **changes: Any) -> Item:
    found = evaluate(
        load_policy(POLICY, "p.yml"), agent="a", tool="refund", args=before
    )
    return edited(an_item(before, formats=found.formats, **changes), after)


def test_a_policy_gives_an_argument_the_format_of_its_description_first() -> None:
    item = _item({"amount": 1}, {"amount": 2})

    assert item.formats == (
        "args.amount|eur",
        "args.due|date",
        "args.fee|gbp_minor",
        "args.deep.fee|eur",
    )


@pytest.mark.parametrize(
    ("name", "before", "after", "row"),
    [
        ("amount", 899, 449.5, "amount  €899.00 → €449.50"),
        ("fee", 250, 1, "fee  £2.50 → £0.01"),
        ("due", "2026-11-21", "2026-12-01", "due  21 Nov 2026 → 1 Dec 2026"),
        ("order", 1, 2, "order  1 → 2"),
        ("bare", 1, 2, "bare  1 → 2"),
    ],
)
def test_an_edit_is_shown_in_the_format_of_the_argument(
    name: str, before: JsonValue, after: JsonValue, row: str
) -> None:
    assert diff(_item({name: before}, {name: after}), budget=200) == row


@pytest.mark.parametrize(
    ("before", "after", "row"),
    [
        (899, "899", 'amount  899 → "899"'),
        (899, None, "amount  899 → null"),
        (899, "much", "amount  899 → much"),
    ],
)
def test_what_a_format_does_not_tell_apart_is_shown_as_it_is(
    before: JsonValue, after: JsonValue, row: str
) -> None:
    assert diff(_item({"amount": before}, {"amount": after}), budget=200) == row


def test_a_hidden_value_is_shown_in_no_format() -> None:
    item = _item({"amount": 899}, {"amount": 2}, redact=("args.amount",))

    shown = readable(card(frame(an_approval(item))).blocks)

    assert "€" not in diff(item, budget=200)
    assert "899" not in shown.replace("899.00 for", "")


def test_an_argument_inside_another_is_shown_with_it() -> None:
    item = _item({"deep": {"fee": 1}}, {"deep": {"fee": 2}})

    assert "€" not in diff(item, budget=200)
