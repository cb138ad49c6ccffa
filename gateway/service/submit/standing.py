"""Propose, list and revoke standing approvals; confirm the roles of their givers.

A proposal is an approval like any other: it is opened here, and decided by
`keyturn.gateway.service.decide.reviews`. This module decides none.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from keyturn.gateway.approvals import similar
from keyturn.gateway.approvals import standing as rules
from keyturn.gateway.approvals.decisions import Forbidden, Reviewer
from keyturn.gateway.approvals.past_calls import PastCalls, compared
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.precedents import PrecedentKind
from keyturn.gateway.approvals.quorum import denial_reason, is_among, stricter
from keyturn.gateway.approvals.record import (
    Approval,
    Context,
    Item,
    approval_of,
    item_id,
)
from keyturn.gateway.errors import AuditUnreadable, CorruptRecord, StoreUnavailable
from keyturn.gateway.failures import log_failure
from keyturn.gateway.policy import standing as offers
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import ItemState, Person, Tier, Verb
from keyturn.gateway.service.submit.proposals import (
    EvaluatedCall,
    TurnPrecedents,
    opened_event,
)
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store import keys as store_keys
from keyturn.gateway.store.erasing import turn_key_of
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.history import AgentLoad, rejection_effects
from keyturn.gateway.store.records.atomic_write import (
    UNLIMITED,
    Loaded,
    Preconditions,
    Write,
)
from keyturn.gateway.store.store import Store

# Match a turn's calls to the standing approvals that cover them.
#
# The calls were evaluated before. Only calls that need people at tier ``approve`` can
# be covered. The step that opens the turn checks the matches again.


async def covered(
    store: Store,
    keys: Keys,
    same: TurnPrecedents,
    load: AgentLoad,
    evaluated: Sequence[EvaluatedCall],
) -> list[EvaluatedCall]:
    """Return the calls of a turn; covered calls get their standing approval.

    Args:
        store: the store with the standing approvals.
        keys: keys of the tenant.
        same: the turn, and the effects of its calls.
        load: state of its agent.
        evaluated: its calls in their order.
    """
    found = list(evaluated)
    # An earlier requester is unknown, and may be a giver.
    if load.thread.is_partial:
        return found
    agent, policy = same.turn.ref.agent, same.policy
    wanted = [
        position
        for position, one in enumerate(evaluated)
        if _may_be_covered(one) and offers.similar_rule(policy, agent, one.call.tool)
    ]
    if not wanted:
        return found
    in_force = await read_in_force(store, keys, policy)
    read = {one.approval.id: one.approval for one in in_force}
    left, effects = dict(read), set[str]()
    # One after the other, because each use leaves less for the next.
    for position in wanted:
        one, past = found[position], same.past(position, load)
        # A repetition of a rejected or executed call needs people again.
        is_known = past is None or any(map(past.of_kind, PrecedentKind))
        call = rules.Wanted(
            agent=agent,
            tool=one.call.tool,
            args=one.call.args,
            evaluation=one.evaluation,
            principals=load.thread.people,
        )
        is_first = not is_known and one.effect not in effects
        for name, standing in left.items():
            bounds = rules.bounds_of(standing)
            may_cover = is_first or offers.repeats_are_meant(policy, bounds)
            amount = rules.covered_amount(standing, call, now_ms=load.now_ms)
            if may_cover and amount is not None:
                left[name], _ = rules.used(standing, "", amount, load.now_ms)
                effects.add(one.effect)
                found[position] = replace(one, standing=read[name], amount_micro=amount)
                break
    return found


async def standing_of(store: Store, item: Item) -> Approval | None:
    """Return the standing approval that covered a call in its current state, if any."""
    if item.cover is None:
        return None
    found = await store.approvals.load(item.cover.approval)
    return found.approval if found else None


def _may_be_covered(one: EvaluatedCall) -> bool:
    # A call that triage raised is not similar to the approved one. Nor is a call
    # without an assessment: an agent may have made triage fail.
    triage = one.triage_result
    is_alike = not (triage and triage.raised_to) and not one.has_no_opinion
    # An approver has to see the business state, and a covered call has no approver.
    is_plain = one.call.state is None and not one.call.problem
    is_asked = not one.refusal and one.evaluation.can_cover
    return is_asked and is_plain and is_alike and bool(one.effect)


async def read_in_force(store: Store, keys: Keys, policy: Policy) -> list[Loaded]:
    """Return a tenant's standing approvals and proposals, the oldest first.

    Those that the current policy ends are ended here, permanently.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found: list[Loaded] = []
    for loaded in await _listed(store, keys):
        if reason := rules.end_reason(loaded.approval, policy.digest):
            await end_standing(store, keys, loaded.approval.id, reason)
        else:
            found.append(loaded)
    return found


async def _listed(store: Store, keys: Keys) -> list[Loaded]:
    found = await store.approvals.load_each(await store.standing.listed(keys))
    return [
        one
        for one in found
        if one.approval.tenant == keys.tenant and one.approval.is_standing
    ]


async def rejection_of(
    store: Store, policy: Policy, approval: Approval, items: Sequence[Item]
) -> dict[str, object]:
    """Return the store effects of rejections, and end the standing approvals they end.

    Args:
        store: the store with the standing approvals.
        policy: the policy in force.
        approval: the next version of the approval.
        items: the decided items.

    Raises:
        StoreUnavailable: when it is not known that the standing approvals have ended.
    """
    rejected = [item for item in items if item.state is ItemState.REJECTED]
    calls = [one for one in rejected if not (one.is_standing or one.is_question)]
    keys = store.keys_of_tenant(approval.tenant)
    if calls:
        # Before the rejection is written: a crash in between errs on the safe side.
        await end_those(
            store,
            keys,
            lambda standing: any(rules.is_about(standing, one) for one in calls),
            rules.REJECTED,
        )
    pause_after = policy.protect.pause_after_rejections
    return rejection_effects(store.conn, keys, approval, rejected, pause_after)


logger = logging.getLogger(__name__)


async def end_standing(
    store: Store,
    keys: Keys,
    approval_id: str,
    reason: str,
    *,
    by: Reviewer | None = None,
) -> bool:
    """End a standing approval, or its proposal; False when it has ended before.

    Raises:
        StoreUnavailable: when it is not known to have ended.
    """

    async def compute(loaded: Loaded) -> Write | None:
        if not loaded.approval.is_standing:
            return None
        change = rules.end(loaded.approval, reason, loaded.now_ms, by=by)
        return Write(change) if change else None

    try:
        found = await store.approvals.change(approval_id, compute)
    except CorruptRecord as error:
        log_failure(logger, error, "record.corrupt")  # it covers nothing
        return False
    if not isinstance(found, Write):
        return False
    # After the record: an ended entry in the list costs only one reading.
    await store.standing.drop(keys, approval_id)
    logger.info("standing.ended approval=%s why=%s", approval_id, reason)
    return True


async def end_those(
    store: Store, keys: Keys, is_ended: Callable[[Approval], bool], reason: str
) -> list[str]:
    """End all standing approvals of a tenant that meet a condition; return their ids.

    This includes proposals that still wait for people.

    Raises:
        StoreUnavailable: when one of them is not known to have ended.
    """
    return [
        one.approval.id
        for one in await _listed(store, keys)
        if is_ended(one.approval)
        if await end_standing(store, keys, one.approval.id, reason)
    ]


MOST_SHOWN = 1_500
"""Most characters of the arguments that have to be equal: more do not fit on a card."""

MOST_LISTED = 100
"""Most standing approvals of a tenant: each call that may be covered reads them all."""

_PAST_MS = 30 * 86_400_000
_PAST_CALLS = 40
_FEW_ENTRIES = 500
"""Entries of the audit log that are read for a card: a few milliseconds."""

_TOO_LONG = "What would have to be equal does not fit on a card."
_NO_AMOUNT = "The amount of this call is no plain number, so nothing can be added up."
_NOT_ALONE = "This call needs more than an approval, so nothing similar can be allowed."
_TOO_MANY = (
    "There are as many standing approvals as there can be at once; revoke some first."
)


def _bounds(
    approval: Approval, item: Item, offer: offers.Offer, **chosen: int
) -> similar.Bounds:
    rule = offer.rule
    most = {"total_micro": rule.total_micro, "uses": rule.uses, "until_ms": 0}
    return similar.Bounds(
        agent=approval.agent,
        tool=item.tool,
        equal=offer.equal,
        may_differ=rule.may_differ,
        amount=rule.sum or "",
        source=item.id,
        **{**most, **chosen},
    )


class StandingService(PolicyService):
    """The standing approvals of one tenant."""

    def offer(self, approval: Approval, index: int) -> offers.Offer | str:
        """Return the standing approval that a call offers; else why not, in words."""
        item, policy = approval.items[index], self._policy()
        rule = offers.similar_rule(policy, approval.agent, item.tool)
        if rule is None or not item.can_cover or item.is_question or item.is_standing:
            return offers.NOT_OFFERED
        if not item.is_pending or item.tier is not Tier.APPROVE or item.edit:
            return _NOT_ALONE
        amount = (
            similar.exact_micro(similar.value_at(item.args, rule.sum))
            if rule.sum
            else 0
        )
        if amount is None:
            return _NO_AMOUNT
        free = (*rule.may_differ, *((rule.sum,) if rule.sum else ()))
        equal = similar.without(item.args, free)
        if len(digest.canonical(equal)) > MOST_SHOWN:
            return _TOO_LONG
        again = offers.may_repeat(policy, approval.agent, item.tool, free)
        return offers.Offer(rule, equal, amount, may_repeat=again)

    async def past(
        self, approval: Approval, index: int, offer: offers.Offer, *, entries: int
    ) -> PastCalls:
        """Compare an offer with past calls of the same agent and tool.

        Args:
            approval: the approval of the call at hand.
            index: index of the call.
            offer: of the call.
            entries: most entries of the audit log to read, newest first.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        item = approval.items[index]
        found = await self._past_items(approval.agent, item, entries)
        bounds = _bounds(approval, item, offer, each_micro=offer.each_micro)
        return compared(bounds, item, found)

    async def is_usual(self, approval: Approval) -> bool:
        """Return whether people lately approved calls like this one, and always did.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        offer = self.offer(approval, 0)
        if approval.is_batch or isinstance(offer, str):
            return False
        past = await self.past(approval, 0, offer, entries=_FEW_ENTRIES)
        return past.is_usual

    async def _past_items(self, agent: str, source: Item, entries: int) -> list[Item]:
        since_ms = await self._store.conn.now_ms(self._keys.outbox) - _PAST_MS
        names: dict[str, None] = {}
        log = self._store.audit(self._keys).newest(entries)
        try:
            async with aclosing(log) as newest:
                async for event in newest:
                    if event.at_ms < since_ms or len(names) > _PAST_CALLS:
                        break
                    if (event.agent, event.tool) == (agent, source.tool) and event.item:
                        names[event.item] = None
        except AuditUnreadable as error:
            # A bot may run without the folder of the audit log. Its cards do not need
            # the past calls.
            logger.info("standing.past_unknown why=%s", error)
            return []
        names.pop(source.id, None)
        loaded = await self._load_each({approval_of(one)[0]: None for one in names})
        items = {item.id: item for one in loaded for item in one.approval.items}
        return [items[name] for name in names if name in items][:_PAST_CALLS]

    def bounds(
        self, approval: Approval, index: int, chosen: offers.Chosen, now_ms: int
    ) -> similar.Bounds | str:
        """Return the chosen bounds; else why they are refused, in words."""
        offer = self.offer(approval, index)
        if isinstance(offer, str):
            return offer
        bounds = _bounds(
            approval,
            approval.items[index],
            offer,
            each_micro=chosen.each_micro,
            total_micro=chosen.total_micro,
            uses=chosen.uses,
            until_ms=now_ms + int(chosen.lasting.total_seconds() * 1000),
        )
        decision = self._decision(bounds, now_ms)
        if decision.tier is Tier.DENY:
            return " ".join(decision.reasons)
        return bounds

    async def propose(
        self, approval: Approval, index: int, chosen: offers.Chosen, by: Reviewer
    ) -> Approval | str:
        """Open a standing approval that waits for its givers; else return why not.

        Args:
            approval: the approval of the call at hand, as the person saw it.
            index: index of the call.
            chosen: the person's choices.
            by: the person; proposing is no vote.

        Raises:
            StoreUnavailable: when it is not known to be opened.
        """
        now_ms = await self._store.conn.now_ms(self._keys.outbox)
        bounds = self.bounds(approval, index, chosen, now_ms)
        if isinstance(bounds, str):
            return bounds
        source = approval.items[index]
        standing = self._record(approval, source, bounds, by, now_ms)
        why = denial_reason(standing, standing.items[0], by, Verb.APPROVE)
        # An editor of bounds who may not vote on them may still propose them.
        if why is not None and not is_among(by.person, standing.items[0].principals):
            return why
        listed = await self._store.standing.listed(self._keys)
        if len(listed) >= MOST_LISTED:
            return _TOO_MANY
        await self._open(standing, bounds, by.person, now_ms)
        found = await self.read(standing.id)
        if found is None:
            raise StoreUnavailable("The standing approval is not known to be opened.")
        return found.approval

    async def read(self, approval_id: str) -> Loaded | None:
        """Return a standing approval in its current state; None for any other id."""
        loaded = await self._load(approval_id)
        return loaded if loaded and loaded.approval.is_standing else None

    async def in_force(self) -> AsyncGenerator[Loaded]:
        """Yield the standing approvals that may cover calls, the oldest first.

        Those that the current policy ends are ended here.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        # Only by time: an entry without a record may be about to be opened.
        await self._store.standing.drop_overdue(self._keys)
        found = await read_in_force(self._store, self._keys, self._policy())
        for one in found:
            state = one.approval.items[0].state
            if state is ItemState.AUTHORIZED:
                yield one
            elif state is not ItemState.PENDING:
                await self._store.standing.drop(self._keys, one.approval.id)

    async def confirm(
        self, standing: Approval, people: list[Reviewer], *, asked_ms: int
    ) -> None:
        """Confirm a standing approval, or end it if its givers lost their roles.

        Args:
            standing: a standing approval in force.
            people: its voters with their current data from Slack.
            asked_ms: the store's time before the request to Slack.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        found = rules.still_given(standing, people)
        if found is False:
            await end_standing(self._store, self._keys, standing.id, rules.ROLE_LOST)
        elif found:
            await self._store.standing.confirm(
                self._keys, standing.id, asked_ms=asked_ms
            )

    def forbidden(self, standing: Approval, by: Reviewer) -> Forbidden | None:
        """Return why a person may not revoke it; None when they may.

        Its givers may, and so may everyone with the right to reject such a call.
        """
        if is_among(by.person, rules.givers(standing)):
            return None
        item = standing.items[0]
        now = offers.evaluate_standing(
            self._policy(),
            rules.bounds_of(standing),
            opened_by=standing.policy_digest,
            opened_ms=standing.created_at_ms,
        )
        requirements = (item.requirement, now.requirement)
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
        return await end_standing(
            self._store, self._keys, approval_id, rules.REVOKED, by=by
        )

    def _decision(self, bounds: similar.Bounds, now_ms: int) -> PolicyDecision:
        policy = self._policy()
        return offers.evaluate_standing(
            policy, bounds, opened_by=policy.digest, opened_ms=now_ms
        )

    def _record(
        self,
        approval: Approval,
        source: Item,
        bounds: similar.Bounds,
        by: Reviewer,
        now_ms: int,
    ) -> Approval:
        decision = self._decision(bounds, now_ms)
        # Also the approvers of the call at hand: a rule may have required them.
        requirement = stricter(source.requirement, decision.requirement)
        approval_id = store_keys.approval_id(self._keys.tenant, secrets.token_hex(16))
        ctx = Context(
            tenant=self._tenant,
            agent=similar.STANDING_AGENT,
            thread=approval_id,
            ns="",
            message_id=approval_id,
            tool_call_id=similar.ALLOW_SIMILAR,
        )
        document = digest.action_document(
            tool=similar.ALLOW_SIMILAR,
            args=bounds.model_dump(mode="json"),
            ctx=ctx.as_dict(),
            salt=secrets.token_hex(16),
        )
        # The person who chose the bounds counts as their editor.
        barred = () if requirement.editor_may_vote else (by.person,)
        item = Item(
            **decision.with_(requirement=requirement, formats=source.formats).kept,
            id=item_id(approval_id, 0),
            index=0,
            ctx=ctx,
            tool=similar.ALLOW_SIMILAR,
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
            policy_digest=self._policy().digest,
            items=(item,),
        )

    async def _open(
        self, standing: Approval, bounds: similar.Bounds, by: Person, now_ms: int
    ) -> None:
        keys = self._keys
        await self._store.standing.add(keys, standing.id, until_ms=bounds.until_ms)
        found = await self._store.approvals.open_turn(
            keys,
            turn_key_of(standing),
            (standing,),
            # No verdicts: it is never submitted again.
            verdicts=b"",
            events=(opened_event(standing, by),),
            # No limit for agents applies: a person proposes it.
            preconditions=Preconditions(
                run_ref=standing.run_ref,
                thread=(standing.agent, standing.thread),
                names=(),
                waiting=UNLIMITED,
                requests_10m=UNLIMITED,
                now_ms=now_ms,
            ),
        )
        if found is None:
            raise StoreUnavailable("The standing approval was not opened. Try again.")
