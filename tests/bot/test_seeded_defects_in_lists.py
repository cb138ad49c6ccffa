"""A seeded defect waits on Home and in `/approvals list` like any other call."""

from __future__ import annotations

import json
import re

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.service.report.audit_reading import StatisticsService
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot import test_seeded_defects
from tests.bot.bot_stack import CHANNEL, Stack, says
from tests.bot.listeners.test_review_together import (
    confirmed,
    home,
    home_of,
    reviewing,
    submitted,
)
from tests.bot.test_seeded_defects import names, shown

ANSWERED = [EventName.SEEDED_SHOWN, EventName.SEEDED_ANSWERED]
stack = test_seeded_defects.stack
ENDED = "a hundred times what the customer asks for"


def without_ids(blocks: list[JsonObject]) -> str:
    """Return blocks without what differs from call to call: ids, seals, times."""
    text = json.dumps(blocks)
    text = re.sub(r'"(block_id|value|initial_option)": "[^"]*"', "", text)
    return re.sub(r"ap_[\w.-]+|`[0-9a-f]{8}`|<!date[^>]*>", "", text)


def rows(state: JsonObject, approval: str) -> list[JsonObject]:
    """Return the blocks of an approval's row on a Home tab."""
    blocks = as_objects(state["home"]["blocks"])
    (last,) = [
        place for place, one in enumerate(blocks) if approval in str(one["block_id"])
    ]
    return blocks[last - 2 : last + 1]


async def rubber_stamped(stack: Stack) -> tuple[int, int]:
    total = (await StatisticsService(stack.store).metrics()).total
    assert total.evaluated == total.runs == total.corrected.whole == 0
    return total.rubber_stamped.part, total.rubber_stamped.whole


async def listed(stack: Stack, user: str = "U0ANA", words: str = "list") -> str:
    """Return the output of `/approvals list` for a person in a direct message."""
    direct = {"U0ANA": "D0ANA", "U0EVE": "D0EVE"}[user]
    person = stack.actor(user)
    before = {str(m["ts"]) for m in await person.messages(direct)}
    await person.command("/approvals", words, direct)
    message = await person.message_with(
        direct, lambda m: m["ephemeral"] and str(m["ts"]) not in before
    )
    return str(message["text"])


async def test_its_row_on_home_looks_like_that_of_a_real_call(stack: Stack) -> None:
    seeded, _ = await shown(stack)
    async with stack.running():
        real = await stack.refund(amount=890, order_id="78292")
        real_id = (await stack.approval(real)).id
        ana = await home(stack, shows="Waiting for you: 2")
        state = await ana.state()

        found, expected = rows(state, seeded.id), rows(state, real_id)
        asked = (r" \u00b7 requested by <@U0DAN>", "")
        assert len(found) == len(expected) == 3
        assert without_ids(found) == without_ids(expected).replace(*asked).replace(
            "78292", "78291"
        )
        assert "Review 2 together" in home_of(state)


async def test_who_may_not_decide_it_sees_it_nowhere(stack: Stack) -> None:
    seeded, _ = await shown(stack)
    async with stack.running():
        eve = await home(stack, "U0EVE", shows="Nothing waits for you")
        assert seeded.id not in home_of(await eve.state())
        assert short_id(seeded.id) not in await listed(stack, "U0EVE")
        for name in (seeded.id, short_id(seeded.id)):
            assert "no such approval" in await listed(stack, "U0EVE", f"show {name}")


async def test_approving_its_row_counts_and_removes_it(stack: Stack) -> None:
    seeded, _ = await shown(stack)
    async with stack.running():
        short = short_id(seeded.id)
        assert short in await listed(stack)
        for name in (seeded.id, short):
            assert f"`{short}`" in await listed(stack, words=f"show {name}")
        ana = await home(stack, shows=seeded.id)

        await ana.act_in_home(Action.APPROVE_ROW)

        await ana.wait_for_view(lambda view: "you approved it" in json.dumps(view))
        await ana.wait_for(lambda state: seeded.id not in home_of(state) or None)
        await ana.message_with(CHANNEL, says(ENDED))
        assert "Nothing is waiting" in await listed(stack)
        assert "no such approval" in await listed(stack, words=f"show {seeded.id}")
    assert await rubber_stamped(stack) == (1, 1)
    assert await names(stack) == ANSWERED


async def test_a_form_over_it_is_good_for_who_opened_it_alone(stack: Stack) -> None:
    seeded, _ = await shown(stack)
    async with stack.running():
        ana = await home(stack, shows=seeded.id)
        await ana.act_in_home(Action.VIEW_ALL)
        view = await ana.wait_for_view(lambda view: "Full details" in json.dumps(view))
        await stack.store.conn.command("DEL", stack.keys.view(str(view["id"])))

        assert await ana.submit({}) == {}

        await ana.wait_for_view(lambda view: "Not done" in json.dumps(view))
    assert await names(stack) == [EventName.SEEDED_SHOWN]


async def test_all_of_it_is_shown_and_approved_there(stack: Stack) -> None:
    seeded, message = await shown(stack)
    async with stack.running():
        ana = await home(stack, shows=seeded.id)
        await ana.click(CHANNEL, str(message["ts"]), Action.VIEW_ALL)
        view = await ana.wait_for_view(lambda view: "Full details" in json.dumps(view))
        assert "78291" in json.dumps(view)
        assert await names(stack) == [EventName.SEEDED_SHOWN]

        assert await ana.submit({}) == {}

        await ana.wait_for_view(lambda view: "you approved it" in json.dumps(view))
        await ana.message_with(CHANNEL, says(ENDED))
        await ana.wait_for(lambda state: seeded.id not in home_of(state) or None)
    assert await rubber_stamped(stack) == (1, 1)


async def test_reviewing_it_with_others_counts(stack: Stack) -> None:
    seeded, _ = await shown(stack)
    async with stack.running():
        real = await stack.refund(amount=890, order_id="78292")
        ana = await reviewing(stack, count=2)
        await confirmed(ana, {})

        await submitted(ana)

        await ana.wait_for_view(lambda view: "you approved it" in json.dumps(view))
        assert not (await stack.approval(real)).items[0].is_pending
        await ana.wait_for(lambda state: seeded.id not in home_of(state) or None)
    assert await names(stack) == ANSWERED


async def test_to_edit_it_in_a_list_of_calls_is_to_notice_it(stack: Stack) -> None:
    await shown(stack)
    async with stack.running():
        await stack.refund(amount=890, order_id="78292")
        ana = await reviewing(stack, count=2)
        titles = json.dumps((await ana.view() or {})["blocks"])
        number = 1 if titles.index("78291") < titles.index("78292") else 2

        await ana.act_in_view(Action.CHOOSE_EDIT, chosen=f"Call {number}")

        await ana.wait_for_view(lambda view: "Well seen" in json.dumps(view))
    assert await names(stack) == ANSWERED
    assert await rubber_stamped(stack) == (0, 1)
