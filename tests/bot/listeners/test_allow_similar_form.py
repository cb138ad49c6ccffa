"""The form allows exactly the shown calls, and reports the result after any failure."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.ids import View
from keyturn.gateway.approvals.standing import bounds_of
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.service.submit.standing import StandingService
from tests.bot.bot_stack import Stack
from tests.bot.listeners.test_standing import ALLOWING, allowing, open_form

__all__ = ["allowing"]

WIDER = ALLOWING.replace(
    "sum: args.amount, at_most: 1000, may_differ: args.order_id}",
    "may_differ: [args.order_id, args.amount, args.note]}",
)


async def test_a_policy_changed_behind_the_form_widens_nothing(allowing: Stack) -> None:
    assert WIDER != ALLOWING
    stack = allowing
    async with stack.running():
        await open_form(stack)
        # The form shows: any order, at most 50 in one call, at most 500 in all.
        stack.policy = load_policy(WIDER, "policy.yml")

        await stack.actor("U0ANA").submit({})

        found = await stack.store.standing.listed(stack.keys)
        given = [
            loaded.approval
            for loaded in await stack.store.approvals.load_each(found)
            if not loaded.approval.items[0].is_pending
        ]
    assert [bounds_of(one) for one in given] == []


async def test_an_approved_call_is_not_told_as_not_recorded(
    allowing: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: object) -> None:
        raise StoreUnavailable("A fail-over.")

    monkeypatch.setattr(StandingService, "propose", gone)
    stack = allowing
    async with stack.running():
        verdict = await open_form(stack)
        ana = stack.actor("U0ANA")
        await ana.submit({})
        shown = await ana.wait_for_view(lambda one: one["callback_id"] == View.NOTICE)

    assert (await stack.approval(verdict)).items[0].state is ItemState.AUTHORIZED
    assert "nothing was recorded" not in json.dumps(shown)
