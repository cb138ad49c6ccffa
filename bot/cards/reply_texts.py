"""Build the private reply to a person who clicked or submitted a form."""

from __future__ import annotations

from typing import LiteralString, assert_never

from keyturn.bot.cards.refs import when, who
from keyturn.bot.cards.states import STATE_NAMES, approvals, still_needed, what_ran
from keyturn.bot.cards.table import happened
from keyturn.bot.text import Label, Template, joined, label, template
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
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import ItemState, Verb

_DECIDED_BY: dict[Verb, LiteralString] = {
    Verb.APPROVE: "approved",
    Verb.EDIT: "edited and approved",
    Verb.REJECT: "rejected",
    Verb.RESPOND: "answered",
}
_FIXED: dict[type[Outcome], LiteralString] = {
    Decided: "Recorded, thank you.",
    # Its sentences may quote the arguments; they are shown in the form.
    Invalid: (
        "Your decision is not allowed here, or a value does not fit, so nothing was "
        "recorded. Please open the form again from the card."
    ),
    Unknown: (
        "This approval is not known any more, so nothing was recorded. It may be too "
        "old; the agent can ask again."
    ),
}


def outcome_text(outcome: Outcome) -> Template | Label:
    """Return the private sentence for the person who clicked, also after success.

    It states the result and the next step, without text of an agent, a customer or
    another reviewer.
    """
    match outcome:
        case Decided() | Invalid() | Unknown():
            sentence = template(_FIXED[type(outcome)])
        case Voted():
            sentence = _voted(outcome)
        case Repeated():
            sentence = _repeated(outcome)
        case TooSoon():
            # Rounded up, because "within 0 seconds" makes no sense.
            sentence = template(
                "Not counted yet: you approved within {n} s. Read it, then approve "
                "again.",
                n=outcome.after_ms // 1000 + 1,
            )
        case Stale():
            sentence = _stale(outcome.item)
        case Changed():
            sentence = template(
                "The card changed after you opened it, so nothing was recorded: you "
                "saw version {seen}, now it is version {now}. Please look at the card "
                "again.",
                seen=outcome.seen_version,
                now=outcome.version,
            )
        case Expired():
            sentence = template(
                "Expired {at}, so nothing was recorded. The agent can ask again.",
                at=when(outcome.expires_at_ms),
            )
        case Forbidden():
            # The gateway's own sentence; it may name roles of the policy.
            return label(outcome.reason)
        case _:
            assert_never(outcome)
    return sentence


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
    return template(
        "Your approval is recorded: {votes}{more}.",
        votes=approvals(item),
        more=still_needed(item),
    )


def _repeated(outcome: Repeated) -> Template:
    item = outcome.approval.items[outcome.index]
    is_edited = item.edit is not None and item.edit.edited_hash == item.action_hash
    kept: LiteralString = " Your change is kept." if is_edited else ""
    return template(
        "Not approved: the same call {past}." + kept + " To run both, approve again.",
        past=happened(outcome.precedent),
    )


def _stale(item: Item) -> Template:
    """Return who or what was faster, and that nothing changed."""
    decision, at_ms = item.decision, item.changed_at_ms
    said, by = STATE_NAMES[item.state], template("")
    if decision is not None and item.state is not ItemState.WITHDRAWN:
        said = _DECIDED_BY[decision.verb]
        if item.is_question and decision.verb is Verb.REJECT:
            said = "skipped"
    if decision is not None:
        by, at_ms = template(" by {who}", who=who(decision.by)), decision.at_ms
    at = template(" {at}", at=when(at_ms)) if at_ms else template("")
    parts = [template("Already " + said + "{by}{at}.", by=by, at=at)]
    if item.state in UNEXECUTED and (ran := what_ran(item)):
        parts.append(template(ran))
    return joined(" ", [*parts, template("Nothing changed.")])
