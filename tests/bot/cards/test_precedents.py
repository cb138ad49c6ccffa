"""A card shows how the same call ended before, and names only if it may."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.table import noticed, precedents
from keyturn.bot.delivery.card_publisher import policy_decision_digest
from keyturn.bot.ids import Action
from keyturn.bot.modals.choose import confirmation, opened, view
from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.precedents import Past, Precedent, WindowTotal
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.approvals.repeating import args_hash
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.bot.markup_audit import objects
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    NOW,
    a_refund,
    an_approval,
    an_item,
    frame,
    in_state,
)
from tests.bot.snapshots import assert_all_same

S = ItemState
SAME = args_hash("process_refund", a_refund().args)
AGENT = an_approval(a_refund()).agent


def a_precedent(state: ItemState, *by: Person, **changes: object) -> Precedent:
    """Return the same refund of another card."""
    found = Precedent(call="ap_other.0", state=state, agent=AGENT, by=by, at_ms=NOW)
    return found.with_(**{"args_hash": SAME, **changes})


def with_past(*found: Precedent, **changes: object) -> Item:
    """Return a pending refund, with the facts about earlier calls."""
    return a_refund().with_(past=Past(precedents=found).with_(**changes))


RAN = a_precedent(S.EXECUTED, ANA)
REJECTED = a_precedent(S.REJECTED, ANA, reason="already got *one*")
OTHER = RAN.with_(args_hash="other")
WAITS = a_precedent(S.PENDING)
DAY = WindowTotal(
    window="refunds_24h",
    by="args.customer_id",
    others_micro=1_348_500_000,
    within_ms=24 * 3_600_000,
    is_count=False,
)
BURST = DAY.with_(
    window="burst", by="", is_count=True, others_micro=3_000_000, within_ms=600_000
)
ALONE = DAY.with_(window="alone", others_micro=0)
WITH_ITEMS = {
    "ran": [with_past(RAN.with_(by=(ANA, BEN)))],
    "approved, may run": [with_past(a_precedent(S.AUTHORIZED, ANA))],
    "approved, is running": [with_past(a_precedent(S.EXECUTING, ANA))],
    "in doubt": [with_past(a_precedent(S.IN_DOUBT, ANA))],
    "let run by the policy": [with_past(a_precedent(S.AUTHORIZED))],
    "rejected": [with_past(REJECTED)],
    "rejected for another agent, whose words are for others": [
        with_past(REJECTED.with_(agent="billing"))
    ],
    "waits on another card": [with_past(WAITS, same_by=("args.order_id",))],
    "other arguments": [with_past(OTHER, same_by=("args.order_id", "args.user.id"))],
    "a name that could be markup": [with_past(OTHER, same_by=("args.*bold*",))],
    "windows": [with_past(totals=(ALONE, DAY, BURST))],
    "several of a batch": [
        with_past(*([] if n == 1 else [RAN])).with_(index=n) for n in range(5)
    ],
    "nine that wait elsewhere": [with_past(WAITS).with_(index=n) for n in range(9)],
    "a call of the same card": [with_past(RAN.with_(call="ap_7f3k.1"))],
    "a decided call": [in_state(with_past(RAN), S.AUTHORIZED)],
}


def test_a_banner_says_what_became_of_the_same_call() -> None:
    texts = {
        name: readable(precedents(frame(an_approval(*items))))
        for name, items in WITH_ITEMS.items()
    }

    assert_all_same(Path(__file__).parent / "snapshots", "precedents", texts)
    # A mention would notify people of a call that is not theirs to decide.
    assert "<@" not in str(texts)


def test_calls_that_wait_elsewhere_are_marked() -> None:
    nine = an_approval(*WITH_ITEMS["nine that wait elsewhere"])

    assert noticed(nine) == set(range(9))


def test_a_card_is_drawn_again_when_the_same_was_done_elsewhere() -> None:
    def digest(*found: Precedent) -> str:
        return policy_decision_digest(an_approval(with_past(*found)), b"k")

    done = a_precedent(S.AUTHORIZED, ANA)

    assert digest() == digest(a_precedent(S.REJECTED, ANA))
    assert digest() != digest(done) != digest(done.with_(state=S.EXECUTED))


@pytest.mark.parametrize("count", [2, MAX_ITEMS, MAX_ITEMS + 1, 56])
@pytest.mark.parametrize("is_same", [True, False])
def test_doubled_calls_are_marked_everywhere(count: int, *, is_same: bool) -> None:
    calls = [_effect_of(n, f"{78000 + n % (count - 1)}", 1) for n in range(count - 1)]
    last = _effect_of(count - 1, "78000", 1 if is_same else 2)
    approval = an_approval(*calls, last)
    said = "are the same call" if is_same else "have the same order_id"
    sentence = f"Calls 1 and {count} {said}."

    blocks = [*card(frame(approval)).blocks]
    (all_of,) = [
        one for one in objects(blocks) if one.get("action_id") == Action.APPROVE_ALL
    ]
    form = view(frame(approval), opened(approval))
    confirmed = opened(approval).with_(approve=tuple(range(count)))
    texts = [str(one.get("text")) for one in objects(blocks)]

    assert any(text == f"⚠️ {sentence}" for text in texts)
    assert sentence in str(all_of["confirm"])
    assert sum(text.startswith(("⚠️ 1", f"⚠️ {count}")) for text in texts) == 2
    assert sentence in str(form["blocks"])
    assert f"⚠️ {count}. " in str(form["blocks"])
    assert sentence in str(confirmation(frame(approval), confirmed)["blocks"])


def _effect_of(index: int, order: str, amount: int) -> Item:
    past = Past(same_by=("args.order_id",))
    args: JsonObject = {"order_id": order, "amount": amount}
    return an_item(args, index=index, effect=order, past=past)
