"""A person's own queue, on the Home tab and by command."""

from __future__ import annotations

import json

import pytest

from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, Stack


def home_of(state: JsonObject | None) -> str:
    return json.dumps((state or {}).get("home"), ensure_ascii=False)


async def test_home_lists_only_what_waits_for_this_person(stack: Stack) -> None:
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


async def test_an_unknown_command_is_answered_with_the_known(stack: Stack) -> None:
    async with stack.running():
        ana = stack.actor("U0ANA")

        await ana.command("/approvals", "allow all", CHANNEL)

        told = await stack.told("U0ANA", "I do not know this command")
        assert "/approvals list" in told
        assert "allow all" not in told
