"""56 calls of one turn are one card, decided at once, and redrawn at their end."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import as_objects
from tests.bot.bot_stack import CHANNEL, REFUND, Stack, has_button, says

REFUNDS: list[tuple[str, JsonObject]] = [
    ("process_refund", {"amount": n + 0.5, "order_id": f"{78200 + n}"})
    for n in range(56)
]


async def opened(stack: Stack) -> tuple[Verdict, JsonObject, str]:
    """Submit the refunds; return the first, their one card and its ts."""
    verdicts = await stack.submit(*REFUNDS)
    assert len({verdict.item_id.split(".")[0] for verdict in verdicts}) == 1
    card = await stack.card(verdicts[0])
    return verdicts[0], card, str(card["ts"])


async def choose(stack: Stack, user: str, ts: str) -> Actor:
    """Open the form with a box for each call."""
    person = stack.actor(user)
    await person.click(CHANNEL, ts, Action.CHOOSE)
    await person.wait_for_view(lambda view: view["callback_id"] == View.CHOOSE)
    return person


async def edit_call(person: Actor, number: int, amount: str, reason: str) -> None:
    """Edit one call from the form with the boxes."""
    await person.wait_for_view()
    await person.act_in_view(Action.CHOOSE_EDIT, chosen=f"Call {number}")
    view = await person.wait_for_view(
        lambda view: view["callback_id"] == View.CHOOSE_EDIT
    )
    block = next(
        str(one["block_id"])
        for one in as_objects(view["blocks"])
        if one["type"] == "input" and "amount" in str(one["label"])
    )
    assert await person.submit({block: amount, Input.REASON: reason}) == {}


def without(*numbers: int) -> dict[str, object]:
    """Return the values of the boxes when these calls are not ticked."""
    return {
        f"calls.{group}": [
            f"{index}"
            for index in range(group * 10, min(group * 10 + 10, 56))
            if index + 1 not in numbers
        ]
        for group in range(6)
    }


async def test_sorting_keeps_the_ticks_and_decides_the_same_calls(live: Stack) -> None:
    live.put_policy(
        ("  process_refund:\n", "  process_refund:\n    totals: args.amount|eur\n")
    )
    first, _, ts = await opened(live)
    ana = await choose(live, "U0ANA", ts)

    await ana.act_in_view(
        Action.CHOOSE_ORDER,
        chosen="By amount, largest first",
        values={"calls.0": [f"{n}" for n in range(2, 11)]},
    )
    view = await ana.wait_for_view(lambda view: "calls.1.0" in str(view))
    largest = next(
        one for one in as_objects(view["blocks"]) if one["block_id"] == "calls.1.0"
    )
    assert await ana.submit({Input.OTHERS: "reject"}) == {}
    assert await ana.submit({Input.REASON: "Not this one."}) == {}

    approval = await live.approval(first)
    rejected = [one.index for one in approval.items if one.state.value == "rejected"]
    assert "56. " in str(largest["element"])
    # The first refund is marked, because 0.50 is far from the others.
    assert rejected == [1]
    assert sum(one.is_pending for one in approval.items) == 0


# A person's choices survive a change of the batch under their form.


async def last_page(person: Actor, words: str) -> str:
    page = await person.wait_for_view(
        lambda view: (
            view["callback_id"] == View.CHOOSE_CONFIRM and words in str(view["blocks"])
        )
    )
    return str(page["blocks"])


@pytest.mark.slow
async def test_the_last_page_names_the_call_decided_meanwhile(live: Stack) -> None:
    first, _, ts = await opened(live)
    ana = await choose(live, "U0ANA", ts)
    await edit_call(ana, 55, "5", "half of it")
    await ana.wait_for_view(lambda view: "55, edited" in str(view["blocks"]))
    await ana.act_in_view(Action.CHOOSE_EDIT, chosen="Call 55")
    await ana.wait_for_view(says("replaces the earlier one"))
    await ana.close_view()
    assert await ana.submit({**without(56), Input.OTHERS: "reject"}) == {}
    page = await last_page(ana, "*54 to approve* · *1 to approve as edited*")
    assert "Why do you reject call 56?" in page
    assert "untick it" not in page
    ben = live.actor("U0BEN")
    await ben.click(CHANNEL, ts, Action.VIEW_ALL, chosen="#8")
    await ben.wait_for_view()
    await ben.submit({})

    assert await ana.submit({Input.REASON: "already refunded"}) == {}

    page = await last_page(ana, "The card has changed")
    assert "because they changed: call 8." in page
    assert "*53 to approve* · *1 to approve as edited* · *1 to reject*" in page
    approval = await live.approval(first)
    assert [item.index for item in approval.items if not item.is_pending] == [7]

    assert await ana.submit({Input.REASON: "already refunded"}) == {}

    approval = await live.approval(first)
    assert not any(item.is_pending for item in approval.items)
    assert approval.items[54].args["amount"] == 5
    assert approval.items[55].state is ItemState.REJECTED
    (entry,) = await live.audit(EventName.APPROVAL_DECIDED)
    assert entry.data["approved"] == "0-6,8-53"
    await live.card(first, says("55 approved, 1 rejected"))


MAIL: JsonObject = {"to": "a@example.com", "body": "hello"}


async def test_an_escalated_call_has_a_card_of_its_own(live: Stack) -> None:
    wire, mail, other_wire, refund = await live.submit(
        ("wire_money", {"n": 1}),
        ("send_email", MAIL),
        ("wire_money", {"n": 2}),
        ("process_refund", REFUND),
    )

    await live.click(mail, Action.APPROVE_ALL)

    states = [item.state for item in (await live.approval(refund)).items]
    assert states == [ItemState.AUTHORIZED] * 2
    for verdict in (wire, other_wire):
        await live.card(verdict, lambda m: not has_button(m, Action.APPROVE_ALL))
        (item,) = (await live.approval(verdict)).items
        assert (item.is_pending, item.votes) == (True, ())


async def test_one_call_of_a_batch_is_decided_alone(live: Stack) -> None:
    _, second = await live.submit(("process_refund", REFUND), ("send_email", MAIL))
    card = await live.card(second)
    approval = await live.approval(second)
    block = row_of(card, f"{approval.id}:1:1:")

    await live.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE, block)

    states = [item.state for item in (await live.approval(second)).items]
    assert states == [ItemState.PENDING, ItemState.AUTHORIZED]


def row_of(card: JsonObject, start: str) -> str:
    """Return the id of the row of buttons whose values begin like this."""
    rows = (one for one in as_objects(card["blocks"]) if one["type"] == "actions")
    return next(str(one["block_id"]) for one in rows if start in str(one))


async def test_a_failure_is_told_at_once_and_drawn_at_the_end(live: Stack) -> None:
    verdicts = await live.submit(*REFUNDS)
    card = await live.card(verdicts[0])
    await live.click(verdicts[0], Action.APPROVE_ALL)
    await live.card(verdicts[0], says("56 approved"))
    for place, verdict in enumerate(verdicts[:-1]):
        await live.execute(verdict, ok=place != 16, summary="no funds")
        if place % 10 == 0 or place == 16:
            await live.nothing_is_left()

    assert len(live.calls("chat.update")) == 1
    await live.note(card, "*Call 17:* ❌ *Approved*, but it failed")
    await live.execute(verdicts[-1])

    await live.card(verdicts[0], says("55 done, 1 failed"))
    await live.drawn(verdicts[0])
    assert len(live.calls("chat.update")) == 2
