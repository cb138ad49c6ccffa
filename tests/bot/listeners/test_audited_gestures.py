"""The audit log contains the gesture of each decision."""

from __future__ import annotations

from keyturn.bot.ids import COMMAND, Action, Input
from keyturn.gateway.approvals.decisions import Gesture
from keyturn.gateway.approvals.events import EventName
from tests.bot.bot_stack import CHANNEL, Stack, has_button
from tests.conftest import eventually
from tests.streams import audit_entries


async def gestures(stack: Stack, name: EventName) -> list[str | None]:
    """Return the gestures of the entries with this name, oldest first."""
    found = await audit_entries(stack.store.conn, stack.keys)
    return [event.data.get("gesture") for event in found if event.name is name]


async def test_a_button_and_a_form_are_told_apart(stack: Stack) -> None:
    async with stack.running():
        ana = stack.actor("U0ANA")
        card = await stack.card(await stack.refund())
        await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)
        await eventually(lambda: counted(stack, EventName.ITEM_AUTHORIZED, 1))
        card = await stack.card(await stack.refund())
        await ana.click(CHANNEL, str(card["ts"]), Action.REJECT)
        await ana.wait_for_view()
        await ana.submit({Input.REASON: "wrong order"})

    assert await gestures(stack, EventName.ITEM_AUTHORIZED) == [Gesture.BUTTON]
    assert await gestures(stack, EventName.ITEM_REJECTED) == [Gesture.MODAL]


async def test_each_page_that_was_shown_is_an_entry(stack: Stack) -> None:
    async with stack.running():
        verdict = await stack.refund(note="long " * 2000)
        card = await stack.card(verdict, lambda m: has_button(m, Action.VIEW_ALL))
        ana = stack.actor("U0ANA")
        await ana.click(CHANNEL, str(card["ts"]), Action.VIEW_ALL)
        await ana.wait_for_view()
        await ana.act_in_view(Action.PAGE_NEXT)
        await eventually(lambda: counted(stack, EventName.APPROVAL_VIEWED, 2))

    found = await audit_entries(stack.store.conn, stack.keys)
    viewed = [one for one in found if one.name is EventName.APPROVAL_VIEWED]
    assert [(one.actor, one.data["page"]) for one in viewed] == [
        ("T0SANDBOX/U0ANA", "1"),
        ("T0SANDBOX/U0ANA", "2"),
    ]
    assert {one.item for one in viewed} == {verdict.item_id}
    assert all(one.request_digest and one.action_hash for one in viewed)


async def counted(stack: Stack, name: EventName, times: int) -> bool:
    return len(await gestures(stack, name)) == times


async def test_slash_commands_are_named(stack: Stack) -> None:
    async with stack.running():
        for words, answer in (
            ("freeze everything", "is frozen"),
            ("unfreeze everything", "may run again"),
            ("delegate @ben 4h", "may decide in your place"),
            ("delegate off", "Nobody decides in your place any more"),
        ):
            await stack.actor("U0ANA").command(COMMAND, words, CHANNEL)
            await stack.told("U0ANA", answer)

    for name in (
        EventName.FREEZE_SET,
        EventName.FREEZE_LIFTED,
        EventName.DELEGATION_SET,
        EventName.DELEGATION_LIFTED,
    ):
        assert await gestures(stack, name) == [Gesture.SLASH_COMMAND]
