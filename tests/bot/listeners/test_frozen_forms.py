"""Forms that can approve a call show a freeze and the current requirement."""

from __future__ import annotations

import json

from keyturn.bot.ids import Action, View
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.bot.listeners.test_large_batches import (
    choose,
    opened,
    without,
)

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


async def test_full_details_say_that_the_call_is_frozen(live: Stack) -> None:
    call = await live.refund()
    _, before = await full_details(live, call)

    await frozen(live)
    _, page = await full_details(live, call)

    assert ONE not in said(before)
    assert ONE in said(page)


async def test_full_details_say_what_the_policy_asks_for_by_now(live: Stack) -> None:
    call = await live.refund()
    live.policy = STRICTER

    _, page = await full_details(live, call)

    assert "Needs 2 people" in said(page)


async def test_the_form_for_many_calls_shows_a_freeze(live: Stack) -> None:
    _, _, ts = await opened(live)
    before = said(await (await choose(live, "U0ANA", ts)).view() or {})
    await frozen(live)

    ana = await choose(live, "U0BEN", ts)
    form = await ana.view() or {}
    await ana.submit(without(1))
    last = await ana.wait_for_view(
        lambda view: view["callback_id"] == View.CHOOSE_CONFIRM
    )

    assert "Frozen" not in before
    assert ONE in said(form)
    assert ONE in said(last)
