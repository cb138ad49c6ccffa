"""Build the resume value for a held call from its record."""

from __future__ import annotations

import json

from keyturn.gateway.approvals.record import NOT_KNOWN, Item
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.questions import without_answer
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Answer, AnswerKind

_ENDINGS = {
    ItemState.EXPIRED: "Nobody decided in time",
    ItemState.SUPERSEDED: "The conversation moved on",
    ItemState.WITHDRAWN: "The request was withdrawn",
    ItemState.LAPSED: "The authorization was not used in time",
}

_KINDS = {
    ItemState.ANSWERED: AnswerKind.RESPOND,
    ItemState.REJECTED: AnswerKind.REJECT,
    **{state: AnswerKind(state.value) for state in _ENDINGS},
}

NOT_KNOWN_THERE = "Look before you ask again whether it ran."

ENDS_WITHOUT_REVIEW: frozenset[ItemState] = frozenset(_ENDINGS)
"""States of a call that ended without a reviewer's decision; people may withdraw."""


def answer_for(item: Item) -> Answer | None:
    """Return the answer to resume a held call with; None while it is pending.

    An item that is executing, executed, failed or in doubt gets the answer of its
    authorization: the same answer again, never a second question.
    """
    if item.state is ItemState.PENDING:
        return None
    return _end_of_question(item) if item.is_question else _end_of_call(item)


def _end_of_call(item: Item) -> Answer:
    if item.state in _KINDS:
        text = item.decision.text if item.decision else ""
        message = end_reason(item) if item.state in _ENDINGS else text
        return _answer(item, _KINDS[item.state], message=message)
    if item.edit is not None:
        why, args = item.edit.reason, digest.in_spelling_of(item.spelled, item.args)
        edited = _answer(item, AnswerKind.EDIT, message=why, args=args)
        return edited.with_(approvals=_why_approved(item))
    return _answer(item, AnswerKind.APPROVE, message=_why_approved(item))


_UNANSWERED = {
    ItemState.EXPIRED: "Nobody answered in time.",
    ItemState.SUPERSEDED: "The conversation moved on before anybody answered.",
}


def _end_of_question(item: Item) -> Answer:
    """Return the answers of people, or why there are none."""
    decision = item.decision
    kind = _KINDS.get(item.state, AnswerKind.WITHDRAWN)
    if decision is not None:
        text = decision.text
    else:
        text = _UNANSWERED.get(item.state, "The question was withdrawn.")
    if item.state is ItemState.EXPIRED:
        text = f"{text}\n\n{without_answer(item.questions)}"
    answers = None
    if decision is not None and item.state is ItemState.ANSWERED:
        answers = decision.answers
    found = _answer(item, kind, message=text)
    return found.with_(is_question=True, answers=answers)


def _why_approved(item: Item) -> str:
    """Return the reasons of the approvers, each with its author; or ""."""
    return " ".join(
        f"{vote.by.name or vote.by.user} approved this call and wrote: "
        # As JSON: a reason cannot close its quotes and continue as a sentence of
        # Keyturn.
        f"{json.dumps(vote.reason, ensure_ascii=False)}."
        for vote in item.votes
        # A reason for other arguments is no reason for these.
        if vote.reason and vote.action_hash == item.action_hash
    )


def end_reason(item: Item) -> str:
    """Return why a call without a rejection does not run, for the model."""
    why, reason = _ENDINGS[item.state], ""
    if item.revoked is not None and item.revoked.is_final:
        why = item.revoked.reason.removesuffix(".")
    # Before all others: such a call may have run.
    if item.is_restored:
        return f"{why}. {NOT_KNOWN}; look before you ask again."
    if item.state is ItemState.WITHDRAWN and item.decision is not None:
        why, text = "Somebody who asked for this call took it back", item.decision.text
        reason = (
            f" Their reason: {json.dumps(text, ensure_ascii=False)}." if text else ""
        )
    ran = "did not run."
    if item.has_started and item.handed_to:
        ran = f"is not handed over again. {NOT_KNOWN_THERE}"
    elif item.has_started:  # at least once, so "did not run" would be false
        ran = "does not go on. What it did before that stays."
    return f"{why}, so the call {ran}{reason}"


def unknown_answer(item_id: str, action_hash: str, why: str) -> Answer:
    """Return the answer about an unknown call; ``why`` explains it."""
    return Answer(
        type=AnswerKind.WITHDRAWN,
        item_id=item_id,
        action_hash=action_hash,
        message=(
            f"{why} So it does not run now. Look before you ask again whether it ran "
            "before."
        ),
    )


def _answer(
    item: Item, kind: AnswerKind, *, message: str = "", args: JsonObject | None = None
) -> Answer:
    return Answer(
        type=kind,
        item_id=item.id,
        # Not of `item.action`: the agent compares this with the call it submitted, and
        # gets an edit as `args`.
        action_hash=digest.action_hash(item.requested),
        args=args,
        message=message,
        by=item.decision.by if item.decision else None,
        has_started=item.has_started or item.is_restored,
    )
