"""Check the quality of decisions: spot checks of calls, and seeded defects.

A seeded defect is a call with a mistake that no agent proposed. It cannot run: its
record is not an approval, claims never read it, and it has no thread. It counts only in
separate metrics.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence

from keyturn.gateway.approvals import quality_checks, quorum
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.events import SEEDED_ANSWER, Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Role
from keyturn.gateway.policy.evaluate import Facts, Raise, evaluate
from keyturn.gateway.policy.rules import Policy, SeededCall, SpotCheckRule
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.submit.proposals import (
    EvaluatedCall,
    Source,
    TurnPrecedents,
    propose,
)
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store import keys as store_keys
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

DRAWN = Raise(to=Tier.NOTIFY, reason="Shown because a spot check was drawn of it.")
"""Raises a call of tier ``auto``, so that it runs with a card for the spot check."""


class SpotCheckService(PolicyService):
    """The spot checks of one tenant."""

    async def answer(
        self, approval_id: str, index: int, reviewer: Reviewer, *, is_right: bool
    ) -> str:
        """Record once whether a call was right; return why it is refused, or "".

        Raises:
            StoreUnavailable: when it is not known to be recorded.
            CorruptRecord: when the record is corrupt.
        """
        answer = quality_checks.RIGHT if is_right else quality_checks.WRONG
        change, of_now = quality_checks.answered, self._of_now()
        found = await self.change_own(
            approval_id, change, index, reviewer, answer, of_now
        )
        if isinstance(found, Change):
            return ""
        return found if isinstance(found, str) else quality_checks.NOT_ASKED

    def usergroups(self, *roles: Role) -> frozenset[str]:
        """Return the user groups of these roles and of the policy's checkers."""
        asked = (*roles, *self._of_now())
        return frozenset(group for role in asked for group in role.usergroups)

    def _of_now(self) -> tuple[Role, ...]:
        # If the policy has no checkers any more, open questions stay.
        policy = self._policy()
        rule = policy.spot_checks
        return policy.roles_named(rule.of) if rule else ()


async def draw(
    store: Store,
    keys: Keys,
    rule: SpotCheckRule | None,
    evaluated: Sequence[EvaluatedCall],
) -> frozenset[int]:
    """Draw calls of tier ``auto`` for a spot check; return their positions."""
    if rule is None:
        return frozenset()
    return frozenset(
        [
            position
            for position, one in enumerate(evaluated)
            if one.evaluation.tier is Tier.AUTO and not one.refusal
            if secrets.randbelow(100) < rule.share
            if await store.spot_checks.take(keys, rule.per_day)
        ]
    )


async def with_spot_check(
    store: Store, policy: Policy, change: Change, index: int, now_ms: int
) -> Change:
    """Return the end of an execution, with the spot check if one is due."""
    rule = policy.spot_checks
    if rule is None:
        return change
    of = policy.roles_named(rule.of)
    if not quality_checks.is_due(change, index, percent=rule.share, of=of):
        return change
    keys = store.keys_of_tenant(change.approval.tenant)
    is_counted = quality_checks.is_drawn_before(change.approval.items[index])
    may_ask = is_counted or await store.spot_checks.take(keys, rule.per_day)
    return quality_checks.asking(change, index, of, now_ms) if may_ask else change


class SeededDefectService(PolicyService):
    """The seeded defects of one tenant."""

    async def read(self) -> quality_checks.Seeded:
        """Return the state of the seeded defect; raises `StoreUnavailable`."""
        return await self._store.seeded.read(self._keys)

    async def waiting(self) -> Loaded | None:
        """Return the shown card as a waiting approval; None without one.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        seeded = await self.read()
        if seeded.card is None or not seeded.ts or seeded.answer:
            return None
        now_ms = await self._store.conn.now_ms(self._keys.outbox)
        loaded = Loaded(seeded.card.shown, now_ms)
        is_over = loaded.now_ms >= loaded.approval.expires_at_ms
        return None if is_over else loaded

    async def show_if_due(self, seeded: quality_checks.Seeded, now_ms: int) -> None:
        """Record the next card when it is due, or plan its time.

        Raises:
            StoreUnavailable: when it is not known to be recorded.
        """
        policy = self._policy()
        rule = policy.seeded_defects
        if rule is None or seeded.card is not None:
            return
        if not seeded.due_ms:
            every_ms = int(rule.every.total_seconds() * 1000)
            # From half to one and a half times as long, so that it is unexpected.
            due_ms = now_ms + every_ms // 2 + secrets.randbelow(every_ms)
            await self._store.seeded.note(self._keys, due_ms=due_ms)
            return
        if now_ms < seeded.due_ms:
            return
        call = secrets.choice(rule.calls)
        shown = seeded_approval(policy, call, self._tenant, now_ms)
        if shown is None:
            # For example, a rule denies it. The next look draws again.
            logger.warning("seeded.not_shown tool=%r", call.tool)
            await self._store.seeded.end(self._keys)
            return
        card = quality_checks.SeededCard(shown=shown, defect=call.defect)
        await self._store.seeded.note(self._keys, card=card)

    async def posted(
        self, card: quality_checks.SeededCard, channel: str, ts: str
    ) -> None:
        """Count a card, and record its place; raises `StoreUnavailable`."""
        event = self._event(card, EventName.SEEDED_SHOWN)
        seeded = self._store.seeded
        await seeded.note(self._keys, event, channel=channel, ts=ts)

    async def answer(
        self, card: quality_checks.SeededCard, reviewer: Reviewer, *, has_approved: bool
    ) -> bool:
        """Count a reviewer's answer; False when the card had ended before.

        Raises:
            StoreUnavailable: when it is not known to be recorded.
        """
        answer = quality_checks.APPROVED if has_approved else quality_checks.NOTICED
        by = reviewer.person
        event = self._event(card, EventName.SEEDED_ANSWERED).with_(
            actor=f"{by.team}/{by.user}",
            data={"gesture": reviewer.gesture.value, SEEDED_ANSWER: answer},
        )
        return await self._store.seeded.note(self._keys, event, answer=answer)

    async def expire(self, card: quality_checks.SeededCard) -> None:
        """Count a card without an answer in time; raises `StoreUnavailable`."""
        event = self._event(card, EventName.SEEDED_EXPIRED)
        await self._store.seeded.note(self._keys, event, answer=quality_checks.EXPIRED)

    async def end(self) -> None:
        """Remove the record of a revealed card; raises `StoreUnavailable`."""
        await self._store.seeded.end(self._keys)

    def _event(self, card: quality_checks.SeededCard, name: EventName) -> Event:
        shown, item = card.shown, card.shown.items[0]
        # Without ids of an approval, because there is none.
        return Event(
            name=name,
            tenant=self._tenant,
            agent=shown.agent,
            tool=item.tool,
            tier=item.tier,
            policy_digest=shown.policy_digest,
            channel=shown.channel,
        )


def refusal(card: quality_checks.SeededCard, reviewer: Reviewer) -> str | None:
    """Return why a reviewer could not decide such a call; None if they could."""
    item = card.shown.items[0]
    return quorum.ineligible_reason(reviewer, item.requirement, ())


def seeded_approval(
    policy: Policy, call: SeededCall, tenant: str, now_ms: int
) -> Approval | None:
    """Return the approval that would open if an agent proposed the call now.

    None when the call would not need people.
    """
    facts = Facts(now_ms=now_ms, windows=dict.fromkeys(policy.windows, 0))
    evaluation = evaluate(
        policy, agent=call.agent, tool=call.tool, args=call.args, facts=facts
    )
    if not evaluation.tier.needs_people:
        return None
    name = secrets.token_hex(16)
    proposed = ProposedCall(tool=call.tool, args=call.args, tool_call_id=name)
    ref = TurnRef(agent=call.agent, thread=f"seeded-{name}", message_id=name)
    turn = Turn(ref=ref, calls=(proposed,), says=call.says)
    keys = store_keys.keys_of_tenant(tenant)
    source = Source(TurnPrecedents(policy, turn, keys, ("",), {}))
    # The code for real calls, so that the cards look alike. The verdict and the events,
    # which would make a call run, are dropped.
    found = propose([EvaluatedCall(proposed, evaluation)], source).approvals
    if not found:
        return None
    expires_at_ms = now_ms + found[0].ttl_ms
    # A call that no agent proposed must not offer a standing approval.
    items = tuple(item.with_(can_cover=False) for item in found[0].items)
    return found[0].with_(
        items=items, created_at_ms=now_ms, expires_at_ms=expires_at_ms
    )
