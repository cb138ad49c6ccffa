"""The menu of a card: rarer acts, each sealed and checked as its button is."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action, Input, choice, chosen
from keyturn.gateway.protocol.records import ItemState
from keyturn.sandbox.elements import placed_elements
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.tampering import click_with


def menu_of(card: JsonObject) -> tuple[str, list[str]]:
    """Return the block of a card's menu, and the acts that it offers."""
    (placed,) = [
        one
        for one in placed_elements(as_objects(card["blocks"]))
        if one.action_id == Action.MORE
    ]
    options = as_objects(placed.element["options"])
    return placed.block_id, [str(one["value"]) for one in options]


async def test_an_answer_chosen_in_the_menu_reaches_the_agent(live: Stack) -> None:
    verdict = await live.refund()

    ana = await live.click(verdict, Action.RESPOND)
    await ana.wait_for_view()
    await ana.submit({Input.MESSAGE: "Ask for a photo."})

    await live.card(verdict, says("Answered"))
    assert (await live.item(verdict)).state is ItemState.ANSWERED


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Action.APPROVE, "This button does not belong to this card"),
        (Action.MORE, "This button is not known any more"),
        ("more more", "This button is not known any more"),
        ("freeze", "This button is not known any more"),
        ("", "This button is not known any more"),
    ],
)
async def test_a_forged_choice_is_refused(live: Stack, other: str, words: str) -> None:
    verdict = await live.refund()
    card, ana = await live.card(verdict), live.actor("U0ANA")
    _, offered = menu_of(card)
    forged = choice(other, chosen(offered[0])[1])

    await click_with(live, card, Action.MORE, forged)

    told = await ana.message_with(CHANNEL, lambda m: bool(m["ephemeral"]))
    assert words in str(told["text"])
    assert (await live.approval(verdict)).rev == 1
