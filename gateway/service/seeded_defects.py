"""Seeded defects: show calls with a mistake, and count whether reviewers notice it.

No agent asks for them. Their record is no approval and lies where no claim reads it,
and they have no thread, so there is nothing that could run. They count in their own
numbers alone.
"""

from __future__ import annotations

import logging
import secrets

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.events import SEEDED_ANSWER, Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.seeded import (
    APPROVED,
    EXPIRED,
    NOTICED,
    Seeded,
    SeededCard,
)
from keyturn.gateway.policy.evaluate import evaluate
from keyturn.gateway.policy.raise_rules import Facts
from keyturn.gateway.policy.rules import Policy, SeededCall
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef
from keyturn.gateway.service.proposals import EvaluatedCall, Source, propose
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store import keys as store_keys
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.threads import ThreadFacts

logger = logging.getLogger(__name__)


class SeededDefectService(PolicyService):
    """The seeded defects of one tenant."""

    async def read(self) -> Seeded:
        """Return what is shown, if anything is; raises `StoreUnavailable`."""
        return await self._store.seeded.read(self._keys)

    async def waiting(self) -> Loaded | None:
        """Return what is shown as an approval that waits; None when none does.

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

    async def show_if_due(self, seeded: Seeded, now_ms: int) -> None:
        """Note the next card when its time has come, or plan when that is.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        policy = self._policy()
        rule = policy.seeded_defects
        if rule is None or seeded.card is not None:
            return
        if not seeded.due_ms:
            every_ms = int(rule.every.total_seconds() * 1000)
            # From half to one and a half times as long, so that nobody waits for it.
            due_ms = now_ms + every_ms // 2 + secrets.randbelow(every_ms)
            await self._store.seeded.plan(self._keys, due_ms)
            return
        if now_ms < seeded.due_ms:
            return
        call = secrets.choice(rule.calls)
        shown = seeded_approval(policy, call, self._tenant, now_ms)
        if shown is None:
            # A rule denies it, for one. The next one is drawn again.
            logger.warning("seeded.not_shown tool=%r", call.tool)
            await self._store.seeded.end(self._keys)
            return
        card = SeededCard(shown=shown, defect=call.defect)
        await self._store.seeded.show(self._keys, card)

    async def posted(self, card: SeededCard, channel: str, ts: str) -> None:
        """Count a card, and note where it stands; raises `StoreUnavailable`."""
        event = self._event(card, EventName.SEEDED_SHOWN)
        seeded = self._store.seeded
        await seeded.posted(self._keys, channel, ts, event)

    async def answer(
        self, card: SeededCard, reviewer: Reviewer, *, has_approved: bool
    ) -> bool:
        """Count what a reviewer did; False when it had ended before.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """
        answer = APPROVED if has_approved else NOTICED
        by = reviewer.person
        event = self._event(card, EventName.SEEDED_ANSWERED).with_(
            actor=f"{by.team}/{by.user}",
            data={"gesture": reviewer.gesture.value, SEEDED_ANSWER: answer},
        )
        seeded = self._store.seeded
        return await seeded.answer(self._keys, answer, event)

    async def expire(self, card: SeededCard) -> None:
        """Count that nobody answered in time; raises `StoreUnavailable`."""
        event = self._event(card, EventName.SEEDED_EXPIRED)
        await self._store.seeded.answer(self._keys, EXPIRED, event)

    async def end(self) -> None:
        """Forget the card, which shows what it was; raises `StoreUnavailable`."""
        await self._store.seeded.end(self._keys)

    def _event(self, card: SeededCard, name: EventName) -> Event:
        shown, item = card.shown, card.shown.items[0]
        # Without the ids of an approval: there is none, and nothing may look for it.
        return Event(
            name=name,
            tenant=self._tenant,
            agent=shown.agent,
            tool=item.tool,
            tier=item.tier,
            policy_digest=shown.policy_digest,
            channel=shown.channel,
        )


def refusal(card: SeededCard, reviewer: Reviewer) -> str | None:
    """Return why somebody could not decide such a call; None: they could."""
    item = card.shown.items[0]
    return quorum.ineligible_reason(reviewer, item.requirement, ())


def seeded_approval(
    policy: Policy, call: SeededCall, tenant: str, now_ms: int
) -> Approval | None:
    """Return what the card of a call would show if an agent asked for it now.

    None when people would not be asked about it.
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
    source = Source(
        turn=Turn(ref=ref, calls=(proposed,), says=call.says),
        tenant=tenant,
        new_approval_id=lambda: store_keys.approval_id(tenant, name),
        salt=lambda: secrets.token_hex(16),
        facts=ThreadFacts(),
        policy_digest=policy.digest,
    )
    # The same code as for real calls, so that its card looks like theirs; the verdict
    # and the events, by which a call would run, are dropped.
    found = propose([EvaluatedCall(proposed, evaluation)], source).approvals
    if not found:
        return None
    expires_at_ms = now_ms + found[0].ttl_ms
    # No call is like one that nobody asked for.
    items = tuple(item.with_(can_cover=False) for item in found[0].items)
    return found[0].with_(
        items=items, created_at_ms=now_ms, expires_at_ms=expires_at_ms
    )
