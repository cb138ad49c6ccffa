"""A reviewer allows similar calls from a card, sees the remaining ones, and revokes."""

from __future__ import annotations

import json

import pytest

from keyturn.bot.ids import Action, Input, View
from keyturn.bot.listeners import standing as standing_listener
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.standing import bounds_of
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict, VerdictKind
from keyturn.gateway.service.submit.standing import StandingService
from keyturn.sandbox.elements import find
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, has_button, says
from tests.conftest import eventually
from tests.panics import failing

ALLOWING = POLICY.replace(
    '    description: "Refund {args.amount} for order {args.order_id}"\n',
    """    description: "Refund {args.amount} for order {args.order_id}"
    allow_similar:
      {within: 8h, uses: 20, sum: args.amount, at_most: 1000, may_differ: args.order_id}
""",
)
RULES = load_policy(ALLOWING, "policy.yml")
LIVE = "calls left"


@pytest.fixture
def allowing(stack: Stack) -> Stack:
    stack.policy = RULES
    return stack


async def open_form(stack: Stack) -> Verdict:
    verdict = await stack.refund(amount=50)
    card = await stack.card(verdict, lambda m: has_button(m, Action.ALLOW_SIMILAR))
    ana = stack.actor("U0ANA")
    await ana.click(CHANNEL, str(card["ts"]), Action.ALLOW_SIMILAR)
    await ana.wait_for_view(lambda view: view["callback_id"] == View.ALLOW_SIMILAR)
    return verdict


async def live_card(stack: Stack, words: str = LIVE) -> JsonObject:
    return await stack.actor("U0ANA").message_with(CHANNEL, says(words))


async def allowed(stack: Stack, **values: object) -> Verdict:
    verdict = await open_form(stack)
    assert await stack.actor("U0ANA").submit(values) == {}
    return verdict


async def standing_of(stack: Stack) -> Approval:
    keys = stack.keys
    (found,) = await stack.store.standing.listed(keys)
    loaded = await stack.reviews.standing.read(found)
    assert loaded
    return loaded.approval


async def test_a_form_approves_and_allows_similar_calls(allowing: Stack) -> None:
    stack = allowing
    async with stack.running():
        verdict = await allowed(stack, uses="3")

        card = await live_card(stack, "3 of 3 calls left")
        again = await stack.refund("t2", amount=20, order_id="2")
        await live_card(stack, "2 of 3 calls left")

        approved = await stack.approval(verdict)
        assert approved.items[0].state is ItemState.AUTHORIZED
        assert again.kind is VerdictKind.RUN
        assert has_button(card, Action.REVOKE)
        assert "<@U0ANA>" in json.dumps(card["blocks"])


async def test_amounts_are_written_as_in_the_description(allowing: Stack) -> None:
    stack = allowing
    stack.put_policy(("Refund {args.amount}", "Refund {args.amount|eur}"), of=ALLOWING)
    async with stack.running():
        await open_form(stack)
        ana = stack.actor("U0ANA")
        form = json.dumps(await ana.view(), ensure_ascii=False)
        assert await ana.submit({}) == {}
        await stack.refund("t2", amount=20, order_id="2")
        card = await live_card(stack, "€480.00 of €500.00")

    assert "The policy allows up to €1,000.00." in form
    limits = "at most €50.00 each, €500.00 in all"
    assert limits in json.dumps(card["blocks"], ensure_ascii=False)


async def test_a_covered_call_has_no_card(allowing: Stack) -> None:
    stack = allowing
    async with stack.running():
        await allowed(stack)
        await live_card(stack)
        verdict = await stack.refund("t2", amount=20, order_id="2")
        await live_card(stack, "9 of 10 calls left")
        await stack.execute(verdict)

        async def is_read() -> bool:
            return not await stack.store.outbox(
                stack.keys, reader="slack:default"
            ).unread_ms()

        await eventually(is_read)
        assert await stack.cards(verdict) == []


async def test_revoke_ends_it_on_its_card(allowing: Stack) -> None:
    stack = allowing
    async with stack.running():
        await allowed(stack)
        card = await live_card(stack)
        eve = stack.actor("U0EVE")
        await eve.click(CHANNEL, str(card["ts"]), Action.REVOKE)
        await stack.told("U0EVE", "Please ask one of them")
        await stack.actor("U0ANA").click(CHANNEL, str(card["ts"]), Action.REVOKE)

        after = await live_card(stack, "*Revoked* by <@U0ANA>")
        verdict = await stack.refund("t2", amount=20, order_id="2")

    assert not has_button(after, Action.REVOKE)
    assert verdict.kind is VerdictKind.HOLD


@pytest.mark.parametrize(
    ("values", "block"),
    [
        ({"uses": "21"}, Input.USES),
        ({"uses": "0"}, Input.USES),
        ({"each": "1001"}, Input.EACH),
        ({"total": "-1"}, Input.TOTAL),
        ({"each": "500", "total": "400"}, Input.EACH),
    ],
)
async def test_more_than_the_policy_lets_people_is_refused_in_the_form(
    allowing: Stack, values: dict[str, object], block: Input
) -> None:
    stack = allowing
    async with stack.running():
        verdict = await open_form(stack)
        errors = await stack.actor("U0ANA").submit(values)

    assert [*errors] == [block.value]
    assert (await stack.item(verdict)).is_pending
    assert await stack.store.standing.listed(stack.keys) == []


async def test_who_keeps_the_role_is_confirmed(
    allowing: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = allowing
    monkeypatch.setattr(standing_listener, "EVERY_S", 0.1)
    async with stack.running():
        await allowed(stack)
        await live_card(stack)

        async def is_confirmed() -> bool:
            return (await standing_of(stack)).checked_at_ms > 0

        await eventually(is_confirmed)


async def test_the_uses_are_listed(allowing: Stack) -> None:
    stack = allowing
    async with stack.running():
        await allowed(stack)
        await live_card(stack)
        await stack.refund("t2", amount=20, order_id="2")
        card = await live_card(stack, "9 of 10 calls left")
        ana = stack.actor("U0ANA")
        await ana.click(CHANNEL, str(card["ts"]), Action.USES)
        view = await ana.wait_for_view(lambda view: view["callback_id"] == View.USES)

    assert "Refund 20 for order 2" in json.dumps(view)
    assert "not started yet" in json.dumps(view)


def is_shown_as_button(card: JsonObject) -> bool:
    return bool(find(as_objects(card["blocks"]), Action.ALLOW_SIMILAR, None))


async def test_the_third_call_offers_to_allow_similar_ones(allowing: Stack) -> None:
    stack = allowing
    async with stack.running():
        ana = stack.actor("U0ANA")
        for order in ("1", "2"):
            verdict = await stack.refund(f"t{order}", amount=60, order_id=order)
            card = await stack.card(verdict)
            assert not is_shown_as_button(card)
            await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)
            await stack.bot_is_quiet()

        card = await stack.card(await stack.refund("t3", amount=50, order_id="3"))
        assert is_shown_as_button(card)
        await ana.click(CHANNEL, str(card["ts"]), Action.ALLOW_SIMILAR)
        form = await ana.wait_for_view(
            lambda view: view["callback_id"] == View.ALLOW_SIMILAR
        )

    assert "covered 2 of the last 2 calls" in json.dumps(form["blocks"])
    assert '"initial_value": "60"' in json.dumps(form["blocks"])


__all__ = ["allowing"]

WIDER = ALLOWING.replace(
    "sum: args.amount, at_most: 1000, may_differ: args.order_id}",
    "may_differ: [args.order_id, args.amount, args.note]}",
)


async def test_a_policy_changed_behind_the_form_widens_nothing(allowing: Stack) -> None:
    assert WIDER != ALLOWING
    stack = allowing
    async with stack.running():
        await open_form(stack)
        # The form shows: any order, at most 50 in one call, at most 500 in all.
        stack.put_policy(of=WIDER)

        await stack.actor("U0ANA").submit({})

        found = await stack.store.standing.listed(stack.keys)
        given = [
            loaded.approval
            for loaded in await stack.store.approvals.load_each(found)
            if not loaded.approval.items[0].is_pending
        ]
    assert [bounds_of(one) for one in given] == []


async def test_an_approved_call_is_not_told_as_not_recorded(
    allowing: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, StandingService, "propose", StoreUnavailable("A fail-over."))
    stack = allowing
    async with stack.running():
        verdict = await open_form(stack)
        ana = stack.actor("U0ANA")
        await ana.submit({})
        shown = await ana.wait_for_view(lambda one: one["callback_id"] == View.NOTICE)

    assert (await stack.item(verdict)).state is ItemState.AUTHORIZED
    assert "nothing was recorded" not in json.dumps(shown)
