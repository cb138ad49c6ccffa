"""56 calls of one turn are one card, and are decided at once."""

from __future__ import annotations

from keyturn.bot.ids import Action, Input, View
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import as_objects
from tests.bot.bot_stack import CHANNEL, POLICY, Stack
from tests.streams import audit_entries

REFUNDS: list[tuple[str, JsonObject]] = [
    ("process_refund", {"amount": n + 0.5, "order_id": f"{78200 + n}"})
    for n in range(56)
]


async def decisions(stack: Stack) -> list[Event]:
    entries = await audit_entries(stack.store.conn, stack.keys)
    return [one for one in entries if one.name is EventName.APPROVAL_DECIDED]


def states(approval: Approval) -> set[ItemState]:
    return {item.state for item in approval.items}


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


async def test_a_call_escalated_meanwhile_is_left_out(stack: Stack) -> None:
    async with stack.running():
        first, _, ts = await opened(stack)
        raised = POLICY.replace(
            "  process_refund:\n",
            "  process_refund:\n"
            "    raise: [{to: escalate, when: args.amount > 54, because: big}]\n",
        )
        stack.policy = load_policy(raised, "policy.yml")

        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

        await stack.told("U0ANA", "2 of the calls need their own review")
        approval = await stack.approval(first)
        assert [item.index for item in approval.items if item.is_pending] == [54, 55]


async def test_sorting_keeps_the_ticks_and_decides_the_same_calls(live: Stack) -> None:
    totalled = POLICY.replace(
        "  process_refund:\n", "  process_refund:\n    totals: args.amount|eur\n"
    )
    live.policy = load_policy(totalled, "policy.yml")
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
