"""Build replies to clicks, the agent's final answer, and messages about failures."""

from __future__ import annotations

from typing import LiteralString, assert_never

from keyturn.bot.blocks import Message, section
from keyturn.bot.cards.needs import so_far, still_needed
from keyturn.bot.cards.noticed import happened
from keyturn.bot.cards.refs import when, who
from keyturn.bot.cards.states import what_ran
from keyturn.bot.text import (
    Label,
    Template,
    chunks,
    code,
    excerpt,
    joined,
    label,
    template,
    untrusted,
)
from keyturn.gateway.approvals.decisions import (
    Changed,
    Decided,
    Expired,
    Forbidden,
    Invalid,
    Outcome,
    Repeated,
    Stale,
    TooSoon,
    Unknown,
    Voted,
)
from keyturn.gateway.approvals.lifecycle import UNEXECUTED
from keyturn.gateway.approvals.record import DecisionRecord
from keyturn.gateway.protocol.records import ItemState, Verb

_MAX_TEXT = 8_000
_SECTION = 2_800

_ENDED: dict[ItemState, LiteralString] = {
    ItemState.PENDING: "Still waiting",
    ItemState.AUTHORIZED: "Already approved",
    ItemState.EXECUTING: "Already approved and running",
    ItemState.EXECUTED: "Already done",
    ItemState.FAILED: "Already failed",
    ItemState.IN_DOUBT: "Waiting for people to check whether it took effect",
    ItemState.REJECTED: "Already rejected",
    ItemState.ANSWERED: "Already answered",
    ItemState.EXPIRED: "The time to decide is over",
    ItemState.SUPERSEDED: "Cancelled by a newer message",
    ItemState.WITHDRAWN: "Already withdrawn",
    ItemState.LAPSED: "Approved, but the approval lapsed",
}
_DECIDED_BY: dict[Verb, LiteralString] = {
    Verb.APPROVE: "approved by {who} {at}",
    Verb.EDIT: "edited and approved by {who} {at}",
    Verb.REJECT: "rejected by {who} {at}",
    Verb.RESPOND: "answered by {who} {at}",
}

_WITHDRAWN_BY: LiteralString = "withdrawn by {who} {at}"
_SKIPPED_BY: LiteralString = "skipped by {who} {at}"
_NOTHING_CHANGED = template("Nothing changed.")


def outcome_text(outcome: Outcome, *, now_ms: int) -> Template | Label:
    """Return the private sentence for the person who clicked, also after success.

    It states the result and the next step, without text of an agent, a customer or
    another reviewer.
    """
    match outcome:
        case Decided():
            sentence = template("Recorded, thank you.")
        case Voted() | Repeated() | TooSoon():
            sentence = _waits_on(outcome)
        case Stale():
            sentence = _stale(outcome)
        case Changed():
            sentence = template(
                "The card changed after you opened it, so nothing was recorded: you "
                "saw version {seen}, now it is version {now}. Please look at the card "
                "again.",
                seen=outcome.seen_version,
                now=outcome.version,
            )
        case Expired():
            sentence = _expired(outcome, now_ms=now_ms)
        case Forbidden():
            # The gateway's own sentence; it may name roles of the policy.
            return label(outcome.reason)
        case Invalid():
            # Its sentences may quote the arguments; they are shown in the form.
            sentence = template(
                "Your decision is not allowed here, or a value does not fit, so "
                "nothing was recorded. Please open the form again from the card."
            )
        case Unknown():
            sentence = template(
                "This approval is not known any more, so nothing was recorded. It may "
                "be too old; the agent can ask again."
            )
        case _:
            assert_never(outcome)
    return sentence


def agent_answer(text: str) -> Message:
    """Return an agent's answer at the end of a run: untrusted, so plain text.

    A text too long for one message is cut in the middle, with a mark.
    """
    parts = chunks(excerpt(text, _MAX_TEXT).text, _SECTION)
    return Message(
        blocks=tuple(section(untrusted(part)) for part in parts),
        text="The agent answered.",
    )


def no_answer() -> Message:
    """Return the message about a run that ended without an answer.

    A model may end with an empty text, or with an unreadable call.
    """
    sentence = template(
        "The agent ended without an answer. Write to it here to ask what it did, or to "
        "go on."
    )
    return Message((section(sentence),), "The agent ended without an answer.")


def unshown_answer() -> Message:
    """Return the replacement of an agent's answer that Slack refuses."""
    sentence = template(
        "Slack refuses the agent's answer. Please ask the agent for a shorter one."
    )
    text = "The agent answered, but its answer cannot be shown."
    return Message((section(sentence),), text)


def shortened(message: Message) -> Message:
    """Return the replacement of a message that Slack refuses.

    Shortening it again changes nothing.
    """
    sentence = template("Slack refuses the rest of this message, so it is not shown.")
    said = untrusted(excerpt(message.text, _SECTION).text)
    return Message((section(said), section(sentence)), message.text)


def corrupt_record(approval_id: str) -> Message:
    """Return the reply under a card whose record is corrupt, and thus void."""
    sentence = template(
        "⚠️ The record of {id} is corrupt, so none of its calls can be decided or "
        "run, even if the card says otherwise. The agent is told. Please ask the "
        "gateway's operator to check who else writes to its store.",
        id=code(approval_id),
    )
    text = "The record of an approval is corrupt, so nothing of it runs."
    return Message((section(sentence),), text)


def run_failed() -> Message:
    """Return the message about an agent that could not be resumed after a decision."""
    sentence = template(
        "⚠️ The agent could not be resumed, and the gateway stopped trying. The "
        "decision is kept. Please tell the operator of the agent."
    )
    return Message((section(sentence),), "The agent could not be resumed.")


def _waits_on(outcome: Voted | Repeated | TooSoon) -> Template:
    match outcome:
        case Voted():
            return _voted(outcome)
        case Repeated():
            return _repeated(outcome)
        case TooSoon():
            # Rounded up, because "within 0 seconds" makes no sense.
            return template(
                "Not counted yet: you approved within {n} s. Read it, then approve "
                "again.",
                n=outcome.after_ms // 1000 + 1,
            )
        case _:
            assert_never(outcome)


def _voted(outcome: Voted) -> Template:
    item = outcome.approval.items[outcome.index]
    if item.state is ItemState.IN_DOUBT:
        return template(
            "Your answer is recorded: {have} of {need} people found the same.",
            have=outcome.have,
            need=outcome.need,
        )
    # No vote counts: the editor may not vote, so the change needs others.
    if not outcome.have:
        return template("Your change is recorded. Someone else has to approve it.")
    item = outcome.approval.items[outcome.index]
    sentence = template("Your approval is recorded: ")
    return joined("", [sentence, so_far(item), still_needed(item), template(".")])


def _repeated(outcome: Repeated) -> Template:
    item = outcome.approval.items[outcome.index]
    is_edited = item.edit is not None and item.edit.edited_hash == item.action_hash
    kept = [template("Your change is kept.")] if is_edited else []
    return joined(
        " ",
        [
            template("Not approved: the same call"),
            joined("", [happened(outcome.precedent), template(".")]),
            *kept,
            template("To run both, approve again."),
        ],
    )


def _stale(outcome: Stale) -> Template:
    decision = outcome.decision
    if decision is not None:
        sentence = joined(" ", [template("Already"), _decided_by(outcome, decision)])
    else:
        sentence = joined(" ", [template(_ENDED[outcome.state]), *_at(outcome.at_ms)])
    is_call = outcome.state in UNEXECUTED and not outcome.is_question
    ran = [template(what_ran(outcome))] if is_call else []
    return joined(" ", [joined("", [sentence, template(".")]), *ran, _NOTHING_CHANGED])


def _decided_by(outcome: Stale, decision: DecisionRecord) -> Template:
    said = _DECIDED_BY[decision.verb]
    if outcome.is_question and decision.verb is Verb.REJECT:
        said = _SKIPPED_BY
    elif outcome.state is ItemState.WITHDRAWN:
        said = _WITHDRAWN_BY
    return template(
        said,
        who=who(decision.by),
        at=when(decision.at_ms),
    )


def _at(at_ms: int) -> list[Template]:
    return [template("({at})", at=when(at_ms))] if at_ms else []


def _expired(outcome: Expired, *, now_ms: int) -> Template:
    late_s = max(0, now_ms - outcome.expires_at_ms) // 1000
    return template(
        "Expired {at}, {late} seconds ago, so nothing was recorded. The agent can ask "
        "again.",
        at=when(outcome.expires_at_ms),
        late=late_s,
    )
