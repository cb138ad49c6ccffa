"""The reply to a click is one sentence about the result and the next step."""

from __future__ import annotations

import pytest

from keyturn.bot.cards.channel_messages import agent_answer
from keyturn.bot.cards.reply_texts import outcome_text
from keyturn.bot.delivery.event_messages import message_without_card
from keyturn.bot.listener_context import to_mrkdwn
from keyturn.bot.listeners.choosing import batch_reply
from keyturn.bot.text import Label
from keyturn.gateway.approvals.decisions import (
    Changed,
    Decided,
    Expired,
    Forbidden,
    GestureDecided,
    GestureOutcome,
    GestureRefused,
    Invalid,
    Outcome,
    Repeated,
    Stale,
    Unknown,
    Voted,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.precedents import Precedent
from keyturn.gateway.approvals.record import Approval, DecisionRecord
from keyturn.gateway.protocol.records import ItemState, Verb
from tests.bot.samples import ANA, BEN, LATER, NOW, TWO, a_refund, a_vote, an_approval
from tests.bot.snapshots import CARD_TEXTS, assert_all_same
from tests.bot.strategies import CANARY

BY_ANA = DecisionRecord(verb=Verb.APPROVE, by=ANA, at_ms=NOW, text=CANARY)
REJECTED = BY_ANA.with_(verb=Verb.REJECT)
ESCALATED = a_refund(requirement=TWO)
POLICY = Forbidden(reason="The policy does not allow that.")


def voted(approval: Approval, have: int) -> Outcome:
    return Voted(approval=approval, index=0, have=have, need=2)


def escalated(*voters: str) -> Approval:
    people = {"ana": ANA, "ben": BEN}
    votes = tuple(a_vote(ESCALATED, people[one]) for one in voters)
    return an_approval(ESCALATED.with_(votes=votes))


def ended(
    state: ItemState, decision: DecisionRecord | None = None, at_ms: int = NOW
) -> Stale:
    changes = {"state": state, "decision": decision, "changed_at_ms": at_ms}
    return Stale(item=a_refund().with_(**changes))


OUTCOMES: dict[str, Outcome] = {
    "decided": Decided(approval=an_approval(), index=0),
    "one of two": voted(escalated("ana"), 1),
    "two of two, and the senior lacks": voted(escalated("ana", "ben"), 2),
    "a vote that does not count": voted(an_approval(), 0),
    "Ana was first": ended(ItemState.EXECUTED, BY_ANA),
    "rejected": ended(ItemState.REJECTED, REJECTED),
    "withdrawn": ended(ItemState.WITHDRAWN, REJECTED),
    "superseded": ended(ItemState.SUPERSEDED),
    "withdrawn by the agent": ended(ItemState.WITHDRAWN, at_ms=0),
    "another version": Changed(seen_version=1, version=2),
    "late by 12 seconds": Expired(expires_at_ms=LATER),
    "forbidden": Forbidden(reason="You asked for this."),
    "invalid": Invalid(errors={"": CANARY, "/a": CANARY}),
    "unknown": Unknown(),
    "the same call ran": Repeated(
        approval=an_approval(),
        index=0,
        precedent=Precedent(
            call="ap_other.0", state=ItemState.EXECUTED, agent="a", by=(ANA,), at_ms=NOW
        ),
    ),
}


def test_each_outcome_has_its_sentence() -> None:
    texts = {name: to_mrkdwn(outcome_text(one)) for name, one in OUTCOMES.items()}

    assert_all_same(CARD_TEXTS, "replies", texts)


@pytest.mark.parametrize("state", ItemState)
def test_every_state_that_came_first_is_told(state: ItemState) -> None:
    sentence = to_mrkdwn(outcome_text(ended(state)))

    assert sentence.endswith("Nothing changed.")


def test_a_reason_of_the_gateway_is_shown_as_plain_text_or_escaped() -> None:
    forbidden = Forbidden(reason="Only <!channel> & co can decide this.")

    assert outcome_text(forbidden) == Label(forbidden.reason)
    assert "<!channel>" not in to_mrkdwn(outcome_text(forbidden))


def test_long_words_of_an_agent_are_all_there() -> None:
    message = agent_answer("word " * 1_000)

    assert message.text == "The agent answered."
    assert "".join(str(one["text"]) for one in message.blocks).count("word") == 1_000


def several(**changes: object) -> GestureOutcome:
    return GestureDecided(approvals={}).with_(**changes)


GESTURES: dict[str, GestureOutcome] = {
    "all settled": several(approved=(0, 1)),
    "some left open": several(
        approved=(0, 1), edited=(2,), waiting=(1,), left_out=(3, 4)
    ),
    "the first of two people": several(approved=(0, 1), waiting=(0, 1)),
    "one call": several(approved=(0,), waiting=(0,), left_out=(1,)),
    "stopped by the third call": GestureRefused(refusals={2: POLICY}),
    "stopped by an invalid edit": GestureRefused(
        refusals={0: Invalid(errors={"/amount": CANARY})}
    ),
    "stopped by a decided call": GestureRefused(
        refusals={0: ended(ItemState.REJECTED, at_ms=0)}
    ),
    "forbidden": POLICY,
}


def test_a_decision_about_several_calls_has_its_sentence() -> None:
    replies = {name: batch_reply(one) for name, one in GESTURES.items()}
    texts = {name: to_mrkdwn(one) if one else "" for name, one in replies.items()}

    assert_all_same(CARD_TEXTS, "replies_about_several", texts)


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_run_that_ends_without_words_is_told_as_well(*, is_plain: bool) -> None:
    name, data = EventName.RUN_FINISHED, {"text": ""}
    ended = Event(name=name, tenant="default", agent="support", thread="t1", data=data)

    found = message_without_card(
        ended, command="/keyturn", is_last=True, is_plain=is_plain
    )

    assert found
    assert "ended without an answer" in str(found.blocks)
