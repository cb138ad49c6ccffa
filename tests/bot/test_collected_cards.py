"""Calls of several threads share one card if the policy has a `batch` rule."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, POLICY, REFUND, TEAM, Stack, has_button
from tests.conftest import eventually
from tests.streams import audit_entries


def batched(rule: str, *more: str, tiers: str = "") -> Policy:
    """Return the stack's policy, with this rule for refunds on shared cards."""
    listed = "  process_refund:\n    tier: approve\n"
    lines = "".join(f"    {line}\n" for line in (f"batch: {{{rule}}}", *more))
    text = POLICY.replace(listed, listed + lines)
    return load_policy(text.replace("tiers:\n", f"tiers:\n{tiers}"), "policy.yml")


@pytest.fixture
def stack(stack: Stack) -> Stack:
    stack.policy = batched("within: 10m, up_to: 3")
    return stack


async def cards(stack: Stack) -> list[JsonObject]:
    """Return the cards in the channel, oldest first."""
    messages = await stack.actor("U0ANA").messages(CHANNEL)
    return [m for m in messages if m.get("metadata") and not m.get("thread_ts")]


async def posted(stack: Stack, count: int = 1) -> list[JsonObject]:
    """Wait for so many cards."""

    async def are_there() -> bool:
        return len(await cards(stack)) >= count

    await eventually(are_there)
    return await cards(stack)


async def shown(
    stack: Stack, words: str, place: int = 0, *, without: str = ""
) -> JsonObject:
    """Wait until a card shows these words, and not the others."""

    async def is_so() -> bool:
        text = str((await cards(stack))[place]["blocks"])
        return words in text and not (without and without in text)

    await eventually(is_so)
    return (await cards(stack))[place]


async def three(stack: Stack) -> tuple[list[Verdict], str]:
    """Submit refunds in three threads; return them and the ts of their card."""
    verdicts = [await stack.refund(f"t{n}", amount=100 + n) for n in range(3)]
    (card,) = await posted(stack)
    return verdicts, str(card["ts"])


async def test_a_call_that_is_alone_gets_its_own_card(stack: Stack) -> None:
    stack.policy = batched("within: 1s")
    async with stack.running():
        verdict = await stack.refund()

        card = await stack.card(verdict)
        assert has_button(card, Action.APPROVE)


async def test_an_edited_call_stays_where_it_was_decided(stack: Stack) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        ana = stack.actor("U0ANA")
        await ana.click(CHANNEL, ts, Action.VIEW_ALL, chosen="#1")
        await ana.wait_for_view()
        await ana.act_in_view(Action.EDIT)
        assert await ana.submit({"field:0": 90}) == {}

        card = await shown(stack, "Approve all 2")
        assert "90" in str(card["blocks"])
        assert (await stack.approval(verdicts[0])).items[0].state == "authorized"
        (note,) = await notes(stack, ts, "100 → 90")
        assert "Call 1" in str(note["blocks"])
        assert len(await cards(stack)) == 1


async def test_all_are_approved_by_one_click_in_one_write(stack: Stack) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)

        await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

        assert await states(stack, verdicts) == ["authorized"] * 3
        entries = await audit_entries(stack.store.conn, stack.keys)
        (whole,) = [one for one in entries if one.name is EventName.CALLS_DECIDED]
        assert whole.data["approved"] == "0-2"
        assert whole.data["gesture"] == "button"
        await notes(stack, ts, "Decided together")
        card = await shown(stack, "3 approved")
        assert not has_button(card, Action.APPROVE_ALL)

        for verdict in verdicts:
            await stack.execute(verdict)

        await shown(stack, "3 done")
        updates = [one for one in stack.sandbox.calls if one.method == "chat.update"]
        assert len(updates) <= 3


async def test_a_choice_approves_edits_and_rejects_at_once(stack: Stack) -> None:
    async with stack.running():
        verdicts, ts = await three(stack)
        ana = stack.actor("U0ANA")

        await ana.click(CHANNEL, ts, Action.CHOOSE)
        await ana.act_in_view(Action.CHOOSE_EDIT, chosen="Call 2")
        assert await ana.submit({"field:0": 9}) == {}
        view = await ana.wait_for_view(lambda one: "101 → 9" in str(one))
        boxes = [row for row in view["blocks"] if row["type"] == "input"]
        await ana.submit({str(boxes[0]["block_id"]): ["0", "1"], "others": "reject"})
        await ana.submit({"reason": "This one was refunded."})

        found = [(await stack.approval(one)).items[0] for one in verdicts]
        assert [one.state for one in found] == ["authorized", "authorized", "rejected"]
        assert found[1].args["amount"] == 9


async def test_a_restart_posts_what_was_collected(stack: Stack) -> None:
    async with stack.running():
        pass
    for number in range(3):
        await stack.refund(f"t{number}", amount=100 + number)
    async with stack.running():
        await posted(stack)
    async with stack.running():
        await stack.refund("t9", amount=109)
        (card,) = await cards(stack)
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.APPROVE_ALL)
        await shown(stack, "3 approved")


async def test_only_calls_of_one_task_share_a_card(stack: Stack) -> None:
    stack.policy = batched("by: task, within: 10m, up_to: 2")
    async with stack.running():
        first = await stack.refund("t0", task="nightly", amount=1)
        alone = await stack.refund("t1", amount=2)
        await stack.card(alone)
        other = await stack.refund("t2", task="weekly", amount=3)
        last = await stack.refund("t3", task="nightly", amount=4)

        _, shared = await posted(stack, 2)
        assert "Approve all 2" in str(shared["blocks"])
        assert await are_together(stack, first, last)
        assert not await are_together(stack, first, other)


async def test_calls_of_two_requesters_do_not_share_a_card(stack: Stack) -> None:
    stack.policy = batched("within: 10m, up_to: 2")
    async with stack.running():
        first = await stack.refund("t0", amount=1)
        eve = Person(team=TEAM, user="U0EVE")
        args = {**REFUND, "amount": 2}
        call = ("process_refund", args)
        (other,) = await stack.submit(call, thread="t1", requester=eve)
        last = await stack.refund("t2", amount=3)

        (card,) = await posted(stack)
        assert "Approve all 2" in str(card["blocks"])
        assert "@U0DAN" in str(card["blocks"])
        assert await are_together(stack, first, last)
        assert not await are_together(stack, first, other)


async def are_together(stack: Stack, *verdicts: Verdict) -> bool:
    """Return whether calls share a card."""
    ids = [(await stack.approval(one)).id for one in verdicts]
    on = {await stack.store.collected_cards.card_of(stack.keys, one) for one in ids}
    return len(on) == 1 and None not in on


async def states(stack: Stack, verdicts: list[Verdict]) -> list[str]:
    """Return the state of each call."""
    return [(await stack.approval(one)).items[0].state.value for one in verdicts]


async def notes(stack: Stack, ts: str, words: str) -> list[JsonObject]:
    """Wait for a reply under a card; return those with these words."""
    found: list[JsonObject] = []

    async def is_there() -> bool:
        messages = await stack.actor("U0ANA").messages(CHANNEL)
        replies = [m for m in messages if m.get("thread_ts") == ts != m["ts"]]
        found[:] = [m for m in replies if words in str(m["blocks"])]
        return bool(found)

    await eventually(is_there)
    return found
