"""Edited values have the format that the policy defines for the argument."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from keyturn.bot.cards.listing import diff
from tests.bot.samples import an_item, edited

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
        ("amount", 899, "899", 'amount  899 → "899"'),
        ("amount", 899, None, "amount  899 → null"),
        ("secret", 899, 2, "secret  changed, •••••• (hidden by policy)"),
        ("deep", {"fee": 1}, {}, 'deep\n- {\n-   "fee": 1\n- }\n+ {}'),
    ],
)
def test_an_edit_is_shown_in_the_format_of_the_argument(
    name: str, before: JsonValue, after: JsonValue, row: str
) -> None:
    item = an_item({name: before}, formats=FORMATS, redact=("args.secret",))

    assert diff(edited(item, {name: after}), budget=200) == row
