"""A card with a mistake shows whether reviewers notice it, and can never run."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keyturn.bot.delivery import publisher
from keyturn.bot.delivery.seeded_defects import SeededDefects
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.decisions import (
    Approve,
    Unknown,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval, short_id
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.wire import Refused
from keyturn.gateway.service.report.audit_reading import StatisticsService
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.approvals.builders import click_on
from tests.bot.bot_stack import (
    CHANNEL,
    POLICY,
    Stack,
    blocks_of,
    claim_of,
    has_button,
    says,
    supporter,
)
from tests.bot.listeners.test_review_together import (
    confirmed,
    home,
    home_of,
    reviewing,
    submitted,
)
from tests.streams import audit_entries

RULE = """
seeded_defects:
  every: 1h
  calls:
    - tool: process_refund
      agent: support
      args: {amount: 890, order_id: "78291"}
      says: The customer asks for 8.90 back.
      defect: The amount is a hundred times what the customer asks for.
"""
Shown = tuple[Approval, JsonObject]
SEEDED = load_policy(POLICY + RULE, "policy.yml")


@pytest.fixture
def stack(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Stack:
    # The bot looks when it starts, and the tests do it after that.
    monkeypatch.setattr(publisher, "LOOK_S", 3600.0)
    stack.policy = SEEDED
    return stack


async def look(stack: Stack) -> None:
    """Look as the bot that publishes does."""
    async with stack.card_publisher() as posting:
        await SeededDefects(stack.reviews, posting, changed=lambda: None).look()


async def posted(stack: Stack) -> Shown:
    """Make a seeded defect due, and return it with its card."""
    seeded = stack.store.seeded
    await seeded.note(stack.keys, due_ms=1)
    await look(stack)
    card = (await seeded.read(stack.keys)).card
    assert card is not None
    message = await stack.actor("U0ANA").message_with(
        CHANNEL, lambda m: card.shown.id in blocks_of(m)
    )
    return card.shown, message


@pytest.fixture
async def shown(stack: Stack) -> AsyncIterator[Shown]:
    """Give the defect and its card; the bot looks for itself only when it starts."""
    found = await posted(stack)
    async with stack.running():
        yield found


async def names(stack: Stack) -> list[EventName]:
    log = await audit_entries(stack.store.conn, stack.keys)
    return [one.name for one in log if one.name.startswith("seeded")]


async def test_its_card_looks_like_that_of_a_real_call(
    stack: Stack, shown: Shown
) -> None:
    _, message = shown
    real = await stack.card(await stack.refund(amount=890, order_id="78291"))

    def kinds(card: JsonObject) -> list[Any]:
        return [block["type"] for block in json.loads(blocks_of(card))]

    assert kinds(message)[:2] == kinds(real)[:2]
    assert message["blocks"][0]["text"] == real["blocks"][0]["text"]
    assert has_button(message, Action.APPROVE)
    assert has_button(message, Action.REJECT)


async def test_approving_it_counts_as_rubber_stamping(
    stack: Stack, shown: Shown
) -> None:
    _, message = shown
    ts = str(message["ts"])

    await stack.actor("U0ANA").click(CHANNEL, ts, Action.APPROVE)

    await stack.told("U0ANA", "you approved it")
    await stack.actor("U0ANA").message_with(
        CHANNEL, says("a hundred times what the customer asks for")
    )
    await stack.bot_is_quiet()
    await look(stack)
    total = (await StatisticsService(stack.store).metrics()).total
    assert (total.rubber_stamped.part, total.rubber_stamped.whole) == (1, 1)
    assert total.evaluated == total.runs == total.corrected.whole == 0
    assert await names(stack) == [EventName.SEEDED_SHOWN, EventName.SEEDED_ANSWERED]
    assert (await stack.store.seeded.read(stack.keys)).card is None


@pytest.mark.parametrize("action", [Action.REJECT, Action.EDIT, Action.RESPOND])
async def test_not_approving_it_is_noticing_it(
    stack: Stack, shown: Shown, action: Action
) -> None:
    _, message = shown
    await stack.actor("U0BEN").click(CHANNEL, str(message["ts"]), action)

    await stack.told("U0BEN", "Well seen")
    total = (await StatisticsService(stack.store).metrics()).total
    assert (total.rubber_stamped.part, total.rubber_stamped.whole) == (0, 1)


async def test_one_answer_counts_and_others_do_not_decide(
    stack: Stack, shown: Shown
) -> None:
    seeded, message = shown
    ts = str(message["ts"])
    await stack.actor("U0EVE").click(CHANNEL, ts, Action.APPROVE)
    await stack.told("U0EVE", "Please ask one of them")
    await stack.actor("U0BEN").click(CHANNEL, ts, Action.TAKE)
    await stack.told("U0BEN", "does nothing on this card")
    assert await names(stack) == [EventName.SEEDED_SHOWN]

    card = (await stack.store.seeded.read(stack.keys)).card
    assert card is not None
    assert card.shown.id == seeded.id
    ana = supporter("U0ANA")
    service = stack.reviews.seeded_defects
    assert await service.answer(card, ana, has_approved=True)
    assert not await service.answer(card, ana, has_approved=False)
    await stack.actor("U0BEN").click(CHANNEL, ts, Action.REJECT)
    await stack.told("U0BEN", "it has ended")


async def test_nothing_can_run_it_by_any_way(stack: Stack) -> None:
    approval, _ = await posted(stack)
    claim, ana = claim_of(approval.items[0]), supporter("U0ANA")

    assert await stack.reviews.read(approval.id) is None
    assert await stack.reviews.decide(click_on(approval), Approve(), ana) == Unknown()
    assert isinstance(await stack.agents.claim(claim), Refused)
    assert await stack.agents.outcomes(claim.ref) == ()
    assert [one async for one in stack.reviews.queue.waiting()] == []
    conn = stack.store.conn
    for stream in (stack.keys.jobs, stack.keys.outbox):
        assert await conn.command("XLEN", stream) == 0


async def test_it_expires_quietly(stack: Stack) -> None:
    _, message = await posted(stack)
    seeded = await stack.store.seeded.read(stack.keys)
    assert seeded.card is not None
    before = await stack.actor("U0ANA").messages(CHANNEL)
    past = seeded.card.shown.with_(expires_at_ms=1)
    over = seeded.with_(card=seeded.card.with_(shown=past)).model_dump_json()
    await stack.store.conn.command("SET", stack.keys.seeded, over)

    await look(stack)

    after = await stack.actor("U0ANA").messages(CHANNEL)
    assert [m["ts"] for m in after] == [m["ts"] for m in before]
    (card,) = [m for m in after if m["ts"] == message["ts"]]
    assert "Nobody answered it in time" in blocks_of(card)
    assert "Refund 890 for order 78291" in blocks_of(card)
    total = (await StatisticsService(stack.store).metrics()).total
    assert total.seeded == {"shown": 1, "expired": 1}
    assert total.rubber_stamped.whole == 0


ANSWERED = [EventName.SEEDED_SHOWN, EventName.SEEDED_ANSWERED]
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


async def test_its_row_on_home_looks_like_that_of_a_real_call(
    stack: Stack, shown: Shown
) -> None:
    seeded, _ = shown
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


async def test_who_may_not_decide_it_sees_it_nowhere(
    stack: Stack, shown: Shown
) -> None:
    seeded, _ = shown
    eve = await home(stack, "U0EVE", shows="Nothing waits for you")
    assert seeded.id not in home_of(await eve.state())
    assert short_id(seeded.id) not in await listed(stack, "U0EVE")
    for name in (seeded.id, short_id(seeded.id)):
        assert "no such approval" in await listed(stack, "U0EVE", f"show {name}")


async def test_approving_its_row_counts_and_removes_it(
    stack: Stack, shown: Shown
) -> None:
    seeded, _ = shown
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


async def test_a_form_over_it_is_good_for_who_opened_it_alone(
    stack: Stack, shown: Shown
) -> None:
    seeded, _ = shown
    ana = await home(stack, shows=seeded.id)
    await ana.act_in_home(Action.VIEW_ALL)
    view = await ana.wait_for_view(lambda view: "Full details" in json.dumps(view))
    await stack.store.conn.command("DEL", stack.keys.view(str(view["id"])))

    assert await ana.submit({}) == {}

    await ana.wait_for_view(lambda view: "Not done" in json.dumps(view))
    assert await names(stack) == [EventName.SEEDED_SHOWN]


async def test_all_of_it_is_shown_and_approved_there(
    stack: Stack, shown: Shown
) -> None:
    seeded, message = shown
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


async def test_reviewing_it_with_others_counts(stack: Stack, shown: Shown) -> None:
    seeded, _ = shown
    real = await stack.refund(amount=890, order_id="78292")
    ana = await reviewing(stack, count=2)
    await confirmed(ana, {})

    await submitted(ana)

    await ana.wait_for_view(lambda view: "you approved it" in json.dumps(view))
    assert not (await stack.item(real)).is_pending
    await ana.wait_for(lambda state: seeded.id not in home_of(state) or None)
    assert await names(stack) == ANSWERED


@pytest.mark.usefixtures("shown")
async def test_to_edit_it_in_a_list_of_calls_is_to_notice_it(stack: Stack) -> None:
    await stack.refund(amount=890, order_id="78292")
    ana = await reviewing(stack, count=2)
    titles = json.dumps((await ana.view() or {})["blocks"])
    number = 1 if titles.index("78291") < titles.index("78292") else 2

    await ana.act_in_view(Action.CHOOSE_EDIT, chosen=f"Call {number}")

    await ana.wait_for_view(lambda view: "Well seen" in json.dumps(view))
    assert await names(stack) == ANSWERED
    assert await rubber_stamped(stack) == (0, 1)
