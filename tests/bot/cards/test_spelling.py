"""A card shows the model's arguments if the tool reads them differently."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.cards.approval import card
from keyturn.gateway.approvals.evidence import original_text
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.bot.samples import an_approval, an_item, frame


def shown(item: Item) -> str:
    """Return the blocks of a card as text."""
    message = card(frame(an_approval(item)))
    return json.dumps(message.blocks, ensure_ascii=False)


def test_a_card_says_what_the_model_wrote() -> None:
    item = an_item({"customer": 7}, original_args={"customer": "07"})

    text = shown(item)

    assert "The model wrote:" in text
    assert json.dumps('customer = "07"')[1:-1] in text


def test_a_card_of_a_call_that_was_read_as_it_was_written_says_nothing() -> None:
    assert "The model wrote:" not in shown(an_item({"customer": 7}))


@pytest.mark.parametrize(
    ("spelled", "paths", "said"),
    [
        ({"card": "4111"}, (), 'card = "4111"'),
        ({"card": "4111"}, ("args.card",), "card"),
        ({"card": "4111"}, ("args.*",), "card"),
        ({"cardNumber": "4111"}, (), "cardNumber (no argument of this name runs)"),
        ({"card": 4111, "n": "1"}, (), 'n = "1"'),
        ({"card": 4111}, (), ""),
    ],
)
def test_a_spelling_shows_no_value_that_policy_may_hide(
    spelled: JsonObject, paths: tuple[str, ...], said: str
) -> None:
    assert original_text(spelled, {"card": 4111, "n": 1}, paths) == said
