"""Check the quality of decisions: spot checks, and records of seeded defects.

A spot check asks somebody else afterwards whether a call that ran was right. A share of
the calls that ran is drawn, those that people approved and those that ran without them
alike. Who asked for a call, changed it or approved it does not check it. The answer is
kept and counted; it undoes nothing and decides nothing.

Which calls are drawn follows from the salt of each call, which no reviewer sees and no
agent chooses: nobody can know it beforehand, and a report that is sent twice draws the
same. A call of tier ``auto`` has no record to ask about, so it is drawn as it is
submitted, and runs as one of tier ``notify`` then.

A seeded defect is a test card that shows a call with a deliberate mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.events import CHECK_ANSWER, EventName, approval_event
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Requirement, Role, SpotCheck
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import ItemState, Person, Record

_TAG = "keyturn/v1/spot-check"

RIGHT, WRONG = "right", "wrong"

TOOK_PART = "Someone else has to check: you requested, edited or approved this call."
ANSWERED = "Somebody answered this spot check before you; nothing more was recorded."
NOT_YOU = (
    "The policy names other people for spot checks, so your answer was not recorded."
)
NOT_ASKED = "Nobody is asked about this call, so nothing was recorded."

APPROVED, NOTICED, EXPIRED = "approved", "noticed", "expired"
"""How a seeded defect ends."""


def is_drawn(item: Item, percent: int) -> bool:
    """Return whether a call is one of this share of all calls."""
    found = digest.tagged_hash(_TAG, item.requested.encode())
    return int(found[-8:], 16) % 100 < percent


def is_due(change: Change, index: int, *, percent: int, of: Sequence[Role]) -> bool:
    """Return whether people are to be asked about a call that ends by this change.

    Not about one that people reconciled: they have looked at it. And not where nobody
    could answer.
    """
    approval, item = change.approval, change.approval.items[index]
    has_run = item.state is ItemState.EXECUTED and not item.reconciled_fence
    if not has_run or not (_is_drawn_before(item) or is_drawn(item, percent)):
        return False
    requirement = Requirement(approvals=1, of=tuple(of))
    return quorum.is_possible(requirement, took_part(approval, item))


def is_counted(change: Change, index: int) -> bool:
    """Return whether the check of a call was counted when it was drawn."""
    return _is_drawn_before(change.approval.items[index])


def asking(change: Change, index: int, of: tuple[Role, ...], now_ms: int) -> Change:
    """Return the end of an execution, with the question whether it was right."""
    item = change.approval.items[index]
    asked = item.with_(spot_check=SpotCheck(of=of, asked_at_ms=now_ms))
    event = approval_event(change.approval, EventName.ITEM_CHECK_ASKED, asked)
    return replace(
        change,
        approval=change.approval.replacing(asked),
        events=(*change.events, event),
    )


def refusal(
    approval: Approval, item: Item, reviewer: Reviewer, of_now: Sequence[Role]
) -> str | None:
    """Return why somebody may not answer, as a sentence for them; None: they may.

    Who answers holds a role that was asked, and one that the policy of now asks.
    """
    check = item.spot_check
    if check is None or not check.asked_at_ms:
        return NOT_ASKED
    if check.by is not None:
        return ANSWERED
    if quorum.is_among(reviewer.person, took_part(approval, item)):
        return TOOK_PART
    whys = (_not_asked(reviewer, roles) for roles in (check.of, of_now))
    return next((why for why in whys if why), None)


def took_part(approval: Approval, item: Item) -> tuple[Person, ...]:
    """Return everybody who asked for a call, or whose word it is that it ran."""
    votes = (*item.votes, *(one.vote for one in item.observations))
    people: list[Person] = [*approval.principals, *item.principals]
    people += (one for vote in votes for one in (vote.by, *vote.on_behalf_of))
    people += item.cover.given_by if item.cover else ()
    people += [item.edit.by] if item.edit else []
    people += [item.decision.by, *item.decision.on_behalf_of] if item.decision else []
    return tuple(people)


def answered(
    approval: Approval,
    item: Item,
    reviewer: Reviewer,
    answer: str,
    *,
    of_now: Sequence[Role],
    now_ms: int,
) -> Change | str:
    """Record an answer, or return a sentence that says why it does not count.

    Args:
        approval: the record as it stands.
        item: the call.
        reviewer: who answers, resolved now.
        answer: `RIGHT` or `WRONG`.
        of_now: whom the policy of now asks.
        now_ms: the store's clock.
    """
    why = refusal(approval, item, reviewer, of_now)
    if why is not None or item.spot_check is None:
        return why or NOT_ASKED
    by = reviewer.person
    check = item.spot_check.with_(answer=answer, by=by, at_ms=now_ms)
    after = approval.replacing(item.with_(spot_check=check), rev=approval.rev + 1)
    event = approval_event(approval, EventName.ITEM_CHECKED, item)
    said = {"gesture": reviewer.gesture.value, CHECK_ANSWER: answer}
    event = event.with_(
        actor=f"{by.team}/{by.user}",
        roles=quorum.roles_of(reviewer, check.of),
        data=event.data | said,
    )
    return Change(after, (event,))


def _not_asked(reviewer: Reviewer, of: Sequence[Role]) -> str | None:
    why = quorum.no_member(reviewer)
    if why is not None or quorum.roles_of(reviewer, of):
        return why
    if unresolved := quorum.unresolved_roles(reviewer, of):
        return quorum.unresolved_reason(unresolved, [reviewer])
    return NOT_YOU


def _is_drawn_before(item: Item) -> bool:
    return item.spot_check is not None and not item.spot_check.asked_at_ms


class SeededCard(Record):
    """A card that shows a call with a mistake.

    Attributes:
        shown: what the card is made of; it is in no list of approvals.
        defect: what is wrong with it.
    """

    shown: Approval
    defect: str


class Seeded(Record):
    """What is known of a tenant's seeded defects.

    Attributes:
        due_ms: when the next one is shown; 0 when that is not drawn yet.
        card: the one that is shown; None for none.
        channel: where its card stands, once it is posted.
        ts: of the card.
        answer: ``approved``, ``noticed`` or ``expired``; empty while it waits.
    """

    due_ms: int = 0
    card: SeededCard | None = None
    channel: str = ""
    ts: str = ""
    answer: str = ""
