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
    """What a decision is made over: the record, the click, the person, the time.

    ``reviewer`` stands in for those alone whose roles count here; ``resolved`` is the
    same person with everybody who handed their queue to them. ``key`` signs what they
    say; None: nobody signs. ``waiting_now`` is what the current policy asks for the
    call without the edit that is decided on.
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
        """Return who has to agree, by both the old and the current policy."""
        if self.policy_now is None:
            return self.item.requirement
        # The policy may change between the card and the click, in either direction:
        # neither an old card nor a new file may need fewer people than the other.
        return quorum.stricter(self.item.requirement, self.policy_now.requirement)

    @property
    def lapses_at_ms(self) -> int:
        """Return when an authorization that is given now ends by itself."""
        bounds = self.item.bounds
        if bounds is not None:
            return bounds.until_ms  # as those who gave it saw it
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
        """Return whether this person asked for the call, so a no takes it back."""
        return quorum.is_among(self.reviewer.person, self.approval.principals)

    @property
    def on_behalf_of(self) -> tuple[Person, ...]:
        """Return those for whom this person decides here."""
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
        """Return this person's word for what would run, with the roles they hold.

        With a finding, it is about the latest attempt to run it, and no verb; the note
        is signed with it.
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
        """Return this person's word as the one that ends the waiting.

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
        """Return the signature of an edit that this person made."""
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
        """Return whether one of these decisions has to say why, then or now."""
        now = self.policy_now.requires_reason if self.policy_now else ()
        return any(verb in (*self.item.requires_reason, *now) for verb in verbs)


def reopened(context: DecisionContext, item: Item, version: int) -> Approval:
    """Return the next record; what still waits at a stricter tier waits no longer."""
    approval = following(context.approval, item, version=version)
    is_raised = item.is_pending and item.tier is not context.item.tier
    # 0 is a time that nobody set, not one that is over.
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
    """Return what is announced of a decision: who, what, under which policy.

    Without a ``reason``, that of the decision that the item holds.
    """
    actor: Person = context.reviewer.person
    policy_now, behalf = context.policy_now, listed(context.on_behalf_of)
    if reason is None:
        reason = item.decision.text if item.decision else ""
    event = approval_event(context.approval, name, item, reason=reason)
    return event.with_(
        version=version,
        # Of the policy that was asked for this decision, which may not be the one that
        # opened the card.
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
    """Return what metrics need of the last word on a waiting call."""
    if item.is_pending or not context.item.is_pending:
        return {}
    # What went back to people waits from then on.
    since_ms = context.item.changed_at_ms or context.approval.created_at_ms
    waited = {WAITED_MS: str(max(0, context.now_ms - since_ms))}
    is_edited = item.state is ItemState.AUTHORIZED and item.edit is not None
    return {**waited, EDITED: "yes"} if is_edited else waited


def listed(people: Iterable[Person]) -> str:
    """Return people as an event names them."""
    return " ".join(f"{person.team}/{person.user}" for person in people)
