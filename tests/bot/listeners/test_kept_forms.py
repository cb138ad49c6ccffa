"""A form whose decision does not count yet stays open with its input."""

from __future__ import annotations

from typing import Any

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import as_object
from tests.bot.bot_stack import CHANNEL, Stack, says

REFUNDS = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
REASON = "The customer wrote that only half of it was damaged."
WRITTEN: dict[str, object] = {Input.REASON: REASON}


async def opened(stack: Stack, verdict: Verdict, action: Action) -> Actor:
    card = await stack.card(verdict)
    ana = stack.actor("U0ANA")
    await ana.click(CHANNEL, str(card["ts"]), action)
    await ana.wait_for_view()
    return ana


async def words_in(person: Actor) -> str:
    """Return the reason in the form on top."""
    view = as_object(await person.view())
    values = as_object(as_object(view["state"])["values"])
    return str(as_object(as_object(values[Input.REASON])[Input.REASON])["value"])


async def state_of(stack: Stack, verdict: Verdict) -> ItemState:
    return (await stack.approval(verdict)).items[0].state


async def test_an_edit_can_be_sent_once_the_freeze_ends(live: Stack) -> None:
    verdict = await live.refund()
    ana = await opened(live, verdict, Action.EDIT)
    await live.reviews.freezes.freeze(REFUNDS, "T0/U0BEN", "wrong amounts")
    amount = {"field:0": "449.5"}

    await ana.submit(WRITTEN | amount)
    await ana.wait_for_view(says("frozen"))
    await ana.close_view()
    assert await words_in(ana) == REASON
    await live.reviews.freezes.unfreeze(REFUNDS, "T0/U0BEN")
    await ana.submit(WRITTEN | amount)

    assert await state_of(live, verdict) is ItemState.AUTHORIZED


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
        ana = await opened(stack, verdict, Action.REJECT)

        await ana.submit(WRITTEN)
        await ana.wait_for_view(lambda view: view["callback_id"] == View.NOTICE)
        assert await state_of(stack, verdict) is ItemState.PENDING
        await ana.close_view()
        assert await words_in(ana) == REASON
        await ana.submit(WRITTEN)

        assert await state_of(stack, verdict) is ItemState.REJECTED
