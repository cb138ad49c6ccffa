"""Calls of separate approvals are reviewed together from the Home tab."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from keyturn.bot.ids import Action, View
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.sandbox.client import WAIT_TIMEOUT_S, UserActionFailed
from keyturn.sandbox.client import Person as Actor
from keyturn.sandbox.json_types import JsonObject, as_object, as_objects
from tests.bot.bot_stack import POLICY, Stack, supporter

MANY = load_policy(
    POLICY + "protect:\n"
    "  {pending_per_agent: 2000, requests_per_10m: 2000, flood_per_10m: 2000}\n",
    "policy.yml",
)
COUNT = 20


def text_of(view: Any) -> str:
    return json.dumps(view, ensure_ascii=False)


def home_of(state: JsonObject | None) -> str:
    return text_of((state or {}).get("home"))


async def waiting(stack: Stack, count: int = COUNT) -> list[Verdict]:
    """Request one refund in each of this many threads."""
    stack.policy = MANY
    return [
        await stack.refund(thread=f"t{n}", amount=n + 0.5, order_id=f"{78200 + n}")
        for n in range(count)
    ]


async def home(
    stack: Stack,
    user: str = "U0ANA",
    *,
    shows: str,
    timeout_s: float = WAIT_TIMEOUT_S,
) -> Actor:
    """Open the Home tab of a person, and wait until it shows these words."""
    person = stack.actor(user)
    await person.open_home()
    await person.wait_for(lambda state: shows in home_of(state) or None, timeout_s)
    return person


async def reviewing(stack: Stack, user: str = "U0ANA", count: int = COUNT) -> Actor:
    """Open the form with these calls."""
    person = await home(stack, user, shows=f"Review {count} together")
    await person.act_in_home(Action.REVIEW)
    await person.wait_for_view(lambda view: view["callback_id"] == View.CHOOSE)
    return person


async def confirmed(person: Actor, values: dict[str, object]) -> JsonObject:
    """Submit the form, and return the page with the decisions to record."""
    assert await person.submit(values) == {}
    return await person.wait_for_view(
        lambda view: view["callback_id"] == View.CHOOSE_CONFIRM
    )


async def submitted(person: Actor, values: dict[str, object] | None = None) -> None:
    """Submit the last page."""
    assert await person.submit(values or {}) == {}


def without(*numbers: int) -> dict[str, object]:
    """Return the values of the boxes when these calls are not ticked."""
    return {
        f"calls.{group}": [
            f"{index}"
            for index in range(group * 10, min(group * 10 + 10, COUNT))
            if index + 1 not in numbers
        ]
        for group in range(2)
    }


async def states(stack: Stack, verdicts: list[Verdict]) -> list[ItemState]:
    return [(await stack.item(one)).state for one in verdicts]


async def test_20_threads_are_reviewed_in_one_modal(live: Stack) -> None:
    verdicts = await waiting(live)
    ana = await reviewing(live)
    form = text_of(await ana.view())

    page = await confirmed(ana, {})
    before = await states(live, verdicts)
    await submitted(ana)

    assert all(f"order_id {78200 + n}" in form for n in range(COUNT))
    assert text_of(page).count("*20 to approve*") == 1
    assert before == [ItemState.PENDING] * COUNT
    assert await states(live, verdicts) == [ItemState.AUTHORIZED] * COUNT
    decided = await live.audit(EventName.ITEM_AUTHORIZED)
    assert len({one.request_digest for one in decided}) == 1, "one gesture"
    assert len(await live.audit(EventName.CALLS_DECIDED)) == 1, "one write"
    assert {one.data["gesture"] for one in decided} == {"modal"}
    await ana.wait_for(lambda s: "Waiting for you: 0" in home_of(s) or None)


async def test_a_call_that_ended_meanwhile_is_left_out(live: Stack) -> None:
    verdicts = await waiting(live)
    ana = await reviewing(live)
    await confirmed(ana, {})
    second = await live.approval(verdicts[1])
    await live.decide(verdicts[0], Approve(), "U0BEN")
    await live.agents.withdraw_items(frozenset({second.items[0].id}))

    await submitted(ana)

    page = await ana.wait_for_view(lambda view: "list has changed" in text_of(view))
    assert "because they changed: calls 1-2." in text_of(page)
    assert "*18 to approve*" in text_of(page)
    assert (await states(live, verdicts)).count(ItemState.PENDING) == COUNT - 2
    await submitted(ana)
    found = await states(live, verdicts)
    assert found[1] is ItemState.WITHDRAWN
    assert found.count(ItemState.AUTHORIZED) == COUNT - 1
    assert [vote.by.user for vote in (await live.item(verdicts[0])).votes] == ["U0BEN"]


async def test_a_call_that_was_reported_while_the_form_opened_needs_its_card(
    live: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = await waiting(live, 2)
    ana = await home(live, shows="Review 2 together")
    first = await live.approval(verdicts[0])
    ben = supporter("U0BEN")
    together = ReviewService.list_together

    async def reported_before(
        of: ReviewService, approvals: Sequence[str]
    ) -> Loaded | None:
        await of.report(first.id, ben, "this customer was refunded by hand")
        return await together(of, approvals)

    monkeypatch.setattr(ReviewService, "list_together", reported_before)
    await ana.act_in_home(Action.REVIEW)

    await ana.wait_for_view(lambda view: "Nothing was recorded" in text_of(view))


async def test_a_forged_member_of_the_list_is_left_out(live: Stack) -> None:
    verdicts = await waiting(live, 3)
    ana = await reviewing(live, count=3)
    await confirmed(ana, {})
    first, second, _ = [await live.approval(one) for one in verdicts]
    twin = await live.refund(thread="twin", amount=2.5, order_id="78202")
    view = as_object(await ana.view())
    binding = await live.store.cards.bound_view(live.keys, str(view["id"]))
    assert binding
    listed = [first.id, second.id, (await live.approval(twin)).id]
    name = live.keys.card(binding.approval)
    await live.store.conn.command("HSET", name, "listed", json.dumps(listed))
    await live.agents.withdraw_items(frozenset({first.items[0].id}))

    await submitted(ana)
    page = await ana.wait_for_view(lambda view: "list has changed" in text_of(view))
    await submitted(ana)

    assert "because they changed: calls 1, 3." in text_of(page)
    assert await states(live, [*verdicts[1:], twin]) == [
        ItemState.AUTHORIZED,
        ItemState.PENDING,
        ItemState.PENDING,
    ]


async def test_only_who_may_decide_a_call_is_offered_it(live: Stack) -> None:
    verdicts = await waiting(live, 3)
    ids = [(await live.item(one)).id for one in verdicts]
    ana = await home(live, shows="Review 3 together")
    # As an attacker who forges the requests of their client.
    dan = await home(live, "U0DAN", shows="Waiting for others: 3")
    view = as_object((await ana.state())["home"])
    forged = next(
        as_object(block["accessory"])
        for block in as_objects(view["blocks"])
        if as_object(block.get("accessory")).get("action_id") == Action.REVIEW
    )
    assert forged["value"] == " ".join(ids)
    live.sandbox.workspace.homes["U0DAN"].document["blocks"] = view["blocks"]

    await dan.act_in_home(Action.REVIEW)

    await dan.wait_for_view(
        lambda view: "None of these calls waits for you" in text_of(view)
    )


async def test_a_row_approves_its_call_in_one_click(live: Stack) -> None:
    verdicts = await waiting(live, 1)
    ana = await home(live, shows="Waiting for you: 1")

    await ana.act_in_home(Action.APPROVE_ROW)

    assert await states(live, verdicts) == [ItemState.AUTHORIZED]
    await ana.wait_for(lambda s: "Waiting for you: 0" in home_of(s) or None)
    (event,) = await live.audit(EventName.ITEM_AUTHORIZED)
    assert event.data["gesture"] == "app_home"


async def test_a_row_that_hides_something_decides_nothing(live: Stack) -> None:
    verdicts = await waiting(live, 1)
    ana = await home(live, shows="Waiting for you: 1")
    approval = await live.approval(verdicts[0])
    ben = supporter("U0BEN")
    await live.reviews.report(approval.id, ben, "looks odd")

    try:
        await ana.act_in_home(Action.APPROVE_ROW)
        told = text_of(await ana.wait_for_view())
    except UserActionFailed:
        told = "the tab was refreshed: the row has no Approve any more"

    assert "no longer shows everything" in told or "no Approve" in told
    assert await states(live, verdicts) == [ItemState.PENDING]


async def test_redacted_arguments_are_in_no_row_and_no_form(live: Stack) -> None:
    live.put_policy(
        ("  process_refund:\n", "  process_refund:\n    redact: [args.note]\n")
    )
    for n in range(2):
        await live.refund(thread=f"t{n}", order_id=f"7829{n}", note="canary-4711")
    ana = await reviewing(live, count=2)

    told = text_of(await ana.home()) + text_of(await ana.view())

    assert "canary-4711" not in told
