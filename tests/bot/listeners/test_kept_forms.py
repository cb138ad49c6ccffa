"""A form whose decision does not count yet stays open with its input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject, as_object
from tests.bot.bot_stack import POLICY, Stack, says
from tests.bot.listeners.test_large_batches import choose, opened, without

REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
REASON = "The customer wrote that only half of it was damaged."
WRITTEN: dict[str, object] = {Input.REASON: REASON}


async def kept_form(stack: Stack, verdict: Verdict, action: Action) -> Actor:
    ana = await stack.click(verdict, action)
    await ana.wait_for_view()
    return ana


async def words_in(person: Actor) -> str:
    """Return the reason in the form on top."""
    view = as_object(await person.view())
    values = as_object(as_object(view["state"])["values"])
    return str(as_object(as_object(values[Input.REASON])[Input.REASON])["value"])


async def test_an_edit_can_be_sent_once_the_freeze_ends(live: Stack) -> None:
    verdict = await live.refund()
    ana = await kept_form(live, verdict, Action.EDIT)
    await live.reviews.freezes.freeze(REFUNDS, "T0/U0BEN", "wrong amounts")
    amount = {"field:0": "449.5"}

    await ana.submit(WRITTEN | amount)
    await ana.wait_for_view(says("frozen"))
    await ana.close_view()
    assert await words_in(ana) == REASON
    await live.reviews.freezes.unfreeze(REFUNDS, "T0/U0BEN")
    await ana.submit(WRITTEN | amount)

    assert (await live.item(verdict)).state is ItemState.AUTHORIZED


async def test_a_reason_is_not_lost_where_the_store_does_not_answer(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = ReviewService.decide, [StoreUnavailable("away")]

    async def away(self: ReviewService, *args: Any, **named: Any) -> Any:
        if failures:
            raise failures.pop()
        return await real(self, *args, **named)

    monkeypatch.setattr(ReviewService, "decide", away)
    async with stack.running():
        verdict = await stack.refund()
        ana = await kept_form(stack, verdict, Action.REJECT)

        await ana.submit(WRITTEN)
        await ana.wait_for_view(lambda view: view["callback_id"] == View.NOTICE)
        assert (await stack.item(verdict)).state is ItemState.PENDING
        await ana.close_view()
        assert await words_in(ana) == REASON
        await ana.submit(WRITTEN)

        assert (await stack.item(verdict)).state is ItemState.REJECTED


# Forms that can approve a call show a freeze and the current requirement.


ONE = "*Frozen*: approve after the freeze ends."
STRICTER = load_policy(
    POLICY.replace("    tier: approve\n", "    tier: escalate\n"), "policy.yml"
)


async def frozen(stack: Stack) -> None:
    await stack.reviews.freezes.freeze(REFUNDS, "T0/U0BEN", "wrong amounts")


async def full_details(stack: Stack, call: Verdict) -> tuple[Actor, JsonObject]:
    ana = await stack.click(call, Action.VIEW_ALL)
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
