"""Forms that can approve a call show a freeze and the current requirement."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.ids import Action, View
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.bot.listeners.test_large_batches import (
    choose,
    edit_call,
    opened,
    without,
)
from tests.bot.listeners.test_review_together import home, waiting

REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
ONE = "*Frozen*: approve after the freeze ends."
STRICTER = load_policy(
    POLICY.replace("    tier: approve\n", "    tier: escalate\n"), "policy.yml"
)


async def frozen(stack: Stack) -> None:
    await stack.reviews.freezes.freeze(REFUNDS, "T0/U0BEN", "wrong amounts")


async def full_details(stack: Stack, call: Verdict) -> tuple[Actor, JsonObject]:
    card = await stack.card(call)
    ana = stack.actor("U0ANA")
    await ana.click(CHANNEL, str(card["ts"]), Action.VIEW_ALL)
    return ana, await ana.wait_for_view()


def said(view: JsonObject) -> str:
    return json.dumps(view["blocks"], ensure_ascii=False)


async def test_full_details_say_that_the_call_is_frozen(stack: Stack) -> None:
    async with stack.running():
        call = await stack.refund()
        _, before = await full_details(stack, call)

        await frozen(stack)
        _, page = await full_details(stack, call)

        assert ONE not in said(before)
        assert ONE in said(page)


async def test_each_page_says_that_the_call_is_frozen(stack: Stack) -> None:
    async with stack.running():
        call = await stack.refund(note="a long note, " * 1_000)
        await frozen(stack)
        ana, first = await full_details(stack, call)

        await ana.act_in_view(Action.PAGE_NEXT)
        second = await ana.wait_for_view(lambda view: "Page 2 of" in said(view))

        assert [ONE in said(page) for page in (first, second)] == [True, True]


async def test_full_details_say_what_the_policy_asks_for_by_now(stack: Stack) -> None:
    async with stack.running():
        call = await stack.refund()
        stack.policy = STRICTER

        _, page = await full_details(stack, call)

        assert "Needs two people" in said(page)


@pytest.mark.slow
async def test_a_form_for_many_calls_says_that_they_are_frozen(stack: Stack) -> None:
    async with stack.running():
        await waiting(stack, 3)
        await frozen(stack)
        ana = await home(stack, shows="Review 3 together")

        await ana.act_in_home(Action.REVIEW)
        form = await ana.wait_for_view(lambda view: view["callback_id"] == View.REVIEW)

        assert "*Frozen*: 3 of the calls can be approved" in said(form)


async def test_the_form_with_a_box_for_each_call_says_that_they_are_frozen(
    stack: Stack,
) -> None:
    async with stack.running():
        _, _, ts = await opened(stack)
        before = said(await (await choose(stack, "U0ANA", ts)).view() or {})
        await frozen(stack)

        ana = await choose(stack, "U0BEN", ts)
        form = await ana.view() or {}
        await ana.submit(without(1))
        last = await ana.wait_for_view(
            lambda view: view["callback_id"] == View.CHOOSE_CONFIRM
        )

        many = "*Frozen*: {} of the calls can be approved after the freeze ends."
        assert "Frozen" not in before
        assert many.format(56) in said(form)
        assert many.format(55) in said(last)


async def test_the_form_with_boxes_says_it_again_once_a_call_in_it_was_edited(
    stack: Stack,
) -> None:
    async with stack.running():
        _, _, ts = await opened(stack)
        await frozen(stack)
        ana = await choose(stack, "U0ANA", ts)

        await edit_call(ana, 3, "1", "too much")

        form = await ana.wait_for_view(lambda view: "Call 3, edited" in said(view))
        assert "*Frozen*: 56 of the calls can be approved" in said(form)
