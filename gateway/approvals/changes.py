"""Change of an approval (next record, events, timers), and the context of a decision.

The context is the record, click, person and time, and the policy of this moment. A
waiting call needs its own requirement and that of the current policy, and a call that
now needs more is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from keyturn.gateway.approvals import quorum, signed_decisions, timing
from keyturn.gateway.approvals.decisions import (
    CallNow,
    Click,
    Decided,
    Outcome,
    Reconcile,
    Repeated,
    Reviewer,
    TooSoon,
    Voted,
)
from keyturn.gateway.approvals.events import (
    BY_GATEWAY,
    EDITED,
    WAITED_MS,
    Event,
    EventName,
    approval_event,
    named_after,
)
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.approvals.requirement import (
    Floor,
    Observation,
    Requirement,
    Revocation,
    Role,
    Signature,
    Vote,
)
from keyturn.gateway.approvals.timing import with_next_end
from keyturn.gateway.protocol.records import ItemState, Person, Verb, join


@dataclass(frozen=True)
class Change:
    """The next version of an approval, and the effects to write in the same step.

    Attributes:
        approval: the next record, one revision on.
        events: to announce.
        waits_on: why the call keeps waiting after this decision: more people are
            needed, people first have to see a call that the item repeats, or the
            approval came too soon. None: it does not.
        before_ms: latest moment for the write, exclusive, by the store's clock; 0:
            none.
        resumes: the agent is resumed.
        fires: kind of the timer that caused this change; it has to be due.
        timers: further timers to set, next to those derived from the record: kind, and
            time in Unix milliseconds.
    """

    approval: Approval
    events: tuple[Event, ...] = ()
    waits_on: Voted | Repeated | TooSoon | None = None
    before_ms: int = 0
    resumes: bool = False
    fires: str = ""
    timers: tuple[tuple[str, int], ...] = ()

    def outcome(self, index: int) -> Outcome:
        """Return the outcome of a decision on an item, once this change is written."""
        return self.waits_on or Decided(approval=self.approval, index=index)


def following(approval: Approval, *items: Item, **changes: object) -> Approval:
    """Return the next record, with these items and the next revision."""
    after = approval.replacing(*items, rev=approval.rev + 1, **changes)
    return with_next_end(after)


def reached(approval: Approval, *items: Item) -> Change:
    """Return a change to items that have reached these states."""
    events = (approval_event(approval, named_after(one.state), one) for one in items)
    return Change(following(approval, *items), tuple(events))


def by_gateway(
    approval: Approval, item: Item, policy_digest: str = "", **changes: object
) -> Change:
    """Return a change by the gateway: it ends an authorization or a wait.

    ``policy_digest`` is of the policy that required it; "": that of the record.
    """
    after = following(approval, item, **changes)
    name = EventName.ITEM_REOPENED if item.is_pending else named_after(item.state)
    reason = item.revoked.reason if item.revoked else ""
    event = approval_event(after, name, item, reason=reason).with_(actor=BY_GATEWAY)
    if policy_digest:
        event = event.with_(policy_digest=policy_digest)
    return Change(after, (event,))


def ended(
    approval: Approval,
    item: Item,
    transition: Transition,
    reason: str,
    now_ms: int,
    *,
    policy_digest: str = "",
    by: Person | None = None,
) -> Change:
    """Return a change that ends a call for good, for a reason of Keyturn."""
    why = reason_of_end(item, reason, now_ms).with_(is_final=True, by=by)
    after = item.moved(transition, now_ms, revoked=why)
    return by_gateway(approval, after, policy_digest)


def reason_of_end(item: Item, reason: str, now_ms: int) -> Revocation:
    """Return the reason for the gateway's change to a call."""
    # Not counted as one more: the call does not go back to people.
    times = item.revoked.times if item.revoked else 0
    return Revocation(
        reason=reason, at_ms=now_ms, times=times, is_restored=item.is_restored
    )


def by_person(event: Event, person: Reviewer, roles: Iterable[Role] = ()) -> Event:
    """Return an event of a person, with their gesture and their roles among these."""
    held = quorum.roles_of(person, roles)
    return event.with_(
        actor=f"{person.team}/{person.user}",
        roles=tuple(dict.fromkeys(held)),
        data={**event.data, "gesture": person.gesture.value},
    )


@dataclass(frozen=True)
class DecisionContext:
    """Inputs of a decision: the record, the click, the person, the time.

    ``reviewer`` stands in only for delegators whose roles count here; ``resolved`` is
    the same person with all their delegators. ``key`` signs the decision; None: it is
    not signed.
    """

    approval: Approval
    item: Item
    click: Click
    reviewer: Reviewer
    now_ms: int
    now: CallNow
    resolved: Reviewer
    key: signed_decisions.DecisionKey | None = None

    @property
    def policy_now(self) -> PolicyDecision:
        """Return the current policy's decision on the arguments that would run."""
        return self.now.policy_now

    @cached_property
    def requirement(self) -> Requirement:
        """Return the requirement by both the old and the current policy."""
        # The policy may change between the card and the click, in either direction: the
        # stricter of the two versions counts.
        return quorum.stricter(self.item.requirement, self.policy_now.requirement)

    @property
    def lapses_at_ms(self) -> int:
        """Return the end of an authorization that is given now."""
        bounds = self.item.bounds
        if bounds is not None:
            return bounds.until_ms  # the end that the givers saw
        ages = (self.item.authorization_ms, self.policy_now.authorization_ms)
        return self.now_ms + timing.authorization_ms(*ages)

    @property
    def then_and_now(self) -> tuple[Requirement, ...]:
        """Return the requirements of the old and of the current policy."""
        return (self.item.requirement, self.policy_now.requirement)

    @property
    def withdraws(self) -> bool:
        """Return True if this person asked for the call: a rejection withdraws it."""
        return quorum.is_among(self.reviewer.person, self.approval.principals)

    @property
    def on_behalf_of(self) -> tuple[Person, ...]:
        """Return the delegators for whom this person decides here."""
        return tuple(other.person for other in self.reviewer.stands_in_for)

    def vote(
        self,
        item: Item,
        roles: Sequence[Role],
        reason: str = "",
        *,
        verb: Verb = Verb.APPROVE,
    ) -> Vote:
        """Return this person's signed vote for the current action, with their roles."""
        vote = self._vote(item, roles, reason)
        return vote.with_(signed=self._signed(item, vote, verb, vote.roles))

    def observation(self, decision: Reconcile, roles: Sequence[Role]) -> Observation:
        """Return this person's signed finding about the latest attempt."""
        one = Observation(
            finding=decision.finding,
            vote=self._vote(self.item, roles),
            note=decision.note.strip(),
            fence=self.item.fence,
        )
        signature = self._signed(self.item, one, None, one.vote.roles)
        return one.with_(vote=one.vote.with_(signed=signature))

    def _vote(self, item: Item, roles: Sequence[Role], reason: str = "") -> Vote:
        return Vote(
            by=self.reviewer.person,
            roles=quorum.roles_of(self.reviewer, roles),
            action_hash=item.action_hash,
            at_ms=self.now_ms,
            on_behalf_of=self.on_behalf_of,
            # The store's clock minus an age: the bot's own clock decides nothing.
            membership_at_ms=self.now_ms - quorum.age_ms(self.reviewer),
            reason=reason,
        )

    def decision_record(
        self, verb: Verb, text: str, answers: tuple[str, ...] = ()
    ) -> DecisionRecord:
        """Return the record of this person's decision that ends the wait.

        An approval is signed by its votes.
        """
        record = DecisionRecord(
            verb=verb,
            by=self.reviewer.person,
            at_ms=self.now_ms,
            text=text,
            on_behalf_of=self.on_behalf_of,
            answers=answers,
        )
        if verb in {Verb.APPROVE, Verb.EDIT}:
            return record
        roles = quorum.roles_of(self.reviewer, self.requirement.roles)
        return record.with_(signed=self._signed(self.item, record, verb, roles))

    def edit_signature(self, item: Item) -> Signature | None:
        """Return the signature of this person's edit."""
        if item.edit is None:
            return None
        roles = quorum.roles_of(self.reviewer, item.requirement.roles)
        return self._signed(item, item.edit, Verb.EDIT, roles)

    def _signed(
        self,
        item: Item,
        given: signed_decisions.Given,
        verb: Verb | None,
        roles: tuple[str, ...],
    ) -> Signature | None:
        if self.key is None:
            return None
        click = self.click
        is_as_seen = click.action_hash == signed_decisions.given_hash(item, given)
        unsigned = Signature(
            key="",
            sig="",
            verb=verb,
            version=click.version,
            seen="" if is_as_seen else click.action_hash,
            roles=roles,
            request=click.request_digest,
            display=click.display_digest,
            policy=self.policy_now.policy_digest,
        )
        return signed_decisions.signed(self.approval, item, given, unsigned, self.key)

    def needs_reason(self, *verbs: Verb) -> bool:
        """Return True if one of these decisions needs a reason, then or now."""
        needed = (*self.item.requires_reason, *self.policy_now.requires_reason)
        return any(verb in needed for verb in verbs)

    def reopened(self, item: Item, version: int) -> Approval:
        """Return the next record; an item raised to a stricter tier waits no longer."""
        approval = following(self.approval, item, version=version)
        is_raised = item.is_pending and item.tier is not self.item.tier
        # 0 is a time that is not set, not one that is over.
        if not is_raised or not self.policy_now.ttl_ms:
            return approval
        return timing.with_earlier_deadline(
            approval, item, ttl_ms=self.policy_now.ttl_ms, now_ms=self.now_ms
        )

    def change(
        self,
        approval: Approval,
        *events: Event,
        waits_on: Voted | Repeated | TooSoon | None = None,
    ) -> Change:
        """Return a decision on a waiting call, valid only before its deadline."""
        return Change(
            approval,
            events,
            waits_on,
            before_ms=timing.end_of(self.approval, self.item),
            resumes=waits_on is None,
        )

    def event(
        self, item: Item, name: EventName, version: int, *, reason: str | None = None
    ) -> Event:
        """Return the event of a decision: person, action, policy.

        ``reason`` defaults to the text of the item's decision.
        """
        behalf = listed(self.on_behalf_of)
        if reason is None:
            reason = item.decision.text if item.decision else ""
        event = approval_event(self.approval, name, item, reason=reason)
        told = by_person(event, self.reviewer, item.requirement.roles)
        return told.with_(
            version=version,
            # The policy evaluated for this decision may differ from the one that opened
            # the card.
            policy_digest=self.policy_now.policy_digest,
            request_digest=self.click.request_digest,
            data={
                **told.data,
                **({"on_behalf_of": behalf} if behalf else {}),
                **self._measured(item),
            },
        )

    def _measured(self, item: Item) -> dict[str, str]:
        """Return the data for metrics about a decision that ends a wait."""
        if item.is_pending or not self.item.is_pending:
            return {}
        # A call that went back to people waits from then on.
        since_ms = self.item.changed_at_ms or self.approval.created_at_ms
        waited = {WAITED_MS: str(max(0, self.now_ms - since_ms))}
        is_edited = item.state is ItemState.AUTHORIZED and item.edit is not None
        return {**waited, EDITED: "yes"} if is_edited else waited


def listed(people: Iterable[Person]) -> str:
    """Return people in the format of events."""
    return " ".join(f"{person.team}/{person.user}" for person in people)


def raised_item(item: Item, policy_now: PolicyDecision) -> Item:
    """Return an item that needs both its own and the current policy's requirement."""
    tier = join(item.tier, policy_now.tier)
    # dict.fromkeys and not a set: a card shows each reason once, in a fixed order.
    reasons = tuple(dict.fromkeys((*item.reasons, *policy_now.reasons)))
    requirement = quorum.stricter(item.requirement, policy_now.requirement)
    # Use the effect of the current policy, like later calls.
    effect = policy_now.effect or item.effect
    return item.with_(
        tier=tier, reasons=reasons, requirement=requirement, effect=effect
    )


def edit_asks_more(item: Item, raised: Item, policy_now: PolicyDecision) -> bool:
    """Return True if an edit makes its call need more than it needed before.

    The editor then leaves the decision to others. Arguments of a lower tier add that
    tier's people to those that the call needs anyway. That is not a raise: a person who
    makes a call smaller may vote on it.
    """
    if raised.tier is not item.tier:
        return True
    is_lower = policy_now.tier is not raised.tier
    # `stricter` keeps the people of the higher tier and adds those of the lower one.
    return not is_lower and quorum.asks_more(raised.requirement, item.requirement)


def first_of(item: Item, policy_now: PolicyDecision) -> Item:
    """Return a waiting item before the raise by this policy, to evaluate it anew.

    The cause of the raise may be over, such as another call in the same window.
    """
    first = item.floor
    # After a decision the raise stays: people decided about the raised call.
    if first is None or not item.is_pending:
        return item
    if first.policy_digest != policy_now.policy_digest:
        return item.with_(floor=None)  # another policy lowers nothing
    return item.with_(
        tier=first.tier,
        reasons=first.reasons,
        requirement=first.requirement,
        floor=None,
    )


def shown_item(item: Item, policy_now: PolicyDecision) -> Item:
    """Return a waiting item as it is evaluated now."""
    first = first_of(item, policy_now)
    shown = keeping_floor(first, raised_item(first, policy_now), policy_now)
    return shown.with_(past=policy_now.past, is_frozen=bool(policy_now.stopped))


def keeping_floor(first: Item, raised: Item, policy_now: PolicyDecision) -> Item:
    """Return the raised item; if it needs more now, keep the old need as floor."""
    is_same = (raised.tier, raised.requirement) == (first.tier, first.requirement)
    if is_same:
        return raised
    floor = Floor(
        tier=first.tier,
        reasons=first.reasons,
        requirement=first.requirement,
        policy_digest=policy_now.policy_digest,
    )
    return raised.with_(floor=floor)
