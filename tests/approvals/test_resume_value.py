"""A held call is resumed with the result in its record, and never asked again."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.ending import (
    RESTORED,
    THREAD_LOST,
    end_overdue,
    end_waiting,
)
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.record import DecisionRecord, Item
from keyturn.gateway.approvals.requirement import Revocation, Vote
from keyturn.gateway.approvals.resume_value import answer_for, unknown_answer
from keyturn.gateway.protocol.records import ItemState, Verb
from keyturn.gateway.protocol.wire import Answer, AnswerKind
from tests.approvals.builders import ANA, CHLOE, NOW_MS, an_approval, an_item


def test_there_is_no_answer_while_people_are_asked() -> None:
    assert answer_for(an_item()) is None


def in_state(state: ItemState, verb: Verb, text: str = "") -> Item:
    decision = DecisionRecord(verb=verb, by=ANA, at_ms=NOW_MS, text=text)
    return an_item().with_(state=state, decision=decision)


def answer(item: Item) -> Answer:
    found = answer_for(item)
    assert found is not None
    assert (found.item_id, found.has_started) == (item.id, item.fence > 0)
    return found


@pytest.mark.parametrize(
    "state",
    [
        ItemState.AUTHORIZED,
        ItemState.EXECUTING,
        ItemState.EXECUTED,
        ItemState.FAILED,
        ItemState.IN_DOUBT,
    ],
)
def test_an_approved_call_is_answered_as_approved_however_far_it_is(
    state: ItemState,
) -> None:
    item = in_state(state, Verb.APPROVE)
    vote = Vote(by=CHLOE, roles=(), action_hash=item.action_hash, at_ms=1, reason="ok")
    old = vote.with_(action_hash="another", reason="no longer")

    found = answer(item.with_(votes=(vote, old)))

    assert found.type is AnswerKind.APPROVE
    assert found.message == 'Chloé approved this call and wrote: "ok".'


def test_a_call_that_was_taken_back_says_so_with_the_reason_or_without() -> None:
    plain = answer(in_state(ItemState.WITHDRAWN, Verb.REJECT))
    reason = answer(in_state(ItemState.WITHDRAWN, Verb.REJECT, 'a "typo"'))
    started = answer(in_state(ItemState.WITHDRAWN, Verb.REJECT).with_(fence=1))

    assert plain.message == (
        "Somebody who asked for this call took it back, so it did not run."
    )
    assert reason.message == f'{plain.message} Their reason: "a \\"typo\\"".'
    assert started.message == (
        "Somebody who asked for this call took it back, so it does not go on. What it "
        "did before that stays."
    )


def test_whether_it_began_is_told_with_every_end() -> None:
    lapsed = an_item().with_(state=ItemState.LAPSED)
    why = Revocation(reason=THREAD_LOST, at_ms=1, is_final=True)

    assert answer(lapsed).message == (
        "The authorization was not used in time, so the call did not run."
    )
    assert answer(lapsed.with_(fence=1)).message == (
        "The authorization was not used in time, so the call does not go on. "
        "What it did before that stays."
    )
    assert answer(lapsed.with_(revoked=why)).message == (
        "The saved state of the agent's conversation is gone, so the call did not run."
    )


def test_of_a_call_in_an_older_copy_nobody_says_that_it_did_not_run() -> None:
    why = Revocation(reason=RESTORED, at_ms=1, is_restored=True)
    item = an_item().with_(state=ItemState.EXPIRED, revoked=why)

    found = answer_for(item)

    assert found is not None
    assert found.has_started
    assert "did not run" not in found.message
    assert found.message.endswith("look before you ask again.")


def test_a_call_that_nothing_is_known_of_does_not_run_and_may_have() -> None:
    found = unknown_answer("ap.0", "sha256:1", "Its record is gone.")

    assert (found.type, found.item_id) == (AnswerKind.WITHDRAWN, "ap.0")
    assert found.message == (
        "Its record is gone. So it does not run now. Look before you ask again whether "
        "it ran before."
    )


def test_an_authorization_lapses_for_the_reason_that_ended_it() -> None:
    item = in_state(ItemState.AUTHORIZED, Verb.APPROVE).with_(lapses_at_ms=100)
    approval = an_approval(item)

    moved_on = end_waiting(approval, Transition.SUPERSEDE, 50)
    overdue = end_overdue(approval, 100)

    assert moved_on
    assert overdue
    assert answer(moved_on.approval.items[0]).message == (
        "A newer message came, so the call did not run."
    )
    assert answer(overdue.approval.items[0]).message == (
        "The authorization was not used in time, so the call did not run."
    )
