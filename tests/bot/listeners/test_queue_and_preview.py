"""A person's own queue, and the warning before an edit that asks for more."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.bot.listeners.test_modals import block_of, opened

RISING = POLICY.replace(
    "  send_email:",
    '    raise: [{to: escalate, when: "args.amount > 500.0", because: "over 500"}]\n'
    "  send_email:",
)


def home_of(state: JsonObject | None) -> str:
    return json.dumps((state or {}).get("home"), ensure_ascii=False)


async def test_an_edit_that_raises_the_tier_is_shown_before_it_counts(
    stack: Stack,
) -> None:
    stack.policy = load_policy(RISING, "policy.yml")
    async with stack.running():
        verdict = await stack.refund(amount=400)
        ana = await opened(stack, verdict, Action.EDIT)
        view = await ana.wait_for_view()
        change = {block_of(view, "amount"): "600", Input.REASON: "two of them"}

        assert await ana.submit(change) == {}
        warned = await ana.wait_for_view(lambda v: v["callback_id"] == View.EDIT_RAISED)
        before = (await stack.approval(verdict)).items[0]
        assert await ana.submit(change) == {}
        after = (await stack.approval(verdict)).items[0]

        said = "2 other people of `support` or `senior` to approve it"
        assert said in json.dumps(warned)
        assert "over 500." in json.dumps(warned)
        assert before.args["amount"] == 400
        assert (after.tier, after.state) == (Tier.ESCALATE, ItemState.PENDING)
        assert [one.user for one in after.principals] == ["U0ANA"]


async def test_home_lists_what_waits_for_this_person_and_nobody_elses(
    stack: Stack,
) -> None:
    async with stack.running():
        verdict = await stack.refund()
        approval_id = (await stack.approval(verdict)).id
        shown = {}
        for user in ("U0ANA", "U0CHLOE", "U0DAN"):
            person = stack.actor(user)
            await person.open_home()
            state = await person.wait_for(lambda s: s if s["home"] else None)
            shown[user] = home_of(state)

    assert approval_id in shown["U0ANA"]
    assert "Waiting for you: 1" in shown["U0ANA"]
    assert "Nothing waits for you" in shown["U0CHLOE"]
    assert "Nothing waits for you" in shown["U0DAN"], "the requester decides nothing"
    assert "Waiting for others: 1" in shown["U0DAN"], "and may take it back"
    assert approval_id in shown["U0DAN"]
    assert "Waiting for others" not in shown["U0ANA"] + shown["U0CHLOE"]


async def test_who_has_more_than_one_look_reads_is_told_so(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyturn.bot.listeners.reading.ENOUGH", 2)
    monkeypatch.setattr("keyturn.bot.listeners.reading.MAX_QUEUE", 2)
    for name in ("t1", "t2", "t3"):
        await stack.refund(thread=name)
    async with stack.running():
        ana = stack.actor("U0ANA")
        await ana.open_home()
        state = await ana.wait_for(lambda s: s if s["home"] else None)
        await ana.command("/approvals", "list", CHANNEL)
        await stack.told("U0ANA", "only the 2 approvals that expire first")

    assert "Waiting for you: 2 or more" in home_of(state)
    assert "only the 2 approvals that expire first were checked" in home_of(state)


async def test_a_command_that_is_unknown_is_answered_with_those_that_are(
    stack: Stack,
) -> None:
    async with stack.running():
        ana = stack.actor("U0ANA")

        await ana.command("/approvals", "allow all", CHANNEL)

        told = await stack.told("U0ANA", "I do not know this command")
        assert "/approvals list" in told
        assert "allow all" not in told
