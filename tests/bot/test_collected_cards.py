"""Calls of several threads share one card if the policy has a `batch` rule."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import timedelta

import pytest

from keyturn.bot.blocks import Message, ensure_valid_message
from keyturn.bot.cards import table
from keyturn.bot.cards.channel_messages import flood_message
from keyturn.bot.delivery import card_publisher
from keyturn.bot.delivery.card_publisher import CardPublisher, RateLimitDelay
from keyturn.bot.delivery.collecting import can_share, group_of
from keyturn.bot.ids import Action, seal
from keyturn.bot.limits import POST, UPDATE, Call
from keyturn.gateway.api.operations import MAX_NAME
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.precedents import Past, Precedent
from keyturn.gateway.approvals.record import Approval, Waiting, collected
from keyturn.gateway.approvals.requirement import Notify, Requirement, Role
from keyturn.gateway.approvals.timing import TimerKind
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import BatchRule, Policy
from keyturn.gateway.protocol.records import ItemState, Tier, Verb
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide import reviews
from keyturn.gateway.service.people.queue import ReviewQueue
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import (
    CHANNEL,
    DAN,
    NOTIFY_DM,
    POLICY,
    TEAM,
    Stack,
    has_button,
    says,
)
from tests.bot.listeners.test_time import PATIENT, PATIENT_TEXT
from tests.bot.markup_audit import assert_tame
from tests.bot.samples import KEY, TWO, a_refund, an_approval, an_item
from tests.bot.strategies import CANARY
from tests.bot.tampering import click_with, expire
from tests.conftest import eventually
from tests.levels import size
from tests.stored_records import put_detail


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


async def shown(stack: Stack, words: str) -> JsonObject:
    """Wait until the first card shows these words."""

    async def is_so() -> bool:
        return says(words)((await cards(stack))[0])

    await eventually(is_so)
    return (await cards(stack))[0]


async def three(stack: Stack) -> tuple[list[Verdict], JsonObject, str]:
    """Submit refunds in three threads; return them, their card and its ts."""
    verdicts = [await stack.refund(f"t{n}", amount=100 + n) for n in range(3)]
    (card,) = await posted(stack)
    return verdicts, card, str(card["ts"])


async def test_a_call_that_is_alone_gets_its_own_card(live: Stack) -> None:
    live.policy = batched("within: 1s")
    verdict = await live.refund()

    card = await live.card(verdict)
    assert has_button(card, Action.APPROVE)


async def test_an_edited_call_stays_where_it_was_decided(live: Stack) -> None:
    verdicts, card, ts = await three(live)
    ana = live.actor("U0ANA")
    await ana.click(CHANNEL, ts, Action.VIEW_ALL, chosen="#1")
    await ana.wait_for_view()
    await ana.act_in_view(Action.EDIT)
    assert await ana.submit({"field:0": 90}) == {}

    card = await shown(live, "Approve all 2")
    assert "90" in str(card["blocks"])
    assert (await live.approval(verdicts[0])).items[0].state == "authorized"
    await live.note(card, "100 → 90", "Call 1")
    assert len(await cards(live)) == 1


async def test_all_are_approved_by_one_click_in_one_write(live: Stack) -> None:
    verdicts, card, ts = await three(live)

    await live.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

    assert await states(live, verdicts) == ["authorized"] * 3
    (whole,) = await live.audit(EventName.CALLS_DECIDED)
    assert whole.data["approved"] == "0-2"
    assert whole.data["gesture"] == "button"
    await live.note(card, "Decided together")
    card = await shown(live, "3 approved")
    assert not has_button(card, Action.APPROVE_ALL)

    for verdict in verdicts:
        await live.execute(verdict)

    await shown(live, "3 done")
    assert len(live.calls(UPDATE)) <= 3


async def test_a_choice_approves_edits_and_rejects_at_once(live: Stack) -> None:
    verdicts, _card, ts = await three(live)
    ana = live.actor("U0ANA")

    await ana.click(CHANNEL, ts, Action.CHOOSE)
    await ana.act_in_view(Action.CHOOSE_EDIT, chosen="Call 2")
    assert await ana.submit({"field:0": 9}) == {}
    view = await ana.wait_for_view(lambda one: "101 → 9" in str(one))
    boxes = [row for row in view["blocks"] if row["type"] == "input"]
    await ana.submit({str(boxes[0]["block_id"]): ["0", "1"], "others": "reject"})
    await ana.submit({"reason": "This one was refunded."})

    found = [(await live.item(one)) for one in verdicts]
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


async def test_only_calls_of_one_task_share_a_card(live: Stack) -> None:
    live.policy = batched("by: task, within: 10m, up_to: 2")
    await live.card(await live.refund("t0", amount=1))
    first = await live.refund("t1", task="nightly", amount=2)
    other = await live.refund("t2", task="weekly", amount=3)
    last = await live.refund("t3", task="nightly", amount=4)

    _, shared = await posted(live, 2)
    assert says("Approve all 2")(shared)
    card_of = live.store.collected_cards.card_of
    ids = [(await live.approval(one)).id for one in (first, last, other)]
    on = [await card_of(live.keys, one) for one in ids]
    assert on[0] == on[1]
    assert on[2] is None


ALONE = an_approval(a_refund(), requester=DAN)
DM = Role(name="direct", users=("U0BEN",), notify=Notify.DM)
RAN = Precedent(call="ap_1.0", state=ItemState.EXECUTED, agent="support-agent")


@pytest.mark.parametrize(
    "other",
    [
        ALONE.with_(agent="billing"),
        ALONE.with_(task="nightly"),
        ALONE.with_(channel="C0ELSE"),
        ALONE.with_(requester=None),
        ALONE.with_(waiting=Waiting(remind_at_ms=1)),
        ALONE.replacing(a_refund(requirement=TWO)),
        ALONE.replacing(a_refund(allow=(Verb.APPROVE,))),
        ALONE.with_(items=(an_item({}, tool="send_email"),)),
    ],
)
def test_calls_that_differ_in_more_than_arguments_do_not_share(other: Approval) -> None:
    alike = ALONE.with_(items=(a_refund(id="ap_2.0"),), id="ap_2")
    assert group_of(alike) == group_of(ALONE)
    assert group_of(other) != group_of(ALONE)


@pytest.mark.parametrize(
    "alone",
    [
        an_approval(an_item({"note": "a word " * 24})),
        an_approval(a_refund(past=Past(precedents=(RAN,)))),
        an_approval(a_refund(requirement=Requirement(approvals=1, of=(DM,)))),
        an_approval(a_refund(), a_refund(index=1)),
        an_approval(a_refund(tier=Tier.ESCALATE)),
    ],
    ids=["too long", "the same ran", "by direct message", "two calls", "escalated"],
)
def test_a_call_that_others_hide_or_delay_has_its_own_card(alone: Approval) -> None:
    assert can_share(an_approval(a_refund()))
    assert not can_share(alone)


async def test_the_same_call_twice_has_two_cards(live: Stack) -> None:
    live.policy = batched("within: 1s, up_to: 2")
    for verdict in [await live.refund(f"t{n}", amount=9) for n in range(2)]:
        await live.card(verdict, says("*The same call* waits on another"))


async def states(stack: Stack, verdicts: list[Verdict]) -> list[str]:
    """Return the state of each call."""
    return [(await stack.item(one)).state.value for one in verdicts]


async def notes(stack: Stack, card: JsonObject, words: str) -> list[JsonObject]:
    """Return the replies with these words under a card."""
    return [one for one in await stack.notes(card) if says(words)(one)]


OVER_100 = "raise: [{to: escalate, when: args.amount > 100, because: over 100}]"
OVER_1 = OVER_100.replace("100", "1")


async def test_cards_from_before_the_rule_stay_as_they_are(live: Stack) -> None:
    live.policy = PATIENT
    verdicts = [await live.refund(f"t{n}", amount=100 + n) for n in range(2)]
    old = [await live.card(one) for one in verdicts]
    await live.nothing_is_left()
    live.policy = batched("within: 10m, up_to: 2")
    for verdict in verdicts:
        await live.ring(verdict, TimerKind.REMIND)
    for card in old:
        await live.note(card, "Still waiting")

    await live.actor("U0ANA").click(CHANNEL, str(old[0]["ts"]), Action.APPROVE)

    await live.card(verdicts[0], lambda card: not has_button(card, Action.APPROVE))
    assert len(await cards(live)) == 2


async def test_the_last_call_on_a_card_can_be_decided_there(live: Stack) -> None:
    verdicts, card, ts = await three(live)
    live.policy = batched("within: 10m, up_to: 3", OVER_100)
    await posted(live, 3)

    card = await shown(live, "Approve all 1")
    assert "1 × process_refund" in str(card["blocks"])
    await live.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

    assert await states(live, verdicts) == ["authorized", "pending", "pending"]


async def test_a_card_that_all_have_left_says_so(live: Stack) -> None:
    await three(live)
    live.policy = batched("within: 10m, up_to: 3", OVER_1)

    messages = live.actor("U0ANA")
    await messages.message_with(
        CHANNEL, lambda one: "a card of its own now" in str(one["blocks"])
    )
    await eventually(lambda: have_own_cards(live))
    assert not [c for c in await cards(live) if has_button(c, Action.APPROVE_ALL)]


async def have_own_cards(stack: Stack) -> bool:
    found = await cards(stack)
    return sum(has_button(one, Action.APPROVE) for one in found) == 3


async def test_a_moved_up_call_is_not_taken_for_another(live: Stack) -> None:
    verdicts, _card, ts = await three(live)
    ana = live.actor("U0ANA")
    await ana.click(CHANNEL, ts, Action.CHOOSE)
    view = await ana.wait_for_view()
    boxes = [row for row in view["blocks"] if row["type"] == "input"]
    await ana.submit({str(boxes[0]["block_id"]): ["2"], "others": "leave"})
    await ana.wait_for_view(lambda one: "1 to approve" in str(one))
    first = (await live.approval(verdicts[0])).id
    await live.store.collected_cards.leave(live.keys, first)

    await ana.submit({})

    await ana.wait_for_view(lambda one: "nothing was recorded" in str(one))
    assert await states(live, verdicts) == ["pending"] * 3


async def test_calls_that_expire_together_lose_their_buttons(live: Stack) -> None:
    verdicts, card, ts = await three(live)
    for verdict in verdicts:
        await expire(live, await live.approval(verdict))

    # Late, and before a sweep.
    await live.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)
    await live.sweeper.sweep()

    card = await shown(live, "3 expired")
    assert not has_button(card, Action.APPROVE_ALL)
    assert await states(live, verdicts) == ["expired"] * 3
    await live.nothing_is_left()
    assert len(live.calls(UPDATE)) <= 3


async def test_a_corrupt_record_does_not_stop_the_others(live: Stack) -> None:
    verdicts, _card, ts = await three(live)
    broken = (await live.approval(verdicts[1])).id
    conn, keys = live.store.conn, live.keys
    await put_detail(conn, keys, broken, tier="{")
    await conn.command("ZADD", keys.expiry, 1, keys.listed(broken))
    await live.sweeper.sweep()

    await shown(live, "Approve all 2")
    await live.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE_ALL)

    await shown(live, "2 approved")
    assert await states(live, [verdicts[0], verdicts[2]]) == ["authorized"] * 2


async def test_a_card_that_cannot_be_displayed_offers_to_reject_each_call(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Message:
        return Message(blocks=({"type": "nonsense"},), text="x")

    monkeypatch.setattr(card_publisher, "card", broken)
    async with stack.running():
        verdicts = [await stack.refund(f"t{n}", amount=100 + n) for n in range(3)]
        ana = stack.actor("U0ANA")
        card = await ana.message_with(CHANNEL, says("cannot be displayed"))
        assert not has_button(card, Action.APPROVE_ALL)

        await ana.click(CHANNEL, str(card["ts"]), Action.REJECT, chosen="Call 2")
        await ana.submit({"reason": "No."})

        assert await states(stack, verdicts) == ["pending", "rejected", "pending"]


async def test_a_card_holds_as_many_calls_as_it_shows_whole(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "TABLE_CHARS", 3_000)
    stack.policy = batched("within: 10m, up_to: 40")
    async with stack.running():
        for n in range(40):
            await stack.refund(f"t{n}", amount=n, note="n" * 55, order_id="7" * 55)

        # The others wait with those that come after them.
        (card,) = await posted(stack)
        assert "Approve all 20" in str(card["blocks"])


async def test_other_reviewers_for_all_calls_keep_the_card(live: Stack) -> None:
    verdicts, _card, ts = await three(live)
    live.policy = batched("within: 10m, up_to: 3", "needs: senior")

    async def asks_others() -> bool:
        return "S0SENIOR" in str((await cards(live))[0]["blocks"])

    await eventually(asks_others)
    await live.nothing_is_left()

    assert len(await cards(live)) == 1
    # The people who were required first are still required.
    for user in ("U0ANA", "U0CHLOE"):
        await live.actor(user).click(CHANNEL, ts, Action.APPROVE_ALL)
        await live.nothing_is_left()
    assert await states(live, verdicts) == ["authorized"] * 3


async def test_an_extended_call_is_reminded_of_again(live: Stack) -> None:
    live.policy = batched(
        "within: 10m, up_to: 3", tiers="  approve: {remind_at: 50%}\n"
    )
    verdicts, card, ts = await three(live)
    for verdict in verdicts:
        await live.ring(verdict, TimerKind.REMIND)
    await live.note(card, "Still waiting", "The first of its calls expires")
    await live.nothing_is_left()
    assert len(await notes(live, card, "Still waiting")) == 1
    ana = live.actor("U0ANA")
    await ana.click(CHANNEL, ts, Action.VIEW_ALL, chosen="#2")
    await ana.wait_for_view()
    await ana.act_in_view(Action.EXTEND)
    await live.note(card, "extended the deadline")

    await live.ring(verdicts[1], TimerKind.REMIND)

    async def are_two() -> bool:
        return len(await notes(live, card, "Still waiting")) == 2

    await eventually(are_two)


async def test_a_seal_over_other_calls_decides_nothing(live: Stack) -> None:
    verdicts, card, _ = await three(live)
    # Of the same tenant and real, so that only the seal can reveal it.
    other = await live.refund("t9", amount=109)
    members = [await live.approval(one) for one in verdicts]
    extra = await live.approval(other)
    card_id = await live.store.collected_cards.card_of(live.keys, members[0].id)
    assert card_id
    manipulated = collected(card_id, [*members[:2], extra])
    value = seal(
        manipulated,
        None,
        key=live.config.seal_key,
        team=TEAM,
        purpose=Action.APPROVE_ALL,
    )

    await click_with(live, card, Action.APPROVE_ALL, value)

    await live.told("U0ANA", "nothing was recorded")
    assert await states(live, [*verdicts, other]) == ["pending"] * 4


# The calls of an agent that floods people share one card, and notify nobody.


FLOOD = 3
CALLS = size(deep=53, short=20)
CROWD = size(deep=202, short=22)
FLOODS = f"protect: {{flood_per_10m: {FLOOD}}}\n"
GROUP = "<!subteam^S0SUPPORT>"
_LONG = CANARY + "x" * (MAX_NAME - len(CANARY))


@pytest.fixture
def flooded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    # Posted once all of them are there, and not after ten seconds.
    rule = BatchRule(within=timedelta(minutes=10), up_to=CALLS - FLOOD)
    monkeypatch.setattr(reviews, "_FLOOD", rule)
    stack.put_policy(of=POLICY + FLOODS)
    return stack


async def refunds(stack: Stack, *numbers: int) -> list[Verdict]:
    """Submit a refund of another order for each number."""
    return [
        await stack.refund(f"t{n}", amount=10 + n, order_id=f"{n}") for n in numbers
    ]


async def test_a_flood_is_one_card_and_one_message(flooded: Stack) -> None:
    async with flooded.running():
        ana = flooded.actor("U0ANA")
        await refunds(flooded, *range(FLOOD))
        before = await posted(flooded, FLOOD)
        await refunds(flooded, *range(FLOOD, CALLS))
        # The hostile one is a transfer, which two people approve on its own card.
        hostile = await flooded.submit(("wire_money", {"n": 1}), thread="hostile")

        told = await ana.message_with(CHANNEL, says(f"{FLOOD + 1} in ten minutes"))
        alone = await flooded.card(hostile[0])
        shared = await ana.message_with(CHANNEL, says(f"Approve all {CALLS - FLOOD}"))
        cards = await posted(flooded, FLOOD + 2)

    assert all(GROUP in str(card["blocks"]) for card in before)
    assert re.search(r"Waiting calls:.*\d × process_refund", str(told["blocks"]))
    assert has_button(alone, Action.APPROVE)
    assert says("No notifications for now")(shared)
    assert GROUP not in str(shared["blocks"])
    assert len(cards) == FLOOD + 2


async def test_a_flood_names_only_the_tools_of_its_channel(flooded: Stack) -> None:
    async with flooded.running():
        await flooded.submit(("lonely", {"n": 1}), ("lonely", {"n": 2}), thread="t")
        for n in range(FLOOD):
            await flooded.refund(f"t{n}", order_id=f"{n}")
        ana = flooded.actor("U0ANA")
        told = await ana.message_with(CHANNEL, says("in ten minutes"))

    assert says(" × process_refund")(told)
    assert says("2 in other channels")(told)
    assert not says("lonely")(told)


async def test_a_hostile_call_in_a_flood_is_marked_on_top_of_its_card(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_one = min(CROWD - 2, 50)
    rule = BatchRule(within=timedelta(minutes=10), up_to=on_one)
    monkeypatch.setattr(reviews, "_FLOOD", rule)
    limits = "pending_per_agent: 1000, requests_per_10m: 1000, flood_per_10m: 2"
    summed = ("process_refund:\n", "process_refund:\n    totals: args.amount\n")
    stack.put_policy(summed, of=f"{POLICY}protect: {{{limits}}}\n")
    async with stack.running():
        for n in range(CROWD):
            amount = 950 if n == CROWD - 5 else 20 + n % 5
            await stack.refund(f"t{n}", amount=amount, order_id=f"{n}")
        ana = stack.actor("U0ANA")
        await ana.message_with(CHANNEL, says("in ten minutes"))
        marked = await ana.message_with(CHANNEL, says("amount is far from the others"))
        found = await posted(stack, 2 + (CROWD - 2) // on_one)
        await stack.bot_is_quiet()

    (table,) = [one for one in as_objects(marked["blocks"]) if one["type"] == "table"]
    _heading, first, *_ = str(table["rows"]).split("], [")
    assert "⚠️" in first
    assert f"'{CROWD - 5}'" in first
    assert says(f"Approve all {on_one}")(marked)
    assert len(found) == 2 + (CROWD - 2) // on_one
    assert sum(GROUP in str(card["blocks"]) for card in found) == 2


async def test_the_message_about_a_flood_freezes_the_agent(flooded: Stack) -> None:
    async with flooded.running():
        await refunds(flooded, *range(FLOOD + 1))
        ana = flooded.actor("U0ANA")
        told = await ana.message_with(
            CHANNEL, lambda m: has_button(m, Action.FREEZE_AGENT)
        )
        ts = str(told["ts"])

        await flooded.actor("U0EVE").click(CHANNEL, ts, Action.FREEZE_AGENT)
        await flooded.told("U0EVE", "Only support or senior")
        assert not await flooded.reviews.freezes.frozen()
        (row,) = [one for one in as_objects(told["blocks"]) if one["type"] == "actions"]
        (button,) = as_objects(row["elements"])
        other = str(button["value"]).replace("support", "billing")
        await click_with(flooded, told, Action.FREEZE_AGENT, other)
        await flooded.told("U0ANA", "does not belong")
        assert not await flooded.reviews.freezes.frozen()
        await ana.click(CHANNEL, ts, Action.FREEZE_AGENT)
        await flooded.told("U0ANA", "The agent is frozen")

    (freeze,) = await flooded.reviews.freezes.frozen()
    assert (str(freeze.scope), freeze.by) == ("agent support", f"{TEAM}/U0ANA")


@pytest.mark.parametrize(
    ("agent", "has_freeze"),
    [(f"{CANARY} :eyes: a.com", True), (CANARY + "`*_<!here>", True), (_LONG, False)],
    ids=["plain", "markup", "long"],
)
def test_the_name_of_an_agent_that_floods_is_not_markup(
    agent: str, *, has_freeze: bool
) -> None:
    event = Event(
        name=EventName.AGENT_FLOODS,
        tenant="default",
        agent=agent,
        thread="t1",
        data={"requests": "4"},
    )

    message = flood_message(event, {f"`{CANARY}` <!here>": 4}, 0, key=KEY, team=TEAM)

    ensure_valid_message(message.blocks, message.text)
    texts = [one for one in message.blocks if one["type"] != "actions"]
    assert_tame(texts, message.text)
    assert (message.blocks[-1]["type"] == "actions") is has_freeze


async def test_a_flood_is_counted_once_if_slack_limits_messages(
    flooded: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited, counted, is_limited = list[str](), list[str](), asyncio.Event()
    take, count = CardPublisher.take, ReviewQueue.waiting_by_tool

    def refused(
        self: CardPublisher, method: str, channel: str = "", keep: int = 0
    ) -> None:
        if method == POST and is_limited.is_set():
            limited.append(channel)
            raise RateLimitDelay(Call(method, channel), 0.01)
        take(self, method, channel, keep)

    async def counting(
        self: ReviewQueue, agent: str, channel: str
    ) -> tuple[Mapping[str, int], int]:
        counted.append(agent)
        return await count(self, agent, channel)

    monkeypatch.setattr(CardPublisher, "take", refused)
    monkeypatch.setattr(ReviewQueue, "waiting_by_tool", counting)
    async with flooded.running():
        await refunds(flooded, *range(FLOOD))
        await posted(flooded, FLOOD)
        is_limited.set()
        await refunds(flooded, FLOOD)
        await eventually(lambda: len(limited) > 2)
        is_limited.clear()
        await flooded.actor("U0ANA").message_with(
            CHANNEL, lambda m: has_button(m, Action.FREEZE_AGENT)
        )

    assert counted == ["support"]


async def test_a_reminder_of_a_flood_notifies_people(
    flooded: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    flooded.put_policy(of=PATIENT_TEXT + FLOODS)
    one_second = BatchRule(within=timedelta(seconds=1))
    monkeypatch.setattr(reviews, "_FLOOD", one_second)
    async with flooded.running():
        *_, last = await refunds(flooded, *range(FLOOD + 1))
        card = await flooded.card(last, says("No notifications for now"))
        await flooded.ring(last, TimerKind.REMIND)

        await flooded.note(card, GROUP)
        await flooded.card(last, lambda m: not says("No notifications for now")(m))


async def test_after_its_reminder_a_flood_still_shares_its_card(flooded: Stack) -> None:
    flooded.put_policy(NOTIFY_DM, of=PATIENT_TEXT + FLOODS)
    async with flooded.running():
        ana = flooded.actor("U0ANA")
        *_, last = await refunds(flooded, *range(CALLS))
        shared = await ana.message_with(CHANNEL, says(f"Approve all {CALLS - FLOOD}"))
        await flooded.ring(last, TimerKind.REMIND)

        await flooded.note(shared, GROUP)
        await flooded.bot_is_quiet()
        cards = await posted(flooded)
        copies = [m for m in await ana.messages("D0ANA") if m.get("metadata")]

    assert len(cards) == FLOOD + 1
    assert len(copies) == FLOOD


async def test_people_who_had_enough_cards_are_not_notified(flooded: Stack) -> None:
    policy = POLICY.replace("[S0SUPPORT], users: [U0DAN]", "[S0SUPPORT, S0SENIOR]")
    flooded.put_policy(of=policy + "attention: {per_person: 2}\n")
    seniors, keys = "<!subteam^S0SENIOR>", flooded.keys
    async with flooded.running():
        first = await flooded.refund("t1")
        one = await flooded.card(first)
        # Another card at the same time notified the seniors only.
        at_ms = (await flooded.approval(first)).created_at_ms
        await flooded.store.cards.note_notified(keys, "ap_x", ["S0SENIOR"], at_ms)
        two = await flooded.card(await flooded.refund("t2"))
        three = await flooded.card(
            await flooded.refund("t3"), says("many requests lately")
        )
        transfer = await flooded.submit(("wire_money", {"n": 1}), thread="t4")
        four = await flooded.card(transfer[0])

    assert [GROUP in str(card) for card in (one, two, three, four)] == [
        True,
        True,
        False,
        True,
    ]
    assert [seniors in str(card) for card in (one, two, three)] == [True, False, False]
