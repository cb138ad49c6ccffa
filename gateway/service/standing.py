"""Propose, list and revoke standing approvals; confirm that their givers hold roles.

A proposal is an approval like any other: it is opened here, and decided by
`twokey.gateway.service.reviews`. Nothing here lets a call run.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator

from twokey.gateway.approvals.decisions import Forbidden, Reviewer
from twokey.gateway.approvals.events import EventName, approval_event
from twokey.gateway.approvals.permission import denial_reason
from twokey.gateway.approvals.quorum import is_among, stricter
from twokey.gateway.approvals.record import Approval, Context, Item, item_id
from twokey.gateway.approvals.similar import (
    ALLOW_SIMILAR,
    STANDING_AGENT,
    Bounds,
    exact_micro,
    value_at,
    without,
)
from twokey.gateway.approvals.standing import (
    REVOKED,
    ROLE_LOST,
    bounds_of,
    end_reason,
    givers,
    still_given,
)
from twokey.gateway.errors import BadJson, NotAllowed, StoreUnavailable
from twokey.gateway.policy.standing import (
    NOT_OFFERED,
    Chosen,
    Offer,
    evaluate_standing,
    may_repeat,
    similar_rule,
)
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.service.standing_ends import end_standing
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.store import keys as store_keys
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.turn_opening import Preconditions

MOST_SHOWN = 1_500
"""Characters of the arguments that have to be equal: more do not fit on a card."""

MOST_LISTED = 100
"""Standing approvals of a tenant at once: each call that may be covered reads them."""

_UNLIMITED = 1_000_000_000
_TOO_LONG = "What would have to be equal does not fit on a card."
_NO_AMOUNT = "The amount of this call is no plain number, so nothing can be added up."
_NOT_ALONE = "This call needs more than an approval, so nothing similar can be allowed."
_TOO_MANY = (
    "There are as many standing approvals as there can be at once; revoke some first."
)


class StandingService(PolicyService):
    """The standing approvals of one tenant."""

    def offer(self, approval: Approval, index: int) -> Offer | str:
        """Return what may be allowed from a call; else why nothing, as a sentence."""
        item, policy = approval.items[index], self._policy()
        rule = similar_rule(policy, approval.agent, item.tool)
        if rule is None or not item.can_cover or item.is_question or item.is_standing:
            return NOT_OFFERED
        if not item.is_pending or item.tier is not Tier.APPROVE or item.edit:
            return _NOT_ALONE
        amount = exact_micro(value_at(item.args, rule.sum)) if rule.sum else 0
        if amount is None:
            return _NO_AMOUNT
        free = (*rule.may_differ, *((rule.sum,) if rule.sum else ()))
        equal = without(item.args, free)
        if len(digest.canonical(equal)) > MOST_SHOWN:
            return _TOO_LONG
        again = may_repeat(policy, approval.agent, item.tool, free)
        return Offer(rule, equal, amount, may_repeat=again)

    def bounds(
        self, approval: Approval, index: int, chosen: Chosen, now_ms: int
    ) -> Bounds | str:
        """Return the bounds that a person chose; else why they cannot be, in words."""
        offer = self.offer(approval, index)
        if isinstance(offer, str):
            return offer
        item, rule = approval.items[index], offer.rule
        bounds = Bounds(
            agent=approval.agent,
            tool=item.tool,
            equal=offer.equal,
            may_differ=rule.may_differ,
            amount=rule.sum or "",
            each_micro=chosen.each_micro,
            total_micro=chosen.total_micro,
            uses=chosen.uses,
            until_ms=now_ms + int(chosen.lasting.total_seconds() * 1000),
            source=item.id,
        )
        decision = evaluate_standing(
            self._policy(),
            bounds,
            opened_by=self._policy().digest,
            opened_ms=now_ms,
        )
        if decision.tier is Tier.DENY:
            return " ".join(decision.reasons)
        return bounds

    async def propose(
        self, approval: Approval, index: int, chosen: Chosen, by: Reviewer
    ) -> Approval | str:
        """Open a standing approval that waits for its people; else say why not.

        Args:
            approval: of the call at hand, as the person saw it.
            index: the call.
            chosen: what they chose.
            by: who proposes it; they have no vote by that.

        Raises:
            StoreUnavailable: when it is not known to be opened.
        """
        now_ms = await self._store.conn.now_ms(self._own.outbox)
        bounds = self.bounds(approval, index, chosen, now_ms)
        if isinstance(bounds, str):
            return bounds
        source = approval.items[index]
        standing = self._record(approval, source, bounds, by, now_ms)
        why = denial_reason(standing, standing.items[0], by, Verb.APPROVE)
        # An editor of bounds who may not vote on them may still propose them.
        if why is not None and not is_among(by.person, standing.items[0].principals):
            return why
        listed = await self._store.standing.listed(self._own, self._tenant)
        if len(listed) >= MOST_LISTED:
            return _TOO_MANY
        await self._open(standing, bounds, now_ms)
        found = await self.read(standing.id)
        if found is None:
            raise StoreUnavailable("The standing approval is not known to be opened.")
        return found.approval

    async def read(self, approval_id: str) -> Loaded | None:
        """Return a standing approval as it stands; None for anything else."""
        loaded = await self._store.approvals.load(approval_id)
        if loaded is None or loaded.approval.tenant != self._tenant:
            return None
        return loaded if loaded.approval.is_standing else None

    async def in_force(self) -> AsyncGenerator[Loaded]:
        """Yield the standing approvals that may cover calls, the oldest first.

        What has to end by itself is ended on the way.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        # Only by time: one that is not there may be about to be opened.
        await self._store.standing.drop_overdue(self._own, self._tenant)
        ids = await self._store.standing.listed(self._own, self._tenant)
        for one in await self._store.approvals.load_each(ids):
            standing, state = one.approval, one.approval.items[0].state
            if standing.tenant != self._tenant:
                continue
            reason = end_reason(standing, self._policy().digest)
            if reason:
                await self._end(standing.id, reason)
            elif state is ItemState.AUTHORIZED:
                yield one
            elif state is not ItemState.PENDING:
                await self._store.standing.drop(self._own, self._tenant, standing.id)

    async def confirm(
        self, standing: Approval, people: list[Reviewer], *, asked_ms: int
    ) -> None:
        """Keep one whose givers still hold their roles, and end one of others.

        Args:
            standing: in force.
            people: its voters, as Slack describes them now.
            asked_ms: the store's clock from before Slack was asked.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        found = still_given(standing, people)
        if found is False:
            await self._end(standing.id, ROLE_LOST)
        elif found:
            await self._store.standing.confirm(
                self._own, standing.id, asked_ms=asked_ms
            )

    def forbidden(self, standing: Approval, by: Reviewer) -> Forbidden | None:
        """Return why somebody may not revoke it; None when they may.

        Anybody who may reject such a call may, and so may each of its givers.
        """
        item = standing.items[0]
        rules = evaluate_standing(
            self._policy(),
            bounds_of(standing),
            opened_by=standing.policy_digest,
            opened_ms=standing.created_at_ms,
        )
        requirements = (item.requirement, rules.requirement)
        if is_among(by.person, givers(standing)):
            return None
        why = denial_reason(standing, item, by, Verb.REJECT, then_and_now=requirements)
        return None if why is None else Forbidden(reason=why)

    async def revoke(self, approval_id: str, by: Reviewer) -> bool | Forbidden:
        """End a standing approval at once; False when it has ended before.

        Raises:
            StoreUnavailable: when it is not known to have ended.
        """
        loaded = await self.read(approval_id)
        if loaded is None:
            return False
        forbidden = self.forbidden(loaded.approval, by)
        if forbidden is not None:
            return forbidden
        return await end_standing(self._store, self._own, approval_id, REVOKED, by=by)

    async def _end(self, approval_id: str, reason: str) -> None:
        await end_standing(self._store, self._own, approval_id, reason)

    def _record(
        self,
        approval: Approval,
        source: Item,
        bounds: Bounds,
        by: Reviewer,
        now_ms: int,
    ) -> Approval:
        policy = self._policy()
        decision = evaluate_standing(
            policy, bounds, opened_by=policy.digest, opened_ms=now_ms
        )
        # The people of the call at hand as well: a rule may have asked for them.
        requirement = stricter(source.requirement, decision.requirement)
        approval_id = store_keys.approval_id(self._own.shard, secrets.token_hex(16))
        ctx = Context(
            tenant=self._tenant,
            agent=STANDING_AGENT,
            thread=approval_id,
            ns="",
            message_id=approval_id,
            tool_call_id=ALLOW_SIMILAR,
        )
        document = _document(bounds, ctx)
        # Who chose the bounds is to them what an editor is to a call.
        barred = () if requirement.editor_may_vote else (by.person,)
        item = Item(
            **decision.with_(requirement=requirement).kept,
            id=item_id(approval_id, 0),
            index=0,
            ctx=ctx,
            tool=ALLOW_SIMILAR,
            requested=document,
            action=document,
            principals=(*source.principals, *barred),
        )
        return Approval(
            id=approval_id,
            tenant=self._tenant,
            agent=ctx.agent,
            thread=ctx.thread,
            message_id=ctx.message_id,
            channel=decision.channel,
            ttl_ms=max(1, min(decision.ttl_ms, bounds.until_ms - now_ms)),
            principals=approval.principals,
            policy_digest=policy.digest,
            items=(item,),
        )

    async def _open(self, standing: Approval, bounds: Bounds, now_ms: int) -> None:
        keys, tenant = self._own, self._tenant
        await self._store.standing.add(
            keys, tenant, standing.id, until_ms=bounds.until_ms
        )
        opened = approval_event(standing, EventName.APPROVAL_OPENED)
        opened = opened.with_(action_hash=standing.digest)
        found = await self._store.approvals.open_turn(
            keys,
            digest.turn_key(
                tenant=tenant,
                agent=standing.agent,
                thread=standing.thread,
                ns="",
                message_id=standing.message_id,
            ),
            (standing,),
            # Nobody submits it again.
            verdicts=b"",
            events=(opened,),
            thread=(standing.agent, standing.thread),
            preconditions=Preconditions(
                tenant=tenant,
                names=(),
                # Not the agent's own: a person proposes it.
                waiting=_UNLIMITED,
                requests_10m=_UNLIMITED,
                run_ref=standing.run_ref,
                now_ms=now_ms,
            ),
        )
        if found is None:
            raise StoreUnavailable("The standing approval was not opened. Try again.")


def _document(bounds: Bounds, ctx: Context) -> str:
    try:
        return digest.action_document(
            tool=ALLOW_SIMILAR,
            args=bounds.model_dump(mode="json"),
            ctx=ctx.as_dict(),
            salt=secrets.token_hex(16),
        )
    except BadJson as error:
        raise NotAllowed("These bounds cannot be stored.") from error
