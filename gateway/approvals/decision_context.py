"""Context of a decision (record, click, person, time), and the event to announce it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from keyturn.gateway.approvals import quorum, timing
from keyturn.gateway.approvals.changes import following
from keyturn.gateway.approvals.decisions import Click, Reviewer
from keyturn.gateway.approvals.events import (
    EDITED,
    WAITED_MS,
    Event,
    EventName,
    approval_event,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, DecisionRecord, Item
from keyturn.gateway.approvals.requirement import Requirement, Role, Signature, Vote
from keyturn.gateway.approvals.signed_decisions import (
    DecisionKey,
    Word,
    signed,
    word_of_edit,
    word_of_end,
    word_of_vote,
)
from keyturn.gateway.protocol.records import Finding, ItemState, Person, Verb


@dataclass(frozen=True)
class DecisionContext:
    """Inputs of a decision: the record, the click, the person, the time.

    ``reviewer`` stands in only for delegators whose roles count here; ``resolved`` is
    the same person with all their delegators. ``key`` signs the decision; None: it is
    not signed. ``waiting_now`` is the current policy's decision on the call without the
    edit under decision.
    """

    approval: Approval
    item: Item
    click: Click
    reviewer: Reviewer
    now_ms: int
    policy_now: PolicyDecision | None
    voters: tuple[Reviewer, ...]
    resolved: Reviewer
    key: DecisionKey | None = None
    waiting_now: PolicyDecision | None = None

    @cached_property
    def requirement(self) -> Requirement:
        """Return the requirement by both the old and the current policy."""
        if self.policy_now is None:
            return self.item.requirement
        # The policy may change between the card and the click, in either direction: the
        # stricter of the two versions counts.
        return quorum.stricter(self.item.requirement, self.policy_now.requirement)

    @property
    def lapses_at_ms(self) -> int:
        """Return the end of an authorization that is given now."""
        bounds = self.item.bounds
        if bounds is not None:
            return bounds.until_ms  # the end that the givers saw
        now = self.policy_now.authorization_ms if self.policy_now else 0
        ages = (self.item.authorization_ms, now)
        return self.now_ms + timing.authorization_ms(*ages)

    @property
    def then_and_now(self) -> tuple[Requirement, ...]:
        """Return the requirements of the old and of the current policy."""
        now = () if self.policy_now is None else (self.policy_now.requirement,)
        return (self.item.requirement, *now)

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
        verb: Verb | None = Verb.APPROVE,
        finding: Finding | None = None,
        note: str = "",
    ) -> Vote:
        """Return this person's vote for the current action, with their roles.

        With a finding, the vote is about the latest attempt and has no verb; its
        signature covers the note.
        """
        vote = Vote(
            by=self.reviewer.person,
            roles=quorum.roles_of(self.reviewer, roles),
            action_hash=item.action_hash,
            at_ms=self.now_ms,
            on_behalf_of=self.on_behalf_of,
            # The store's clock minus an age: the bot's own clock decides nothing.
            membership_at_ms=self.now_ms - quorum.age_ms(self.reviewer),
            reason=reason,
        )
        if self.key is None:
            return vote
        fence = item.fence if finding else 0
        word = word_of_vote(
            self.approval, item, vote, finding=finding, note=note, fence=fence
        )
        return vote.with_(signed=self._signed(word, verb, vote.roles))

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
        if self.key is None or verb in {Verb.APPROVE, Verb.EDIT}:
            return record
        word = word_of_end(self.approval, self.item, record, self.item.action_hash)
        roles = quorum.roles_of(self.reviewer, self.requirement.roles)
        return record.with_(signed=self._signed(word, verb, roles))

    def edit_signature(self, item: Item) -> Signature | None:
        """Return the signature of this person's edit."""
        word = word_of_edit(self.approval, item)
        if self.key is None or word is None:
            return None
        roles = quorum.roles_of(self.reviewer, item.requirement.roles)
        return self._signed(word, Verb.EDIT, roles)

    def _signed(
        self, word: Word, verb: Verb | None, roles: tuple[str, ...]
    ) -> Signature | None:
        if self.key is None:
            return None
        click, asked = self.click, self.policy_now or self.approval
        unsigned = Signature(
            key="",
            sig="",
            verb=verb,
            version=click.version,
            seen="" if click.action_hash == word.action_hash else click.action_hash,
            roles=roles,
            request=click.request_digest,
            display=click.display_digest,
            policy=asked.policy_digest,
        )
        return signed(word, unsigned, self.key)

    def needs_reason(self, *verbs: Verb) -> bool:
        """Return True if one of these decisions needs a reason, then or now."""
        now = self.policy_now.requires_reason if self.policy_now else ()
        return any(verb in (*self.item.requires_reason, *now) for verb in verbs)


def reopened(context: DecisionContext, item: Item, version: int) -> Approval:
    """Return the next record; an item raised to a stricter tier waits no longer."""
    approval = following(context.approval, item, version=version)
    is_raised = item.is_pending and item.tier is not context.item.tier
    # 0 is a time that is not set, not one that is over.
    if not is_raised or context.policy_now is None or not context.policy_now.ttl_ms:
        return approval
    return timing.with_earlier_deadline(
        approval, item, ttl_ms=context.policy_now.ttl_ms, now_ms=context.now_ms
    )


def event_of(
    context: DecisionContext,
    item: Item,
    name: EventName,
    version: int,
    *,
    reason: str | None = None,
) -> Event:
    """Return the event of a decision: person, action, policy.

    ``reason`` defaults to the text of the item's decision.
    """
    actor: Person = context.reviewer.person
    policy_now, behalf = context.policy_now, listed(context.on_behalf_of)
    if reason is None:
        reason = item.decision.text if item.decision else ""
    event = approval_event(context.approval, name, item, reason=reason)
    return event.with_(
        version=version,
        # The policy evaluated for this decision may differ from the one that opened the
        # card.
        policy_digest=(policy_now or context.approval).policy_digest,
        actor=f"{actor.team}/{actor.user}",
        roles=quorum.roles_of(context.reviewer, item.requirement.roles),
        request_digest=context.click.request_digest,
        data={
            **event.data,
            "gesture": context.reviewer.gesture.value,
            **({"on_behalf_of": behalf} if behalf else {}),
            **_measured(context, item),
        },
    )


def _measured(context: DecisionContext, item: Item) -> dict[str, str]:
    """Return the data for metrics about a decision that ends a wait."""
    if item.is_pending or not context.item.is_pending:
        return {}
    # A call that went back to people waits from then on.
    since_ms = context.item.changed_at_ms or context.approval.created_at_ms
    waited = {WAITED_MS: str(max(0, context.now_ms - since_ms))}
    is_edited = item.state is ItemState.AUTHORIZED and item.edit is not None
    return {**waited, EDITED: "yes"} if is_edited else waited


def listed(people: Iterable[Person]) -> str:
    """Return people in the format of events."""
    return " ".join(f"{person.team}/{person.user}" for person in people)
