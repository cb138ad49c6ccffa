"""The reply to a click is one sentence about the result and the next step."""

from __future__ import annotations

import pytest
from hypothesis import given

from keyturn.bot.cards.channel_messages import agent_answer, run_failed
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
    Stale,
    Unknown,
    Voted,
)
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.record import DecisionRecord
from keyturn.gateway.protocol.records import ItemState, Verb
from tests.bot.samples import (
    ANA,
    BEN,
    LATER,
    NOW,
    TWO,
    a_refund,
    a_vote,
    an_approval,
)
from tests.bot.strategies import CANARY, hostile

BY_ANA = DecisionRecord(verb=Verb.APPROVE, by=ANA, at_ms=NOW, text=CANARY)
ESCALATED = a_refund(requirement=TWO)
NO_SENIOR = ESCALATED.with_(votes=(a_vote(ESCALATED, ANA), a_vote(ESCALATED, BEN)))
ONE_JUNIOR = ESCALATED.with_(votes=(a_vote(ESCALATED, ANA),))

SENTENCES: list[tuple[Outcome, tuple[str, ...]]] = [
    (Decided(approval=an_approval(), index=0), ("Recorded, thank you.",)),
    (
        Voted(approval=an_approval(ONE_JUNIOR), index=0, have=1, need=2),
        ("1 of 2; still needs 1 from `senior`.",),
    ),
    (
        Voted(approval=an_approval(NO_SENIOR), index=0, have=2, need=2),
        ("2 so far; still needs 1 from `senior`.",),
    ),
    (
        Voted(approval=an_approval(), index=0, have=0, need=2),
        ("Someone else has to approve",),
    ),
    (
        Stale(state=ItemState.EXECUTED, decision=BY_ANA, at_ms=NOW),
        (
            "Already approved by <@U0ANA> <!date^1795255200^",
            "Nothing changed",
        ),
    ),
    (
        Stale(
            state=ItemState.REJECTED,
            decision=BY_ANA.with_(verb=Verb.REJECT),
            at_ms=NOW,
        ),
        ("Already rejected by <@U0ANA>",),
    ),
    (
        Stale(
            state=ItemState.WITHDRAWN,
            decision=BY_ANA.with_(verb=Verb.REJECT),
            at_ms=NOW,
        ),
        ("Already withdrawn by <@U0ANA>",),
    ),
    (
        Stale(state=ItemState.SUPERSEDED, at_ms=NOW),
        ("Cancelled by a newer message", "<!date^1795255200^"),
    ),
    (Stale(state=ItemState.WITHDRAWN), ("Already withdrawn", "Nothing ran.")),
    (Changed(seen_version=1, version=2), ("saw version 1", "it is version 2")),
    (Expired(expires_at_ms=LATER), ("Expired", "12 seconds", "nothing was recorded")),
    (Forbidden(reason="You asked for this."), ("You asked for this",)),
    (Invalid(errors={"": CANARY, "/a": CANARY}), ("nothing was recorded",)),
    (Unknown(), ("not known any more",)),
]


@pytest.mark.parametrize(("outcome", "parts"), SENTENCES)
def test_each_outcome_has_its_sentence(
    outcome: Outcome, parts: tuple[str, ...]
) -> None:
    sentence = to_mrkdwn(outcome_text(outcome, now_ms=LATER + 12_000))

    assert all(part in sentence for part in parts), sentence
    assert CANARY not in sentence


@pytest.mark.parametrize("state", ItemState)
def test_every_state_that_came_first_is_told(state: ItemState) -> None:
    sentence = to_mrkdwn(outcome_text(Stale(state=state), now_ms=NOW))

    assert sentence.endswith("Nothing changed.")


def test_a_reason_of_the_gateway_is_shown_as_plain_text_or_escaped() -> None:
    forbidden = Forbidden(reason="Only <!channel> & co can decide this.")

    assert outcome_text(forbidden, now_ms=NOW) == Label(forbidden.reason)
    assert "<!channel>" not in to_mrkdwn(outcome_text(forbidden, now_ms=NOW))


@given(hostile)
def test_an_agents_words_are_all_there(text: str) -> None:
    message = agent_answer(text)

    assert message.text == "The agent answered."
    assert len(message.blocks) >= 1


def test_long_words_of_an_agent_take_several_blocks() -> None:
    message = agent_answer("word " * 1_000)

    shown = "".join(str(block["text"]) for block in message.blocks)
    assert len(message.blocks) == 2
    assert shown.count("word") == 1_000


def test_a_failed_resume_is_told_calmly() -> None:
    assert run_failed().text == "The agent could not be resumed."


def said(outcome: GestureOutcome) -> str:
    told = batch_reply(outcome, now_ms=NOW)
    return to_mrkdwn(told) if told else ""


def test_a_batch_decision_that_settled_every_call_needs_no_words() -> None:

    assert said(GestureDecided(approvals={}, approved=(0, 1))) == ""


def test_what_a_batch_decision_left_open_is_said() -> None:
    outcome = GestureDecided(
        approvals={}, approved=(0, 1), edited=(2,), waiting=(1,), left_out=(3, 4)
    )

    assert said(outcome) == (
        "Your decision on 3 calls is recorded. More people are needed for 1 of them. "
        "2 calls need their own review: open each from the card."
    )


def test_the_first_of_two_people_is_told_that_one_more_is_needed() -> None:
    outcome = GestureDecided(
        approvals={}, approved=(0, 1), waiting=(0, 1), needs_one=True
    )

    assert said(outcome) == (
        "Your approval of 2 calls is recorded. One more person is needed."
    )


def test_one_call_is_said_in_the_singular() -> None:
    outcome = GestureDecided(approvals={}, approved=(0,), waiting=(0,), left_out=(1,))

    assert said(outcome) == (
        "Your approval of 1 call is recorded. More people are needed. 1 call "
        "needs its own review: open it from the card."
    )


def test_the_call_that_stopped_a_batch_decision_is_named() -> None:
    forbidden = Forbidden(reason="The policy does not allow that.")

    assert said(GestureRefused(refusals={2: forbidden})) == (
        "Nothing was recorded, because of call 3. The policy does not allow that."
    )
    invalid = Invalid(errors={"/amount": "-1 is too small"})
    assert "-1" not in said(GestureRefused(refusals={0: invalid}))
    stale = said(GestureRefused(refusals={0: Stale(state=ItemState.REJECTED)}))
    assert stale.startswith("Nothing was recorded, because of call 1. Already")
    assert said(forbidden) == "The policy does not allow that."


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_run_that_ends_without_words_is_told_as_well(*, is_plain: bool) -> None:
    ended = Event(
        name=EventName.RUN_FINISHED,
        tenant="default",
        agent="support",
        thread="t1",
        data={"text": ""},
    )

    found = message_without_card(
        ended, command="/keyturn", is_last=True, is_plain=is_plain
    )

    assert found
    assert "ended without an answer" in str(found.blocks)
