"""A form changes, rejects or answers a call, for the person it was opened for."""

from __future__ import annotations

from typing import cast

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.protocol.records import ItemState, Verb
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from tests.bot.bot_stack import CHANNEL, Stack, says

LONG = "x" * 30_000 + "THE END"


async def opened(
    stack: Stack, verdict: Verdict, action: Action, user: str = "U0ANA"
) -> Actor:
    """Open a form from the card of a call."""
    card, person = await stack.card(verdict), stack.actor(user)
    await person.click(CHANNEL, str(card["ts"]), action)
    await person.wait_for_view()
    return person


def block_of(view: JsonObject, name: str) -> str:
    """Return the block id of the input with this label."""
    for block in as_objects(view["blocks"]):
        if block["type"] == "input" and name in str(as_object(block["label"])["text"]):
            return str(block["block_id"])
    raise AssertionError(f"no input {name!r} in {view!r}")


async def test_a_corrected_edit_counts(each_stack: Stack) -> None:
    stack = each_stack
    async with stack.running():
        verdict = await stack.refund()
        ana = await opened(stack, verdict, Action.EDIT)
        view = await ana.wait_for_view()
        amount = block_of(view, "amount")

        errors = await ana.submit({amount: "5000", Input.REASON: "half"})
        assert "1000" in errors[amount]
        assert (await stack.approval(verdict)).rev == 1
        assert await ana.submit({amount: "449.50", Input.REASON: "half"}) == {}

        item = (await stack.approval(verdict)).items[0]
        assert item.state is ItemState.AUTHORIZED
        assert item.args == {"amount": 449.5, "order_id": "78291"}
        assert item.edit is not None
        assert (item.edit.by.user, item.edit.reason) == ("U0ANA", "half")
        await stack.card(verdict, says("449.5"))
        assert await ana.view() is None
    assert stack.sandbox.problems == []


async def test_a_form_that_is_too_late_says_so_inside(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund()
        ana = await opened(stack, verdict, Action.EDIT)
        card = await stack.card(verdict)
        await stack.actor("U0BEN").click(CHANNEL, str(card["ts"]), Action.APPROVE)

        await ana.submit()

        await ana.wait_for_view(says("approved by <@U0BEN>"))
        assert len((await stack.approval(verdict)).items[0].votes) == 1


@pytest.mark.slow
async def test_a_long_call_is_approved_after_every_page(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund(note=LONG)
        ana = await opened(stack, verdict, Action.VIEW_ALL)
        stack.sandbox.faults.plan("http_500", "views.update")
        await ana.act_in_view(Action.PAGE_NEXT)
        await ana.wait_for_view(says("Slack did not show the window"))
        await ana.close_view()

        pages = 1
        while has_next(await top(ana)):
            await turn(ana)
            pages += 1
        assert pages > 2
        assert "THE END" in "".join(await texts(ana))
        await ana.submit()

        item = (await stack.approval(verdict)).items[0]
        assert item.state is ItemState.AUTHORIZED
    assert stack.sandbox.problems == []


@pytest.mark.slow
async def test_the_last_page_alone_does_not_approve(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund(note=LONG)
        ana = await opened(stack, verdict, Action.VIEW_ALL)
        await turn_to_the_end(ana)
        last = await top(ana)
        approval = await stack.approval(verdict)
        key = stack.keys.opened(approval.id)
        await stack.store.conn.command("DEL", key)

        await ana.submit()

        await ana.wait_for_view(says("go through every page"))
        assert (await stack.approval(verdict)).rev == 1
        assert last["callback_id"] == View.DETAILS


async def test_edit_of_a_long_call_opens_its_pages_first(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund(note="words " * 1_500 + "end")
        ana = await opened(stack, verdict, Action.EDIT)

        view = await top(ana)
        assert view["callback_id"] == View.DETAILS
        assert "go through every page first" in str(view["blocks"])
        await turn_to_the_end(ana)
        await ana.act_in_view(Action.EDIT)

        await ana.wait_for_view(lambda view: view["callback_id"] == View.EDIT)
        assert await ana.submit() == {}
        item = (await stack.approval(verdict)).items[0]
        assert (item.state, item.edit) == (ItemState.AUTHORIZED, None)
    assert stack.sandbox.problems == []


async def top(person: Actor) -> JsonObject:
    return as_object(await person.view())


async def texts(person: Actor) -> list[str]:
    """Return every text of the modal on top."""
    found: list[str] = []

    def walk(node: object) -> None:
        if isinstance(node, dict):
            members = cast("dict[str, object]", node)
            if isinstance(members.get("text"), str):
                found.append(str(members["text"]))
            for member in members.values():
                walk(member)
        elif isinstance(node, list):
            for each in cast("list[object]", node):
                walk(each)

    walk((await top(person))["blocks"])
    return found


def has_next(view: JsonObject) -> bool:
    return f"'{Action.PAGE_NEXT.value}'" in str(view["blocks"])


async def turn(person: Actor) -> None:
    before = str((await top(person))["hash"])
    await person.act_in_view(Action.PAGE_NEXT)
    await person.wait_for_view(lambda view: view["hash"] != before)


async def turn_to_the_end(person: Actor) -> None:
    while has_next(await top(person)):
        await turn(person)


async def test_an_unchanged_edit_does_not_replace_approve(stack: Stack) -> None:
    rules = stack.policy.tools["process_refund"]
    limited = rules.with_(allow=(Verb.EDIT, Verb.REJECT))
    tools = {**stack.policy.tools, "process_refund": limited}
    stack.policy = stack.policy.with_(tools=tools)
    async with stack.running():
        verdict = await stack.refund()
        ana = await opened(stack, verdict, Action.EDIT)

        await ana.submit()

        await ana.wait_for_view(says("you changed nothing"))
        assert (await stack.approval(verdict)).rev == 1
