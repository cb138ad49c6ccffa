"""A card shows how the same call ended before, and names only if it may."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.cards.table import noticed, precedents
from keyturn.bot.delivery.card_publisher import policy_decision_digest
from keyturn.bot.ids import Action
from keyturn.bot.modals.choose import confirmation, opened, view
from keyturn.gateway.approvals.decisions import Repeated
from keyturn.gateway.approvals.gestures import MAX_ITEMS
from keyturn.gateway.approvals.precedents import KINDS, Past, Precedent, WindowTotal
from keyturn.gateway.approvals.record import Approval, Item
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

AT = "<!date^1795255200^{date_short_pretty} {time}|2026-11-21 10:00 UTC>"
SAME = args_hash("process_refund", a_refund().args)
AGENT = an_approval(a_refund()).agent


def a_precedent(state: ItemState, *by: Person, **changes: object) -> Precedent:
    """Return the same refund of another card."""
    found = Precedent(call="ap_other.0", state=state, agent=AGENT, by=by, at_ms=NOW)
    return found.with_(**{"args_hash": SAME, **changes})


def with_past(*found: Precedent, **changes: object) -> Item:
    """Return a pending refund, with the facts about earlier calls."""
    return a_refund().with_(past=Past(precedents=found).with_(**changes))


def shown(*items: Item) -> str:
    """Return a card's text about earlier calls."""
    return readable(precedents(frame(an_approval(*items))))


@pytest.mark.parametrize(
    ("precedent", "sentence"),
    [
        (a_precedent(ItemState.EXECUTED, ANA), f"ran {AT}"),
        (
            a_precedent(ItemState.AUTHORIZED, ANA),
            f"was approved {AT} and may run at any moment",
        ),
        (a_precedent(ItemState.EXECUTING, ANA), f"was approved {AT} and is running"),
        (a_precedent(ItemState.IN_DOUBT, ANA), f"may have run {AT}"),
        (a_precedent(ItemState.AUTHORIZED), f"was let run by the policy {AT}"),
        (a_precedent(ItemState.REJECTED, ANA), f"was rejected before, {AT}"),
    ],
)
def test_a_banner_says_what_became_of_the_same_call(
    precedent: Precedent, sentence: str
) -> None:
    first = shown(with_past(precedent)).split("\n")[0]

    assert first == f"m:⚠️ *The same call* {sentence}"


def test_people_are_named_in_plain_text_and_not_mentioned() -> None:
    text = shown(with_past(a_precedent(ItemState.EXECUTED, ANA, BEN)))

    assert "Approved by Ana, Ben" in text
    assert "<@" not in text


def test_a_rejection_says_who_when_and_why() -> None:
    rejected = a_precedent(ItemState.REJECTED, ANA, reason="already got *one*")

    text = shown(with_past(rejected))

    assert text.startswith(f"m:⚠️ *The same call* was rejected before, {AT}\n")
    assert "Rejected before by Ana: already got *one*" in text


@pytest.mark.parametrize("state", KINDS)
@pytest.mark.parametrize("by", [(), (ANA,)])
@pytest.mark.parametrize("is_batch", [True, False])
def test_what_is_said_of_an_earlier_call_names_that_call_first(
    state: ItemState, by: tuple[Person, ...], *, is_batch: bool
) -> None:
    item = with_past(a_precedent(state, *by, reason="no"))
    items = [item, a_refund().with_(index=1)] if is_batch else [item]

    banner, *small = shown(*items).rstrip("\n").split("\n")

    plain = banner.removeprefix("m:").replace("*", "").casefold()
    assert plain.startswith("⚠️ call 1: the same " if is_batch else "⚠️ the same call ")
    for said in "".join(small).removeprefix("~ ").split(" | "):
        assert not said.startswith(("🚫", "Rejected by", "by"))


def test_words_about_a_call_of_another_agent_are_not_repeated() -> None:
    rejected = a_precedent(ItemState.REJECTED, ANA, reason="secret", agent="billing")

    text = shown(with_past(rejected))

    assert "Rejected before by Ana for the agent billing" in text
    assert "secret" not in text


def test_other_arguments_are_said_with_what_is_the_same() -> None:
    done = a_precedent(ItemState.EXECUTED, ANA, args_hash="other")

    named = shown(with_past(done, same_by=("args.order_id", "args.user.id")))
    odd = shown(with_past(done, same_by=("args.*bold*",)))

    assert named.startswith("m:⚠️ *A call with the same* `order_id` and `user.id` ran")
    assert "with other arguments" in named
    assert odd.startswith("m:⚠️ *A call with the same effect* ran")


def test_several_calls_of_a_batch_are_named_and_the_rest_is_counted() -> None:
    done = a_precedent(ItemState.EXECUTED, ANA)
    items = [with_past(done).with_(index=index) for index in range(5)]
    items[1] = items[1].with_(past=Past())

    text = shown(*items)

    assert text.count("*The same call*") == 3
    assert "*Call 1:*" in text
    assert "*Call 2:*" not in text
    assert "⚠️ 1 more were done or asked before" in text
    assert "Approved by" not in text


def test_calls_of_one_card_do_not_warn_of_each_other() -> None:
    approval = an_approval(a_refund())
    own = a_precedent(ItemState.EXECUTED, ANA, call=f"{approval.id}.1")

    assert shown(with_past(own)) == "\n"


def test_a_decided_call_says_nothing_of_others() -> None:
    item = in_state(
        with_past(a_precedent(ItemState.EXECUTED, ANA)), ItemState.AUTHORIZED
    )

    assert shown(item) == "\n"


def test_what_other_calls_of_a_window_come_to_is_said() -> None:
    refunds = WindowTotal(
        window="refunds_24h",
        by="args.customer_id",
        others_micro=1_348_500_000,
        within_ms=24 * 3_600_000,
        is_count=False,
    )
    burst = refunds.with_(
        window="burst", by="", is_count=True, others_micro=3_000_000, within_ms=600_000
    )
    alone = refunds.with_(window="alone", others_micro=0)

    text = shown(with_past(totals=(alone, refunds, burst)))

    assert text == (
        "~ Same customer_id, last 24 h: 1,348.50 in other calls (refunds_24h) | "
        "Last 10 min: 3 other calls (burst)\n"
    )


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_click_that_does_not_count_yet_is_answered_with_what_ran(
    *, is_edited: bool
) -> None:
    done = a_precedent(ItemState.EXECUTED, ANA)
    item = a_refund()
    if is_edited:
        item = in_state(item, ItemState.PENDING)
    outcome = Repeated(approval=an_approval(item), index=0, precedent=done)

    text = outcome_text(outcome, now_ms=NOW).text

    assert text.startswith(f"Not approved: the same call ran {AT}.")
    assert text.endswith("To run both, approve again.")


def test_a_card_is_drawn_again_when_the_same_was_done_elsewhere() -> None:
    def digest(*found: Precedent) -> str:
        approval: Approval = an_approval(with_past(*found))
        return policy_decision_digest(approval, b"k")

    done = a_precedent(ItemState.AUTHORIZED, ANA)

    assert digest() == digest(a_precedent(ItemState.REJECTED, ANA))
    assert digest() != digest(done) != digest(done.with_(state=ItemState.EXECUTED))


@pytest.mark.parametrize("count", [2, MAX_ITEMS, MAX_ITEMS + 1, 56])
@pytest.mark.parametrize("is_same", [True, False])
def test_calls_that_are_doubled_are_marked_wherever_they_are_shown(
    count: int, *, is_same: bool
) -> None:
    first = _effect_of(0, "78000")
    last = _effect_of(count - 1, "78000")
    last = last if is_same else with_args(last, {"order_id": "78000", "amount": 2})
    others = [_effect_of(n, f"{78000 + n}") for n in range(1, count - 1)]
    approval = an_approval(first, *others, last)
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


def test_the_same_call_that_waits_on_another_card_is_mentioned() -> None:
    waits = a_precedent(ItemState.PENDING)

    alone = shown(with_past(waits, same_by=("args.order_id",)))
    batch = an_approval(*(with_past(waits).with_(index=n) for n in range(9)))

    assert alone.startswith(f"m:⚠️ *The same call* waits on another card since {AT}")
    assert noticed(batch) == set(range(9))
    assert "⚠️ Calls 1-9: the same is waiting on another card." in readable(
        precedents(frame(batch))
    )


def _effect_of(index: int, order: str) -> Item:
    args: JsonObject = {"order_id": order, "amount": 1}
    past = Past(same_by=("args.order_id",))
    return an_item(args, index=index, effect=order, past=past)


def with_args(item: Item, args: JsonObject) -> Item:
    """Return a call with other arguments and the same effect."""
    return an_item(args, index=item.index, effect=item.effect, past=item.past)
