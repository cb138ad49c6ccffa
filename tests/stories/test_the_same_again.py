"""A reviewer learns that the same refund has just run, also during a click."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from keyturn.sandbox.json_types import JsonObject, as_objects
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import CHANNEL, POLICY, REFUND, Stack, has_button, says

RAN = "*The same call* ran"
NAMED = load_policy(
    POLICY.replace(
        "  process_refund:\n", "  process_refund:\n    same_by: args.order_id\n"
    ),
    "policy.yml",
)


def is_decided(card: JsonObject) -> bool:
    return not has_button(card, Action.APPROVE)


@pytest.fixture
async def stack(store: Store) -> AsyncIterator[Stack]:
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store, policy=NAMED)


async def test_the_second_refunds_card_names_the_first(stack: Stack) -> None:
    async with stack.running():
        ana = stack.actor("U0ANA")
        first = await stack.refund("t1")
        card = await stack.card(first)
        await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await stack.card(first, is_decided)
        await stack.execute(first)

        again = await stack.card(await stack.refund("t2"), says(RAN))

        shown = json.dumps(again["blocks"])
        assert "Approved by" in shown
        assert "<@U0ANA>" not in shown, "a mention would notify her of it"


async def test_a_click_on_an_older_card_approves_nothing(stack: Stack) -> None:
    async with stack.running():
        ana, ben = stack.actor("U0ANA"), stack.actor("U0BEN")
        mine, other = await stack.refund("t1"), await stack.refund("t2")
        card, second = await stack.card(mine), await stack.card(other)
        await ana.click(CHANNEL, str(second["ts"]), Action.APPROVE)
        await stack.card(other, is_decided)
        await stack.execute(other)

        await ben.click(CHANNEL, str(card["ts"]), Action.APPROVE)

        told = await stack.told("U0BEN", "Not approved: the same call ran")
        assert "To run both, approve again." in told
        card = await stack.card(mine, says(RAN))
        assert (await stack.item(mine)).state is ItemState.PENDING
        await ben.click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await stack.card(mine, is_decided)
        assert (await stack.item(mine)).args == REFUND


async def test_the_card_says_that_the_same_was_rejected_and_why(stack: Stack) -> None:
    async with stack.running():
        ana = stack.actor("U0ANA")
        first = await stack.refund("t1")
        card = await stack.card(first)
        await ana.click(CHANNEL, str(card["ts"]), Action.REJECT)
        await ana.submit({"reason": "already got a <!channel> replacement"})
        await stack.card(first, is_decided)

        again = await stack.card(
            await stack.refund("t2"), says("*The same call* was rejected before")
        )

        shown = [
            element
            for block in as_objects(again["blocks"])
            if block["type"] == "context"
            for element in as_objects(block["elements"])
        ]
        reason = [one for one in shown if "replacement" in str(one["text"])]
        assert [one["type"] for one in reason] == ["plain_text"]
