"""A card says how the same call ended before, and shows names only where it may."""

from __future__ import annotations

import pytest

from tests.bot.readable import readable
from tests.bot.samples import ANA, BEN, NOW, a_refund, an_approval, frame, in_state
from twokey.bot.cards.precedents import precedents
from twokey.bot.cards.reply_texts import outcome_text
from twokey.bot.delivery.decision_digest import policy_decision_digest
from twokey.gateway.approvals.decisions import Repeated
from twokey.gateway.approvals.precedents import Past, Precedent, WindowTotal
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.repeating import args_hash
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.states import ItemState

AT = "<!date^1795255200^{date_short_pretty} {time}|2026-11-21 10:00 UTC>"
SAME = args_hash("process_refund", a_refund().args)
AGENT = an_approval(a_refund()).agent


def a_precedent(state: ItemState, *by: Person, **changes: object) -> Precedent:
    """Return the same refund of another card."""
    found = Precedent(call="ap_other.0", state=state, agent=AGENT, by=by, at_ms=NOW)
    return found.with_(**{"args_hash": SAME, **changes})


def with_past(*found: Precedent, **changes: object) -> Item:
    """Return a refund that waits, with what is known of earlier calls."""
    return a_refund().with_(past=Past(precedents=found).with_(**changes))


def shown(*items: Item) -> str:
    """Return what a card says of earlier calls."""
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

    assert f"m:🚫 *Rejected* {AT}" in text
    assert "by Ana: already got *one*" in text
    assert "⚠️" not in text


def test_words_about_a_call_of_another_agent_are_not_repeated() -> None:
    rejected = a_precedent(ItemState.REJECTED, ANA, reason="secret", agent="billing")

    text = shown(with_past(rejected))

    assert "by Ana for the agent billing" in text
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
    assert "⚠️ 1 more of them were done before" in text
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
        "~ refunds_24h: 1,348.50 in other calls with the same customer_id in 24 h | "
        "burst: 3 other calls in 10 min\n"
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

    assert text.startswith(f"Not approved yet: the same call ran {AT}.")
    assert text.endswith("Approve again if it should run too.")


def test_a_card_is_drawn_again_when_the_same_was_done_elsewhere() -> None:
    def digest(*found: Precedent) -> str:
        approval: Approval = an_approval(with_past(*found))
        return policy_decision_digest(approval, b"k")

    done = a_precedent(ItemState.AUTHORIZED, ANA)

    assert digest() == digest(a_precedent(ItemState.REJECTED, ANA))
    assert digest() != digest(done) != digest(done.with_(state=ItemState.EXECUTED))
