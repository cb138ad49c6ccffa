"""A card in each state equals the text files next to this test."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.bot.cards.approval import card
from keyturn.gateway.approvals.record import (
    Acknowledgement,
    Approval,
    TriageResult,
    Waiting,
)
from keyturn.gateway.approvals.requirement import Observation, SpotCheck
from keyturn.gateway.approvals.timing import with_end
from keyturn.gateway.protocol.questions import Answered
from keyturn.gateway.protocol.records import (
    Effect,
    Finding,
    ItemState,
    Result,
    Tier,
    Verb,
)
from tests.bot.cards.test_table import refunds
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    BEN,
    LATER,
    LISTED,
    NOW,
    REFUND,
    SENIOR,
    TWO,
    a_refund,
    a_vote,
    an_approval,
    an_item,
    edited,
    frame,
    handed,
    in_state,
)
from tests.bot.snapshots import assert_same

FOLDER = Path(__file__).parent / "snapshots"
HALF = REFUND | {"amount": 449.5}
ESCALATED = a_refund(
    tier=Tier.ESCALATE,
    requirement=TWO,
    reasons=(LISTED, "refund over 500", "over 100 for this customer in 24 h"),
)
RAISED = a_refund(
    tier=Tier.ESCALATE,
    requirement=TWO,
    reasons=(
        LISTED,
        "Raised to escalate: triage, a model's opinion, asks for more care.",
    ),
    triage=TriageResult(
        raised_to=Tier.ESCALATE,
        score=80,
        rationale="*Urgent*: <!channel> the note asks its reader to approve at once.",
    ),
)
EDITED = edited(a_refund(), HALF, reason="Only half of it was broken")
EMAIL = an_item(
    {
        "to": "kim@example.com",
        "subject": "Your refund",
        "body": "Dear Kim,\n\nall well.",
    },
    tool="send_email",
    index=1,
    description="Write to kim@example.com",
)
DONE = Result(ok=True, summary="Refund R-1 of 449.50 GBP booked")
BROKEN = Result(ok=False, summary="payment provider: 503")
S = ItemState
SOON = NOW + 600_000
NOTED = a_refund(
    link="https://shop.example/orders/78291",
    effect_class=Effect.REVERSIBLE,
    is_frozen=True,
    original_args=REFUND | {"amount": "0899"},
)
CHECKED = Observation(finding=Finding.SKIP, vote=a_vote(a_refund(), BEN), fence=0)
REPORTED = {"finding": Finding.EXECUTED, "late_result": BROKEN}
EURO = ("args.amount|eur",)


def expiring_apart() -> Approval:
    """Return a card whose third call expires before the others."""
    approval = an_approval(*(an_item({"n": n}, index=n) for n in range(4)))
    return with_end(approval, approval.items[2].with_(expires_at_ms=SOON))


def paying(*calls: tuple[str, object]) -> Approval:
    """Return a card of calls of these tools with these amounts."""
    return an_approval(
        *(
            an_item({"amount": amount}, tool=tool, index=n, totals=EURO)  # type: ignore[dict-item]  # some are odd on purpose
            for n, (tool, amount) in enumerate(calls)
        )
    )


def finished_refunds() -> Approval:
    """Return many refunds that ended, two of them otherwise than the others."""
    items = [in_state(one, S.EXECUTED) for one in refunds(56).items]
    items[3] = in_state(items[3], S.FAILED)
    items[9] = in_state(items[9], S.REJECTED)
    return an_approval(*items)


CARDS: dict[str, Approval] = {
    "pending": an_approval(),
    "no_requester": an_approval(a_refund(), requester=None, says=""),
    "only_reject": an_approval(a_refund(allow=(Verb.REJECT,))),
    "escalated": an_approval(ESCALATED),
    "raised_by_triage": an_approval(RAISED),
    "one_of_two": an_approval(ESCALATED.with_(votes=(a_vote(ESCALATED, ANA),))),
    "two_of_two_but_no_senior": an_approval(
        ESCALATED.with_(votes=(a_vote(ESCALATED, ANA), a_vote(ESCALATED, BEN)))
    ),
    "raised_by_edit": an_approval(
        edited(ESCALATED, REFUND | {"amount": 1200.0}, reason="Plus a voucher"),
        version=2,
    ),
    "authorized": an_approval(in_state(a_refund(), ItemState.AUTHORIZED)),
    "executing": an_approval(in_state(a_refund(), ItemState.EXECUTING)),
    "edited_done": an_approval(in_state(EDITED, ItemState.EXECUTED, result=DONE)),
    "edited_by_another": an_approval(
        in_state(
            EDITED.with_(votes=(a_vote(EDITED, ANA), a_vote(EDITED, BEN))),
            ItemState.AUTHORIZED,
            by=BEN,
        )
    ),
    "failed": an_approval(in_state(a_refund(), ItemState.FAILED, result=BROKEN)),
    "in_doubt": an_approval(in_state(a_refund(), ItemState.IN_DOUBT)),
    "in_doubt_idempotent": an_approval(
        in_state(a_refund(idempotent=True), ItemState.IN_DOUBT)
    ),
    "rejected": an_approval(
        in_state(a_refund(), ItemState.REJECTED, text="Already done, ticket 412")
    ),
    "answered": an_approval(
        in_state(a_refund(), ItemState.ANSWERED, text="Ask for a photo first")
    ),
    "expired": an_approval(in_state(a_refund(), ItemState.EXPIRED)),
    "superseded": an_approval(in_state(a_refund(), ItemState.SUPERSEDED)),
    "withdrawn": an_approval(in_state(a_refund(), ItemState.WITHDRAWN)),
    "lapsed": an_approval(in_state(a_refund(), ItemState.LAPSED)),
    "redacted": an_approval(
        an_item({"amount": 5, "card": {"number": "4111"}}, redact=("args.card.number",))
    ),
    "hostile": an_approval(
        an_item(
            {
                "url": "https://p\u0430ypal.com/x\u202egpj.exe",
                "note": "*bold* <!channel>\n  amount  1.00",
                "": " ",
            },
            tool="open\nurl",
            description="<@U0ANA> *look*",
        )
    ),
    "too_long": an_approval(an_item({"to": "kim@example.com", "body": "abc " * 2000})),
    "batch": an_approval(
        a_refund(),
        EMAIL,
        in_state(an_item({"n": 3}, index=2), ItemState.REJECTED, text="Ask first"),
    ),
    "batch_with_an_escalated_call": an_approval(ESCALATED, EMAIL),
    "batch_mixed": an_approval(
        in_state(a_refund(), ItemState.EXECUTED, result=DONE),
        in_state(EMAIL, ItemState.IN_DOUBT),
    ),
    "batch_done": an_approval(
        in_state(a_refund(), ItemState.EXECUTED),
        in_state(EMAIL, ItemState.REJECTED),
    ),
    "batch_of_nine": an_approval(*[an_item({"n": n}, index=n) for n in range(9)]),
    "tools_whose_names_are_markup": an_approval(
        *(
            an_item({}, index=n, tool=name)
            for n, name in enumerate(("refund", "<!channel>", "mail", "*bold*", "note"))
        )
    ),
    "denied": an_approval(a_refund(tier=Tier.DENY)),
    "with_every_note": an_approval(
        NOTED,
        recent_requests=11,
        answered=(Answered(text="Q: Which order?\nA: 78291", by=ANA, at_ms=NOW),),
        acknowledged=Acknowledgement(by=BEN, until_ms=LATER),
        waiting=Waiting(roles=(SENIOR,), channels=("#leads",)),
        escalated_at_ms=NOW,
    ),
    "batch_with_frozen_calls": an_approval(
        in_state(NOTED, S.REJECTED), NOTED.with_(index=1), a_refund(index=2)
    ),
    "expiring_apart": expiring_apart(),
    "named_act": an_approval(a_refund(act="refund")),
    "batch_of_named_acts": an_approval(
        a_refund(act="refund"), EMAIL.with_(act="e-mail")
    ),
    "totals_of_one_tool": refunds(3, totals=EURO).replacing(
        in_state(refunds(2, totals=EURO).items[1], S.EXECUTED)
    ),
    "totals_of_several_tools": paying(
        ("pay", 1), ("refund", 2), ("pay", 3), ("wire", 4), ("wire", "much")
    ),
    "spot_check": an_approval(
        in_state(a_refund(spot_check=SpotCheck(asked_at_ms=1)), S.EXECUTED)
    ),
    "edited_at_length": an_approval(
        in_state(
            edited(a_refund(), HALF | {"reason": "amount  2 → 3"}, by=BEN), S.EXECUTED
        )
    ),
    "edited_and_rejected": an_approval(in_state(EDITED, S.REJECTED)),
    "edited_and_expired": an_approval(
        in_state(EDITED.with_(votes=(a_vote(EDITED, ANA),)), S.EXPIRED)
    ),
    "doubt_that_ended": an_approval(
        in_state(a_refund(observations=(CHECKED,)), S.FAILED)
    ),
    "reported_otherwise": an_approval(in_state(a_refund(**REPORTED), S.EXECUTED)),
    "batch_reported_otherwise": an_approval(
        in_state(a_refund(), S.EXECUTED),
        in_state(a_refund(index=1, **REPORTED), S.EXECUTED),
    ),
    "batch_with_a_failure": an_approval(
        in_state(a_refund(), S.EXECUTED),
        in_state(EMAIL, S.FAILED, result=BROKEN),
    ),
    "many_that_ended": finished_refunds(),
    "handed_pending": an_approval(handed(a_refund(), S.PENDING)),
    "handed_authorized": an_approval(handed(a_refund(), S.AUTHORIZED)),
    "handing_over": an_approval(handed(a_refund(), S.HANDING_OVER)),
    "handed_over": an_approval(handed(EDITED, S.HANDED_OVER)),
    "handed_over_and_reported": an_approval(
        handed(a_refund(), S.HANDED_OVER, reported=BROKEN)
    ),
    "not_taken": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="answered_elsewhere")
    ),
    "not_taken_refused": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="refused", detail="KeyError: 'type'")
    ),
    "not_taken_failed": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="failed", detail="KeyError: 'type'")
    ),
    "not_taken_wanted_again": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="refused", again_by=BEN)
    ),
    "handed_lapsed": an_approval(handed(a_refund(), S.LAPSED)),
    "batch_handed": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="refused", detail="KeyError: 'type'"),
        handed(EMAIL, S.HANDED_OVER),
    ),
    "batch_partly_handed": an_approval(
        handed(a_refund(), S.NOT_TAKEN, problem="refused"), handed(EMAIL, S.PENDING)
    ),
    "table_handed": an_approval(
        *(
            handed(an_item({"n": n}, index=n), S.NOT_TAKEN, problem=why, again_by=by)
            for n, (why, by) in enumerate(
                [("refused", None)] * 3 + [("failed", BEN)] + [("deleted", None)] * 3
            )
        )
    ),
    "batch_being_handed": an_approval(
        handed(a_refund(), S.HANDING_OVER), handed(EMAIL, S.PENDING)
    ),
}
MOMENTS = {
    "late": (an_approval(), LATER),
    "one_call_late": (expiring_apart(), SOON),
}


@pytest.mark.parametrize("calls", [1, 56])
def test_calls_of_the_same_card_are_no_other_requests(calls: int) -> None:
    items = [an_item({"n": n}, index=n) for n in range(calls)]

    read = readable(card(frame(an_approval(*items, recent_requests=10))).blocks)

    assert "in 10 minutes" not in read


@pytest.mark.parametrize("name", CARDS)
def test_a_card_reads_as_written_down(name: str) -> None:
    message = card(frame(CARDS[name]))

    assert_same(FOLDER, name, readable(message.blocks, message.text))


@pytest.mark.parametrize("name", MOMENTS)
def test_a_call_past_its_time_says_so_and_has_no_buttons(name: str) -> None:
    approval, now_ms = MOMENTS[name]
    message = card(frame(approval, now_ms=now_ms))

    assert_same(FOLDER, name, readable(message.blocks, message.text))


def test_metadata_holds_ids_only() -> None:
    message = card(frame(an_approval()))

    assert message.metadata == {
        "event_type": "keyturn_card",
        "event_payload": {"approval": "ap_7f3k", "version": 1, "rev": 1},
    }
