"""A row of the Home tab without Approve gives the reason."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.home import home
from keyturn.bot.cards.queue import decidable_in_row, page_of
from keyturn.gateway.approvals.precedents import Past, Precedent
from keyturn.gateway.approvals.record import Approval, Inquiry, Item, TriageResult
from keyturn.gateway.approvals.requirement import Revocation
from keyturn.gateway.protocol.records import ItemState, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from tests.bot.readable import readable
from tests.bot.samples import (
    ANA,
    KEY,
    NOW,
    TEAM,
    TWO,
    a_refund,
    an_approval,
    an_item,
    edited,
)

BEFORE = Precedent(call="ap_1.0", state=ItemState.EXECUTED, agent="a", by=(ANA,))
ASKED = Inquiry(by=ANA, text="Is it?", at_ms=NOW)


def _row(approval: Approval) -> str:
    queue = page_of([approval], now_ms=NOW)
    return readable(home(queue, key=KEY, team=TEAM, now_ms=NOW)["blocks"])


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (a_refund(tier=Tier.ESCALATE, requirement=TWO), "needs several people"),
        (a_refund(tier=Tier.ESCALATE), "escalated"),
        (a_refund(tier=Tier.DENY), "the policy no longer allows it"),
        (a_refund(allow=(Verb.REJECT,)), "cannot be approved as it is"),
        (a_refund(requires_reason=(Verb.APPROVE,)), "needs a reason"),
        (an_item({"body": "word " * 400}), "too long for a row"),
        (edited(a_refund(), {"amount": 1}), "edited"),
        (a_refund(original_args={}), "its tool reads the arguments differently"),
        (a_refund(past=Past(precedents=(BEFORE,))), "the same was asked before"),
        (
            a_refund(revoked=Revocation(reason="x", at_ms=1)),
            "its approval was taken back",
        ),
        (
            a_refund(triage=TriageResult(raised_to=Tier.APPROVE, rationale="odd")),
            "a model raised it",
        ),
        (an_item({"to": "a\u202eb"}), "its card has a warning"),
    ],
)
def test_a_row_says_why_its_call_is_opened_first(item: Item, why: str) -> None:
    approval = an_approval(item)

    text = _row(approval)

    assert f"*Open to decide:* {why}" in text
    assert text.count("Open to decide") == 1
    assert "[Approve]" not in text
    assert decidable_in_row(approval) is None


@pytest.mark.parametrize(
    ("approval", "why"),
    [
        (an_approval(a_refund(), a_refund(index=1)), "several calls"),
        (an_approval(a_refund(), inquiries=(ASKED,)), "people wrote about it"),
    ],
)
def test_a_row_says_what_is_about_the_whole_card(approval: Approval, why: str) -> None:
    assert f"*Open to decide:* {why}" in _row(approval)


def test_a_row_of_a_question_is_no_request_of_a_person() -> None:
    asked: JsonObject = {"questions": [{"question": "Which street?", "type": "text"}]}
    text = _row(an_approval(an_item(asked, tool="ask_user", is_question=True)))

    assert "*Open to answer*" in text
    assert "asked for" in text
    assert "asked by" not in text
