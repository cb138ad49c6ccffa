"""The card of a standing approval, its form and its list fit, and interpret nothing."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyturn.bot.cards.approval import card
from keyturn.bot.delivery.card_publisher import (
    CardPublisher,
    CopyUpdater,
    policy_decision_digest,
)
from keyturn.bot.delivery.outbox_queue import QueueEntry
from keyturn.bot.ids import Input
from keyturn.bot.modals import allow_similar
from keyturn.gateway.approvals.past_calls import PastCalls
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Revocation
from keyturn.gateway.approvals.similar import (
    ALLOW_SIMILAR,
    STANDING_AGENT,
    Bounds,
    Use,
    without,
)
from keyturn.gateway.approvals.standing import REJECTED
from keyturn.gateway.policy.rules import SimilarRule
from keyturn.gateway.policy.standing import Offer
from keyturn.gateway.protocol.records import ItemState, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.reviewers.cards import CardCopy, CardPlace
from keyturn.sandbox.blockkit import validate_message, validate_modal
from tests.bot import readable
from tests.bot.markup_audit import assert_tame
from tests.bot.samples import (
    ANA,
    BEN,
    KEY,
    KIM,
    NOW,
    REFUND,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    frame,
    in_state,
)
from tests.bot.slack_state import refused, typed, untouched
from tests.bot.snapshots import CARD_TEXTS, assert_same
from tests.bot.strategies import arguments, hostile, moments, quick

S = ItemState
HOUR_MS = 3_600_000
RULE = SimilarRule(
    within=timedelta(hours=8),
    uses=20,
    sum="args.amount",
    at_most=5_000,
    may_differ=("args.order_id",),
)
FREE = ("args.order_id", "args.amount")


def bounds_of(equal: JsonObject, **changes: object) -> Bounds:
    """Return bounds around a refund."""
    return Bounds(
        agent="support-agent",
        tool="process_refund",
        equal=equal,
        may_differ=("args.order_id",),
        amount="args.amount",
        each_micro=1_000 * 10**6,
        total_micro=5_000 * 10**6,
        uses=20,
        until_ms=NOW + 8 * HOUR_MS,
        source="ap_1.0",
    ).with_(**changes)


def an_item_of(bounds: Bounds, **changes: Any) -> Item:
    """Return the item of a standing approval that waits."""
    item = an_item(bounds.model_dump(mode="json"), tool=ALLOW_SIMILAR)
    asked: dict[str, Any] = {
        "is_standing": True,
        "allow": (Verb.APPROVE, Verb.REJECT),
    }
    return item.with_(**asked | changes)


SIMILAR = an_item_of(bounds_of(without(REFUND, FREE)))
GIVEN = in_state(SIMILAR, S.AUTHORIZED)
USES = tuple(
    Use(item=f"ap_{n}.0", amount_micro=n * 250_000, at_ms=NOW + n * 60_000)
    for n in range(1, 4)
)


def ended(why: str, **changes: Any) -> Item:
    revoked = Revocation(reason=why, at_ms=NOW, is_final=True, **changes)
    return in_state(GIVEN, S.LAPSED).with_(revoked=revoked)


def a_standing(item: Item, **changes: Any) -> Approval:
    """Return a standing approval as the gateway proposes it: of no agent's thread."""
    return an_approval(item, agent=STANDING_AGENT, requester=None, **changes)


CARDS = {
    "standing_waiting": a_standing(SIMILAR.with_(votes=(a_vote(SIMILAR, ANA),))),
    "standing_denied": a_standing(SIMILAR.with_(tier=Tier.DENY)),
    "standing_given": a_standing(GIVEN, uses=USES),
    "standing_revoked": a_standing(ended("It was revoked.", by=BEN), uses=USES),
    "standing_rejected_call": a_standing(ended(REJECTED), uses=USES),
    "standing_over": a_standing(in_state(GIVEN, S.LAPSED), uses=USES),
    "standing_rejected": a_standing(in_state(SIMILAR, S.REJECTED, by=BEN)),
    "standing_hostile": a_standing(
        an_item_of(
            bounds_of({"note": "<!channel> *now*\u202e", "to": ["<@U1>", None]}).with_(
                tool="<!here>", agent="`x`", may_differ=("args.<!channel>",)
            ),
        )
    ),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_reads_as_written_down(name: str) -> None:
    message = card(frame(CARDS[name]))

    assert validate_message([*message.blocks], message.text, update=True) == []
    assert_same(CARD_TEXTS, name, readable.readable(message.blocks, message.text))


def test_the_form_and_the_list_read_as_written_down() -> None:
    item = a_refund(can_cover=True)
    offer = Offer(RULE, without(REFUND, FREE), 899 * 10**6)

    past = PastCalls(decided=40, within=31, corrected=2, each_micro=950 * 10**6)
    form = allow_similar.view(frame(an_approval(item)), 0, offer, past)
    listed = allow_similar.uses_list(
        an_approval(GIVEN, uses=USES), {"ap_2.0": a_refund()}
    )

    assert_same(CARD_TEXTS, "standing_form", readable.view(form))
    # Within these bounds each call repeats the first, and is covered anyway.
    rule = RULE.with_(may_differ=(), sum=None)
    equal = Offer(rule, REFUND, 0, may_repeat=True)
    past = PastCalls(decided=3, within=3)
    form = allow_similar.view(frame(an_approval(item)), 0, equal, past)
    assert_same(CARD_TEXTS, "standing_form_of_equal_calls", readable.view(form))
    listed["submit"] = {"text": ""}
    assert_same(CARD_TEXTS, "standing_uses", readable.view(listed))


def test_a_direct_message_is_drawn_again_when_a_call_was_covered() -> None:
    before, after = a_standing(GIVEN, uses=USES[:1]), a_standing(GIVEN, uses=USES[:2])
    shown = policy_decision_digest(before, KEY)
    copy = CardCopy(channel="D0BEN", ts="1.1", rev=2, decision_digest=shown)
    place = CardPlace(channel="C0", ts="1.0", rev=3, copies={"U0BEN": copy})
    updater = CopyUpdater(cast("CardPublisher", SimpleNamespace(seal_key=KEY)))
    entry = QueueEntry(key="ap", approval="ap")
    assert "19 of 20 calls left" in str(card(frame(before)).blocks)
    assert "18 of 20 calls left" in str(card(frame(after)).blocks)
    assert updater.next_call(entry, after.with_(rev=3), place) is not None


@pytest.mark.parametrize(
    ("changes", "block"),
    [
        ({Input.USES: "21"}, Input.USES),
        ({Input.USES: "0"}, Input.USES),
        ({Input.EACH: "5001"}, Input.EACH),
        ({Input.TOTAL: "-1"}, Input.TOTAL),
        ({Input.EACH: "500", Input.TOTAL: "400"}, Input.EACH),
    ],
)
def test_more_than_the_policy_lets_people_is_refused_in_the_form(
    changes: dict[Input, str], block: Input
) -> None:
    item = a_refund(can_cover=True)
    offer = Offer(RULE, without(REFUND, FREE), 899 * 10**6)
    form: Any = allow_similar.view(frame(an_approval(item)), 0, offer, PastCalls())
    state = untouched(form["blocks"])
    for name, value in changes.items():
        state = typed(state, name, value)
    assert [*refused(allow_similar.submitted, item, offer, state)] == [block]


_quick = quick(40)

paths = st.lists(hostile.map(lambda text: f"args.{text}"), max_size=4).map(tuple)
_bounds = st.builds(
    bounds_of,
    arguments,
    tool=hostile,
    agent=hostile,
    may_differ=paths,
    amount=st.sampled_from(["", "args.amount", "args.<!channel>"]),
)


def _standing(bounds: Bounds, state: ItemState, why: str) -> Approval:
    item = in_state(an_item_of(bounds), state)
    item = item.with_(revoked=Revocation(reason=why, at_ms=NOW)) if why else item
    return a_standing(item, uses=USES, principals=(KIM,))


@_quick
@given(_bounds, st.sampled_from([*S]), st.sampled_from(["", REJECTED]), moments)
def test_every_card_is_accepted_and_tame(
    bounds: Bounds, state: ItemState, why: str, now_ms: int
) -> None:
    message = card(frame(_standing(bounds, state, why), now_ms=now_ms))

    assert validate_message([*message.blocks], message.text, update=True) == []
    assert_tame(message.blocks, message.text)


@_quick
@given(_bounds, arguments, hostile)
def test_every_form_is_accepted(bounds: Bounds, args: JsonObject, text: str) -> None:
    rule = RULE.with_(may_differ=bounds.may_differ, sum=bounds.amount or None)
    item = an_item(args, tool=text or "tool", description=text, can_cover=True)
    form = allow_similar.view(
        frame(an_approval(item)), 0, Offer(rule, bounds.equal, 10**6), PastCalls()
    )
    listed = allow_similar.uses_list(
        _standing(bounds, S.AUTHORIZED, ""), {"ap_2.0": item}
    )

    for view in (form, listed):
        assert validate_modal(view) == []
        assert_tame(view)


@_quick
@given(arguments)
def test_nobody_allows_what_the_card_does_not_show_whole(args: JsonObject) -> None:
    message = card(frame(_standing(bounds_of(args), S.PENDING, "")))

    shown = readable.readable(message.blocks)
    is_whole = "characters not shown here⟧" not in shown
    assert ("[*Allow]" in shown) is is_whole
    assert "[!Reject]" in shown
