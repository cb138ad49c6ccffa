"""Apply a reviewer's decision to one item, as a pure function.

The store commits the change only if nothing moved in between (same ``rev``), so the
rules here see exactly the state that they change. An approval is a vote: the item is
authorized when the quorum is reached. An execution in doubt is reconciled by findings
of the same people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from keyturn.gateway.approvals import editing, quorum, timing
from keyturn.gateway.approvals.changes import (
    Change,
    DecisionContext,
    edit_asks_more,
    first_of,
    following,
    keeping_floor,
    listed,
    raised_item,
    shown_item,
)
from keyturn.gateway.approvals.decisions import (
    Approve,
    CallNow,
    Changed,
    Click,
    Decision,
    Edit,
    Forbidden,
    Invalid,
    Reconcile,
    Refusal,
    Reject,
    Respond,
    Reviewer,
    Stale,
    TooSoon,
    Voted,
    explain_state,
)
from keyturn.gateway.approvals.editing import reading_of
from keyturn.gateway.approvals.events import AFTER_MS, Event, EventName, named_after
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.approvals.repeating import show_first, unseen
from keyturn.gateway.approvals.requirement import Requirement, Vote
from keyturn.gateway.approvals.signed_decisions import DecisionKey
from keyturn.gateway.errors import BadJson
from keyturn.gateway.protocol import edits, questions
from keyturn.gateway.protocol.records import Finding, ItemState, Person, Tier, Verb

MAX_TEXT = 3000
"""Longest reason or response: the limit of one Slack text input."""

REASON_POINTER = "/reason"
"""Pointer of the reason of an approval in `Invalid`.

An edit does not use it: its pointers lead into the arguments, and an argument may be
called ``reason``.
"""

NEEDS_OWN_DECISION = Forbidden(
    reason=(
        "One of these calls is now escalated or no longer allowed, so nothing was "
        "recorded for it. Please review it on its own."
    )
)
ALREADY_APPROVED = Forbidden(
    reason="You already approved. Someone else has to approve too."
)


_DENIED = "The policy no longer allows this call."
_OUTLIVED = (
    "Too late to approve: the policy now gives less time. Reject, or let it expire; "
    "the agent can ask again."
)
_UNREAD = (
    "Not approvable: the tool would not run with exactly these arguments. Edit or "
    "reject."
)

_WENT_ON = (
    "Nobody was asked about this call, so its agent did not wait and went on. It can "
    "make the call again."
)
_MOVES = {
    Finding.EXECUTED: Transition.EXECUTE,
    Finding.RERUN: Transition.RETRY,
    Finding.SKIP: Transition.FAIL,
}

SECOND_CLICK_MS = 2_000
"""Two clicks nearer to each other count as one: a double click, or a resent one."""

_SAME_CLICK = Forbidden(
    reason=(
        "Not counted yet: you approved sooner than the policy accepts. Please read "
        "it, then approve again."
    )
)


def decide(
    approval: Approval,
    click: Click,
    decision: Decision,
    reviewer: Reviewer,
    *,
    now_ms: int,
    now: CallNow,
    key: DecisionKey | None = None,
) -> Change | Refusal:
    """Apply a decision to an approval, or return why it does not count.

    The checks have a fixed order, and the first failure is the answer: the item is
    open, in time and unchanged; the reviewer may decide it; the decision is well
    formed.

    Args:
        approval: the current record.
        click: the version and hash that the reviewer saw, of an existing item.
        decision: of the reviewer.
        reviewer: resolved now.
        now_ms: the store's clock.
        now: facts about the call at this moment.
        key: the bot's key, which signs the decision.
    """
    item = first_of(approval.items[click.index], now.policy_now)
    # The reviewer is passed twice. `_actor` needs a context, and narrows `reviewer` to
    # the delegations that count here; `resolved` keeps all of them.
    given = click, reviewer, now_ms, now, reviewer, key
    context = DecisionContext(approval, item, *given)
    if reviewer.stands_in_for:
        context = replace(context, reviewer=_actor(context))
    if isinstance(decision, Reconcile):
        # Its item is in doubt, not open.
        return _reconcile(context, decision)
    # The docstring promises this order: a late reviewer gets "too late", not "you may
    # not decide".
    return (
        not_as_seen(approval, click, now_ms)
        or _not_permitted(context, decision)
        or _apply(context, decision)
    )


def _actor(context: DecisionContext) -> Reviewer:
    """Return the reviewer with the people they stand in for.

    Only requesters can withdraw a call, never a stand-in for them.
    """
    item, reviewer = context.item, context.reviewer
    if context.withdraws:
        return reviewer.with_(stands_in_for=())
    # Use the current requirement too: an editor must not approve the call through a
    # stand-in.
    barred = quorum.editors(item, context.requirement)
    if item.state is ItemState.IN_DOUBT:
        barred = item.principals
        item = item.with_(votes=tuple(one.vote for one in item.observations_now))
    principals = (*context.approval.principals, *barred)
    others = votes_of_others(item, reviewer.person)
    return quorum.standing_in(
        reviewer, context.requirement.roles, principals, others, item.action_hash
    )


def _apply(
    context: DecisionContext, decision: Approve | Edit | Reject | Respond
) -> Change | Refusal:
    match decision:
        case Approve():
            return _approve(context, decision.reason)
        case Edit():
            return _edit(context, decision)
        case Reject():
            if context.needs_reason(Verb.REJECT) and not decision.reason.strip():
                return Invalid(errors={"": "Please give a reason to reject."})
            transition = Transition.WITHDRAW if context.withdraws else Transition.REJECT
            return _close(context, transition, Verb.REJECT, decision.reason)
        case Respond():
            return _respond(context, decision)
        case _:
            assert_never(decision)


def not_as_seen(approval: Approval, click: Click, now_ms: int) -> Refusal | None:
    """Return why a click does not count: its item has ended, is late or has changed."""
    if refusal := no_such_item(approval, click):
        return refusal
    item = approval.items[click.index]
    is_open = item.is_pending and not timing.is_late(approval, item, now_ms)
    if is_open and not _is_changed(approval, click):
        return None
    return explain_state(
        approval, click.index, seen_version=click.version, now_ms=now_ms
    )


def _is_changed(approval: Approval, click: Click) -> bool:
    seen = (click.version, click.action_hash)
    return seen != (approval.version, approval.items[click.index].action_hash)


def no_such_item(approval: Approval, click: Click) -> Refusal | None:
    """Return why a click does not count: the approval has no such item."""
    # A negative index would reach an item from the end.
    if 0 <= click.index < len(approval.items):
        return None
    return Changed(seen_version=click.version, version=approval.version)


def _not_permitted(
    context: DecisionContext, decision: Approve | Edit | Reject | Respond
) -> Refusal | None:
    item, policy_now, verb = context.item, context.policy_now, Verb(decision.kind)
    reason = quorum.denial_reason(
        context.approval,
        item,
        context.reviewer,
        verb,
        requirement=context.requirement,
        then_and_now=context.then_and_now,
    )
    if reason is not None and not _may_change(context, verb):
        return Forbidden(reason=reason)
    # Check both: `allow` of the tool may be narrower or wider than when the card
    # opened.
    if verb not in item.allow or verb not in policy_now.allow:
        return Invalid(errors={"": f"{decision.kind} is not allowed for this tool."})
    # A frozen call can be rejected: a rejection starts nothing.
    if policy_now.stopped and verb in {Verb.APPROVE, Verb.EDIT}:
        return Forbidden(reason=policy_now.stopped)
    return None


def _may_change(context: DecisionContext, verb: Verb) -> bool:
    """Return True if this person may edit a call that, once edited, needs others."""
    if verb is not Verb.EDIT or context.now.waiting_now is None:
        return False
    item = context.item
    needed = quorum.stricter(item.requirement, context.now.waiting_now.requirement)
    # Check all the people they stand in for: `context.reviewer` is narrowed to the
    # roles that the changed call needs.
    why = quorum.denial_reason(
        context.approval, item, context.resolved, verb, requirement=needed
    )
    return why is None


def _approve(
    context: DecisionContext, reason: str, pointer: str = REASON_POINTER
) -> Change | Refusal:
    item = raised_item(context.item, context.policy_now)
    if item.tier is Tier.DENY:
        return Forbidden(reason=_DENIED)
    # "Approve all" was clicked on a card that did not show this call as escalated.
    if item.tier is Tier.ESCALATE and context.click.is_shared:
        return NEEDS_OWN_DECISION
    if is_counted(context, item):
        return ALREADY_APPROVED
    problem = _too_long(reason, pointer)
    if context.needs_reason(Verb.APPROVE) and not reason.strip():
        problem = {pointer: "Please give a reason to approve."}
    if problem:
        return Invalid(errors=problem)
    precedent = unseen(context, item)
    if precedent is not None:
        return show_first(context, item, precedent)
    again = asked_again(context, item)
    return again or vote(context, item, Verb.APPROVE, text=reason)


def _edit(context: DecisionContext, edit: Edit) -> Change | Refusal:
    errors = _too_long(edit.reason, "")
    # Check both schemas: the tool was submitted with the first, and the current policy
    # asks for the second.
    for rules in (context.item, context.policy_now):
        errors = errors or edits.edit_errors(
            rules.args_schema, context.item.args, edit.args
        )
    if errors:
        return Invalid(errors=errors)
    try:
        document = editing.edited_document(context.item, edit.args)
    except BadJson as error:
        pointer = error.pointer.removeprefix("/args")
        return Invalid(errors={pointer: f"{error.problem}."})
    # Compare canonical bytes: another order of keys, or 1.0 for 1, is no change.
    if document == context.item.action:
        return _unchanged(context, edit.reason)
    # An edit also approves the edited call.
    if context.needs_reason(Verb.EDIT, Verb.APPROVE) and not edit.reason.strip():
        return Invalid(errors={"": "Please give a reason for the edit."})
    return _changed(context, document, edit.reason)


def _respond(context: DecisionContext, decision: Respond) -> Change | Refusal:
    if context.item.is_question:
        return _answer(context, decision)
    if not decision.message.strip():
        return Invalid(errors={"": "The answer is empty."})
    return _close(context, Transition.ANSWER, Verb.RESPOND, decision.message)


def _answer(context: DecisionContext, decision: Respond) -> Change | Refusal:
    """Answer all questions of a call in one step, or none of them."""
    asked = context.item.questions
    given = decision.answers or (decision.message,)
    if problems := questions.answer_problems(asked, given):
        return Invalid(errors={f"/{n}": why for n, why in problems.items()})
    answers = tuple(answer.strip() for answer in given)
    text = questions.transcript(asked, answers)
    record = context.decision_record(Verb.RESPOND, text, answers)
    return _closed(context, Transition.ANSWER, record)


def _changed(context: DecisionContext, document: str, reason: str) -> Change | Refusal:
    record = editing.edit_record(
        context.item,
        document,
        by=context.reviewer.person,
        at_ms=context.now_ms,
        reason=reason,
    )
    policy_now = context.policy_now
    edited = context.item.with_(
        action=document,
        edit=record,
        # Votes are for one action hash: no earlier vote counts for the edited call.
        votes=(),
        # The old texts describe the requested call, not this one.
        description=policy_now.description,
        agent_description="",
        link=policy_now.link,
        effect=policy_now.effect,
    )
    edited = edited.with_(edit_signed=context.edit_signature(edited))
    raised = raised_item(edited, policy_now)
    if raised.tier is Tier.DENY:
        return Invalid(errors={"": "The policy does not allow these arguments."})
    asks_others = (
        not raised.requirement.editor_may_vote
        or edit_asks_more(context.item, raised, policy_now)
        or not quorum.roles_of(context.reviewer, raised.requirement.roles)
    )
    if not asks_others:
        precedent = unseen(context, raised)
        if precedent is not None:
            return show_first(context, raised, precedent)
        return vote(context, raised, Verb.EDIT, text=reason)
    principals = (*raised.principals, context.reviewer.person)
    return _reopened(context, raised.with_(principals=principals))


def _unchanged(context: DecisionContext, reason: str) -> Change | Refusal:
    # An edit without a change is an approval, and needs `approve` in `allow`: otherwise
    # "edit" would be a way around a forbidden "approve".
    if _not_permitted(context, Approve()) is None:
        return _approve(context, reason, pointer="")
    return Invalid(errors={"": "Nothing was changed, and approve is not allowed."})


def _reopened(context: DecisionContext, item: Item) -> Change:
    approval = context.reopened(item, context.approval.version + 1)
    event = context.event(item, EventName.ITEM_EDITED, approval.version)
    count = quorum.tally(item.requirement, (), item.action_hash)
    return context.change(approval, event, waits_on=_voted(approval, item, count))


def _close(
    context: DecisionContext, transition: Transition, verb: Verb, text: str
) -> Change | Refusal:
    problem = _too_long(text, "")
    if problem:
        return Invalid(errors=problem)
    return _closed(context, transition, context.decision_record(verb, text))


def _closed(
    context: DecisionContext, transition: Transition, decision: DecisionRecord
) -> Change:
    # Keep the requirement shown on the card: ending a call lowers nothing that it
    # needed.
    item = shown_item(context.item, context.policy_now).moved(
        transition, context.now_ms, floor=None, decision=decision
    )
    approval = following(context.approval, item)
    event = context.event(item, named_after(item.state), approval.version)
    return context.change(approval, event)


def _too_long(text: str, pointer: str) -> dict[str, str]:
    if len(text) <= MAX_TEXT:
        return {}
    return {pointer: f"This is {len(text)} characters, {MAX_TEXT} are allowed."}


# Require a second click if an escalated call is approved within seconds.
#
# The policy sets the time (``tiers.escalate.ask_again_within``). An approval sooner
# after the call was shown is noted in the audit log and does not count. The next one by
# the same person counts, at any later time. A click out of habit thus costs a second
# look but no wait. A rejection is never asked again: it starts nothing.


def asked_again(context: DecisionContext, item: Item) -> Change | Forbidden | None:
    """Return the result of an approval that is too soon; None if it counts.

    Args:
        context: of the decision.
        item: the call as it would run.
    """
    since_ms = shown_ms(context.approval, item)
    after_ms = context.now_ms - since_ms
    # Negative: the store's clock went back. No approval would count as a second one
    # until the clock has caught up, so require none.
    is_soon = 0 <= after_ms < context.policy_now.ask_again_ms
    if item.tier is not Tier.ESCALATE or not is_soon:
        return None
    first_ms = min(
        (
            one.at_ms
            for one in item.too_soon
            if one.by.is_same(context.reviewer.person)
            and one.action_hash == item.action_hash
            # Skip approvals from before the call went back to people: it looked
            # different.
            and one.at_ms >= since_ms
        ),
        default=None,
    )
    if first_ms is None:
        return _noted(context, item, after_ms)
    is_same_click = context.now_ms - first_ms < SECOND_CLICK_MS
    return _SAME_CLICK if is_same_click else None


def _noted(context: DecisionContext, item: Item, after_ms: int) -> Change:
    # Keep the item unchanged: this click does not apply the current policy's
    # requirement.
    before = context.approval.items[item.index]
    vote = context.vote(item, item.requirement.roles)
    noted = before.with_(too_soon=(*before.too_soon, vote))
    approval = following(context.approval, noted)
    event = context.event(noted, EventName.ITEM_ASKED_AGAIN, approval.version)
    event = event.with_(data=event.data | {AFTER_MS: str(after_ms)})
    too_soon = TooSoon(approval=approval, index=item.index, after_ms=after_ms)
    return context.change(approval, event, waits_on=too_soon)


def shown_ms(approval: Approval, item: Item) -> int:
    """Return the time since when the call was visible in its current form."""
    edited_ms = item.edit.at_ms if item.edit else 0
    times = (item.changed_at_ms, item.repeats_seen_ms, edited_ms)
    return max(approval.created_at_ms, *times)


def is_counted(context: DecisionContext, item: Item) -> bool:
    """Return True if this person's vote exists and a new one would add nothing.

    A person may vote again after they got another role, or if Slack could not confirm a
    role at the first vote. The new vote replaces the old one.
    """
    person, action_hash = context.reviewer.person, item.action_hash
    if not quorum.has_voted(item.votes, person, action_hash):
        return False
    if quorum.tally(item.requirement, item.votes, action_hash).is_met:
        return False  # the requirement has shrunk since: a new vote completes it
    if quorum.has_voted(votes_of_others(item, person), person, action_hash):
        return True
    counted = {
        name
        for vote in item.votes
        if vote.action_hash == action_hash and vote.by.is_same(person)
        for name in vote.roles
    }
    return counted.issuperset(quorum.roles_of(context.reviewer, item.requirement.roles))


def votes_of_others(item: Item, person: Person) -> tuple[Vote, ...]:
    """Return the votes of other people for an item."""
    return tuple(vote for vote in item.votes if not vote.by.is_same(person))


def vote(
    context: DecisionContext, item: Item, verb: Verb, text: str
) -> Change | Refusal:
    """Count an approval; authorize the item when the quorum is complete.

    Args:
        context: of the decision.
        item: the call as it would run, with the current policy's requirement.
        verb: APPROVE, or EDIT when the reviewer changed the arguments.
        text: the reviewer's reason.
    """
    why_not = _UNREAD if reading_of(item) else _outlived(context)
    if why_not:
        return Forbidden(reason=why_not)
    is_edited = item.action != context.item.action
    # Buttons carry the version: a new one invalidates every click on the old card.
    version = context.approval.version + (1 if is_edited else 0)
    reason, roles = text if verb is Verb.APPROVE else "", item.requirement.roles
    vote = context.vote(item, roles, reason, verb=verb)
    barred = quorum.editors(context.item, item.requirement)
    # A second vote of a person replaces their first; it never adds one. Drop votes of
    # people who edited the call later, or whom the policy now bars as editors.
    before = [
        one
        for one in votes_of_others(item, vote.by)
        if not quorum.is_among(one.by, barred)
    ]
    counted = _counted(context, item.requirement, before, vote)
    if isinstance(counted, Forbidden):
        return counted
    earlier, count = counted
    lost = [
        one.by
        for one in before
        if not quorum.has_voted(earlier, one.by, one.action_hash)
    ]
    # Remove votes that no longer count from the record, so a claim ignores them too.
    item = item.with_(votes=(*earlier, vote))
    events = list[Event]()
    if is_edited:
        events.append(context.event(item, EventName.ITEM_EDITED, version))
    if count.is_met:
        word = Verb.EDIT if item.edit else verb
        item = item.moved(
            Transition.AUTHORIZE,
            context.now_ms,
            lapses_at_ms=context.lapses_at_ms,
            decision=context.decision_record(word, text),
        )
    elif not is_edited:
        item = keeping_floor(context.item, item, context.policy_now)
    approval = context.reopened(item, version)
    name = EventName.ITEM_AUTHORIZED if count.is_met else EventName.ITEM_VOTED
    last = context.event(item, name, version, reason=text)
    if lost:
        last = last.with_(data=last.data | {"no_longer": listed(lost)})
    voted = None if count.is_met else _voted(approval, item, count)
    return context.change(approval, *events, last, waits_on=voted)


def _counted(
    context: DecisionContext,
    requirement: Requirement,
    before: Sequence[Vote],
    mine: Vote,
) -> tuple[tuple[Vote, ...], quorum.Tally] | Forbidden:
    """Count a vote with earlier ones; return the earlier votes that still count.

    Earlier voters are checked again only if this vote would be the last: each check
    needs calls to Slack, which are rate-limited.
    """
    roles = requirement.roles
    # Check every delegator of this person, also those whose roles do not count:
    # one of them may have a role that Slack could not confirm.
    if unresolved := quorum.unresolved_roles(context.resolved, roles):
        return Forbidden(
            reason=quorum.unresolved_reason(unresolved, [context.resolved])
        )
    count = quorum.tally(requirement, (*before, mine), mine.action_hash)
    if not count.is_met:
        return tuple(before), count
    # An unknown role is not a lost one: keep the vote and record nothing. The person
    # clicks again.
    if doubtful := quorum.doubtful_roles(before, context.now.voters, roles):
        return Forbidden(reason=quorum.unresolved_reason(doubtful, context.now.voters))
    still = quorum.asked_again(before, context.now.voters, roles)
    return still, quorum.tally(requirement, (*still, mine), mine.action_hash)


def _voted(approval: Approval, item: Item, count: quorum.Tally) -> Voted:
    return Voted(approval=approval, index=item.index, have=count.have, need=count.need)


def _outlived(context: DecisionContext) -> str:
    """Return why a call is too old to approve; "" if it is not.

    The current policy may give the call's tier less time than the card had. A call that
    was raised to a stricter tier has its deadline shortened instead, see `reopened`.
    """
    approval, item, policy_now = context.approval, context.item, context.policy_now
    # `latest_at_ms` is set: the raise has shortened the deadline already.
    if not policy_now.ttl_ms or item.latest_at_ms:
        return ""
    is_same = policy_now.tier is item.tier and policy_now.ttl_ms < approval.ttl_ms
    end_ms = timing.end_ms(approval, item, ttl_ms=policy_now.ttl_ms)
    return _OUTLIVED if is_same and context.now_ms >= end_ms else ""


def _reconcile(context: DecisionContext, decision: Reconcile) -> Change | Refusal:
    """Record a person's finding about an execution in doubt.

    It needs the same people as the call itself, and they have to agree. Each finding is
    kept with its note, and the doubt ends when enough people found the same.
    """
    approval, item, finding = context.approval, context.item, decision.finding
    is_again = finding is Finding.RERUN
    # The current policy counts only for a rerun: a policy that cannot be met any more
    # must not keep a doubt open for ever.
    requirement = context.requirement if is_again else item.requirement
    if refusal := _not_reconcilable(context, decision, requirement):
        return refusal
    mine = context.observation(decision, requirement.roles)
    # A second finding of a person replaces their first.
    others = [one for one in item.observations_now if not one.by.is_same(mine.by)]
    same = [one.vote for one in others if one.finding is finding]
    counted = _counted(context, requirement, same, mine.vote)
    if isinstance(counted, Forbidden):
        return counted
    _, count = counted
    item = item.with_(observations=(*others, mine))
    name, version = EventName.ITEM_OBSERVED, approval.version
    if count.is_met:
        # Findings about this attempt do not apply to the next one.
        name, version = EventName.ITEM_RECONCILED, version + is_again
        # Any later report by this attempt's owner is late.
        change = {"finding": finding, "reconciled_fence": item.fence}
        item = item.moved(_MOVES[finding], context.now_ms, **change)
    if count.is_met and is_again:
        # The result of the last attempt is not a result of the next one.
        item = item.with_(result=None, lapses_at_ms=context.lapses_at_ms)
    after = following(approval, item, version=version)
    event = context.event(item, name, version, reason=finding.value)
    noted = {"note": mine.note} if mine.note else {}
    return Change(
        after,
        (event.with_(data=event.data | noted),),
        waits_on=None if count.is_met else _voted(after, item, count),
        resumes=count.is_met,
    )


def _not_reconcilable(
    context: DecisionContext, decision: Reconcile, requirement: Requirement
) -> Refusal | None:
    approval, item, click = context.approval, context.item, context.click
    # No deadline is checked: a doubt does not expire.
    if item.state is not ItemState.IN_DOUBT:
        return Stale(item=item)
    if _is_changed(approval, click):
        return Changed(seen_version=click.version, version=approval.version)
    # Slack's form limits it as well, but a program may call this.
    if problem := _too_long(decision.note, "/note"):
        return Invalid(errors=problem)
    reason = quorum.ineligible_reason(
        context.reviewer, requirement, approval.principals, item.principals
    )
    if reason is None and decision.finding is Finding.RERUN:
        reason = _no_rerun(context)
    if reason is None and any(
        one.finding is decision.finding and one.by.is_same(context.reviewer.person)
        for one in item.observations_now
    ):
        reason = "Your answer is already counted. More people are needed."
    return Forbidden(reason=reason) if reason else None


def _no_rerun(context: DecisionContext) -> str | None:
    """Return why this call may not run again; None if it may."""
    item, policy_now = context.item, context.policy_now
    # Its agent went on without the call, so the result of a second run would be lost.
    if item.is_auto_approved:
        return _WENT_ON
    if policy_now.stopped:
        return policy_now.stopped
    verb = item.decision.verb if item.decision else Verb.APPROVE
    if policy_now.tier is Tier.DENY or verb not in policy_now.allow:
        return _DENIED
    return None
