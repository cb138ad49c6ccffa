"""A card whose calls cannot be approved because of a freeze shows that."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.approval import card
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import ItemState
from tests.bot.readable import readable
from tests.bot.samples import an_approval, an_item, frame, in_state

ONE = "Frozen: approve after the freeze ends."
FROZEN = an_item(is_frozen=True)
FREE = an_item(index=1)


def said(*items: Item) -> str:
    text = readable(list(card(frame(an_approval(*items))).blocks)).replace("*", "")
    return next((line for line in text.splitlines() if "Frozen" in line), "")


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ((FROZEN,), ONE),
        ((an_item(),), ""),
        ((FROZEN, FREE), "Frozen: 1 of the calls can be approved after"),
        ((in_state(FROZEN, ItemState.REJECTED), FREE), ""),
    ],
)
def test_it_says_which_of_its_waiting_calls_are_frozen(
    items: tuple[Item, ...], words: str
) -> None:
    line = said(*items)

    assert words in line
    assert bool(line) == bool(words)
