"""A row of the Home tab without Approve gives the reason."""

from __future__ import annotations

import re
from pathlib import Path

from keyturn.bot.cards.home import home
from keyturn.bot.cards.queue import decidable_in_row, page_of
from keyturn.gateway.approvals.precedents import Past, Precedent
from keyturn.gateway.approvals.record import Approval, Inquiry, TriageResult
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
from tests.bot.snapshots import assert_all_same

BEFORE = Precedent(call="ap_1.0", state=ItemState.EXECUTED, agent="a", by=(ANA,))
ASKED = Inquiry(by=ANA, text="Is it?", at_ms=NOW)


def _row(approval: Approval) -> str:
    queue = page_of([approval], now_ms=NOW)
    return readable(home(queue, key=KEY, team=TEAM, now_ms=NOW)["blocks"])


OPENED = {
    "several people": an_approval(a_refund(tier=Tier.ESCALATE, requirement=TWO)),
    "escalated": an_approval(a_refund(tier=Tier.ESCALATE)),
    "denied now": an_approval(a_refund(tier=Tier.DENY)),
    "only to be rejected": an_approval(a_refund(allow=(Verb.REJECT,))),
    "a reason": an_approval(a_refund(requires_reason=(Verb.APPROVE,))),
    "long": an_approval(an_item({"body": "word " * 400})),
    "edited": an_approval(edited(a_refund(), {"amount": 1})),
    "read differently": an_approval(a_refund(original_args={})),
    "done before": an_approval(a_refund(past=Past(precedents=(BEFORE,)))),
    "taken back": an_approval(a_refund(revoked=Revocation(reason="x", at_ms=1))),
    "raised by a model": an_approval(
        a_refund(triage=TriageResult(raised_to=Tier.APPROVE, rationale="odd"))
    ),
    "odd characters": an_approval(an_item({"to": "a\u202eb"})),
    "several calls": an_approval(a_refund(), a_refund(index=1)),
    "questions": an_approval(a_refund(), inquiries=(ASKED,)),
}


def test_a_row_says_why_its_call_is_opened_first() -> None:
    texts: dict[str, str] = {}
    for name, approval in OPENED.items():
        text = _row(approval)
        assert "[Approve]" not in text
        assert decidable_in_row(approval) is None
        (texts[name],) = re.findall(r"\*Open to decide:\* [^|]*", text)

    assert_all_same(Path(__file__).parent / "snapshots", "why_opened", texts)


def test_a_row_of_a_question_is_no_request_of_a_person() -> None:
    asked: JsonObject = {"questions": [{"question": "Which street?", "type": "text"}]}
    text = _row(an_approval(an_item(asked, tool="ask_user", is_question=True)))

    assert "*Open to answer*" in text
    assert "asked for" in text
    assert "asked by" not in text
