"""A reviewer allows similar calls from a card, sees the remaining ones, and revokes."""

from __future__ import annotations

import pytest

from keyturn.bot.ids import Action, View
from keyturn.bot.listeners import standing as standing_listener
from keyturn.gateway.approvals.standing import bounds_of
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict, VerdictKind
from keyturn.gateway.service.submit.standing import StandingService
from keyturn.sandbox.elements import find
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.bot.bot_stack import CHANNEL, POLICY, Stack, blocks_of, has_button, says
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
def allowing(live: Stack) -> Stack:
    live.policy = RULES
    return live


async def open_form(stack: Stack) -> Verdict:
    verdict = await stack.refund(amount=50)
    ana = await stack.click(verdict, Action.ALLOW_SIMILAR)
    await ana.wait_for_view(lambda view: view["callback_id"] == View.ALLOW_SIMILAR)
    return verdict


async def live_card(stack: Stack, words: str = LIVE) -> JsonObject:
    return await stack.actor("U0ANA").message_with(CHANNEL, says(words))


async def allowed(stack: Stack, **values: object) -> Verdict:
    verdict = await open_form(stack)
    assert await stack.actor("U0ANA").submit(values) == {}
    return verdict


async def test_a_form_allows_similar_calls_which_have_no_card_and_are_listed(
    allowing: Stack,
) -> None:
    verdict = await allowed(allowing, uses="3")
    card = await live_card(allowing, "3 of 3 calls left")
    again = await allowing.refund("t2", amount=20, order_id="2")
    await live_card(allowing, "2 of 3 calls left")
    ana = allowing.actor("U0ANA")
    await ana.click(CHANNEL, str(card["ts"]), Action.USES)
    listed = await ana.wait_for_view(lambda view: view["callback_id"] == View.USES)
    await allowing.execute(again)
    await allowing.nothing_is_left()

    assert (await allowing.item(verdict)).state is ItemState.AUTHORIZED
    assert again.kind is VerdictKind.RUN
    assert await allowing.cards(again) == []
    assert has_button(card, Action.REVOKE)
    assert says("<@U0ANA>")(card)
    assert "Refund 20 for order 2" in blocks_of(listed)
    assert "not started yet" in blocks_of(listed)


async def test_amounts_are_written_as_in_the_description(allowing: Stack) -> None:
    euros = ("Refund {args.amount}", "Refund {args.amount|eur}")
    allowing.put_policy(euros, of=ALLOWING)
    await open_form(allowing)
    ana = allowing.actor("U0ANA")
    form = blocks_of(await ana.view() or {})
    assert await ana.submit({}) == {}
    await allowing.refund("t2", amount=20, order_id="2")
    card = await live_card(allowing, "€480.00 of €500.00")

    assert "The policy allows up to €1,000.00." in form
    assert "at most €50.00 each, €500.00 in all" in blocks_of(card)


async def test_revoke_ends_it_on_its_card(allowing: Stack) -> None:
    await allowed(allowing)
    ts = str((await live_card(allowing))["ts"])
    await allowing.actor("U0EVE").click(CHANNEL, ts, Action.REVOKE)
    await allowing.told("U0EVE", "Please ask one of them")
    await allowing.actor("U0ANA").click(CHANNEL, ts, Action.REVOKE)

    after = await live_card(allowing, "*Revoked* by <@U0ANA>")
    verdict = await allowing.refund("t2", amount=20, order_id="2")

    assert not has_button(after, Action.REVOKE)
    assert verdict.kind is VerdictKind.HOLD


async def test_who_keeps_the_role_is_confirmed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.policy = RULES
    monkeypatch.setattr(standing_listener, "EVERY_S", 0.1)

    async def is_confirmed() -> bool:
        (found,) = await stack.store.standing.listed(stack.keys)
        loaded = await stack.reviews.standing.read(found)
        return bool(loaded and loaded.approval.checked_at_ms)

    async with stack.running():
        await allowed(stack)
        await live_card(stack)
        await eventually(is_confirmed)


def is_shown_as_button(card: JsonObject) -> bool:
    return bool(find(as_objects(card["blocks"]), Action.ALLOW_SIMILAR, None))


async def test_the_third_call_offers_to_allow_similar_ones(allowing: Stack) -> None:
    for order in ("1", "2"):
        verdict = await allowing.refund(f"t{order}", amount=60, order_id=order)
        assert not is_shown_as_button(await allowing.card(verdict))
        await allowing.click(verdict, Action.APPROVE)
        await allowing.bot_is_quiet()

    third = await allowing.refund("t3", amount=50, order_id="3")
    assert is_shown_as_button(await allowing.card(third))
    ana = await allowing.click(third, Action.ALLOW_SIMILAR)
    form = await ana.wait_for_view(
        lambda view: view["callback_id"] == View.ALLOW_SIMILAR
    )

    assert "covered 2 of the last 2 calls" in blocks_of(form)
    assert '"initial_value": "60"' in blocks_of(form)


WIDER = ALLOWING.replace(
    "sum: args.amount, at_most: 1000, may_differ: args.order_id}",
    "may_differ: [args.order_id, args.amount, args.note]}",
)


async def test_a_policy_changed_behind_the_form_widens_nothing(allowing: Stack) -> None:
    assert WIDER != ALLOWING
    await open_form(allowing)
    # The form shows: any order, at most 50 in one call, at most 500 in all.
    allowing.put_policy(of=WIDER)

    await allowing.actor("U0ANA").submit({})

    found = await allowing.store.standing.listed(allowing.keys)
    loaded = await allowing.store.approvals.load_each(found)
    given = [one.approval for one in loaded if not one.approval.items[0].is_pending]
    assert [bounds_of(one) for one in given] == []


async def test_an_approved_call_is_not_told_as_not_recorded(
    allowing: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, StandingService, "propose", StoreUnavailable("A fail-over."))
    verdict = await open_form(allowing)
    ana = allowing.actor("U0ANA")

    await ana.submit({})

    shown = await ana.wait_for_view(lambda one: one["callback_id"] == View.NOTICE)
    assert (await allowing.item(verdict)).state is ItemState.AUTHORIZED
    assert "nothing was recorded" not in blocks_of(shown)
