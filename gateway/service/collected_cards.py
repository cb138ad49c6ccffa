"""Read collected cards: several approvals of a tenant as one record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from twokey.gateway.approvals.batch_deciding import Partition
from twokey.gateway.approvals.collected import collected
from twokey.gateway.approvals.collection_deciding import Choice, SeenCollection
from twokey.gateway.approvals.decisions import (
    Approve,
    BatchDecided,
    BatchOutcome,
    BatchRefused,
    Click,
    CollectionDecided,
    CollectionOutcome,
    CollectionRefused,
    Decision,
    Edit,
    Reject,
    Reviewer,
)
from twokey.gateway.approvals.record import Approval, Item, approval_of
from twokey.gateway.errors import CorruptRecord
from twokey.gateway.policy.batch_rules import BatchRule
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.rules import Policy
from twokey.gateway.service.away_parts import AwayParts, of_each
from twokey.gateway.service.collected_decisions import CollectedDecisions
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.service.voters import Voters
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store


class CollectedCardService(PolicyService):
    """What collected cards show, by their id, and which calls the policy collects."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self.decisions = CollectedDecisions(store, policy, tenant=tenant)

    def rule(self, approval: Approval) -> BatchRule | None:
        """Return by which rule of the policy a single call may share a card; or None.

        Where the rule is about tasks, a call without one does not.
        """
        tool = approval.items[0].tool
        rule = EffectiveRules(self._policy(), approval.agent, tool).first.batch
        is_without = rule is not None and rule.by == "task" and not approval.task
        return None if is_without else rule

    def is_used(self) -> bool:
        """Return whether the policy lets any call share a card."""
        return any(rule.batch for _, rule in self._policy().tool_rules())

    async def read(
        self,
        card: str,
        shown: Callable[[Loaded], Awaitable[Loaded]] | None = None,
    ) -> Loaded | None:
        """Return the record of a collected card; None when the id is of none.

        Args:
            card: its id.
            shown: returns a member as it is to be shown; without it each is as stored.
        """
        members, left = await self._members(card)
        if not members:
            return None
        seen = [await shown(one) for one in members] if shown else members
        now_ms = max(one.now_ms for one in seen)
        shows = [one.approval for one in seen]
        return Loaded(collected(card, shows, left=left), now_ms)

    async def read_short(
        self, short: str, *, away: AwayParts | None = None
    ) -> list[Loaded]:
        """Return the records of the tenant's collected cards with a short id.

        Parts of the tenant that do not answer are left out where ``away`` can tell.
        """
        approvals = self._store.approvals

        async def read(keys: Keys) -> list[Loaded]:
            ids = await approvals.with_short_id(keys, short)
            found = [await self.read(one) for one in ids]
            return [one for one in found if one is not None]

        found = await of_each(self._parts, read, away)
        return [loaded for of_part in found for loaded in of_part]

    async def decide(
        self,
        shown: Approval,
        click: Click,
        partition: Partition,
        reviewer: Reviewer,
        *,
        voters: Voters | None = None,
    ) -> BatchOutcome:
        """Decide calls of a collected card by one gesture; all of it, or nothing.

        Args:
            shown: the record of the card, as the person saw it.
            click: the request; its digest is that of the card.
            partition: what is decided of each call that waits.
            reviewer: who says it.
            voters: resolves those who voted before.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when a record is corrupt.
        """
        members, _ = await self._members(shown.id)
        versions = {one.approval.id: one.approval.version for one in members}
        numbers = sorted(partition)
        clicks = [_click(shown.items[one], click, versions) for one in numbers]
        outcome = await self.decisions.decide(
            SeenCollection(shown.id, shown.digest, clicks),
            [_choice(partition[one]) for one in numbers],
            reviewer,
            voters=voters,
        )
        return _as_batch(shown, numbers, outcome)

    async def _members(self, card: str) -> tuple[list[Loaded], int]:
        keys = self._store.keys_of_approval(card)
        if keys is None:
            return [], 0
        found: list[Loaded] = []
        members, left = await self._store.collected_cards.members(keys, card)
        for approval_id in members:
            try:
                loaded = await self._store.approvals.load(approval_id)
            except CorruptRecord:
                loaded = None
            # Of one that is corrupt, or kept no longer, nothing can be shown or
            # decided, and that must not keep people from the others.
            if loaded is not None and loaded.approval.tenant == self._tenant:
                found.append(loaded)
        return found, left + len(members) - len(found)


def _click(item: Item, click: Click, versions: Mapping[str, int]) -> Click:
    """Return what a person saw of one call of a card."""
    approval_id, index = approval_of(item.id)
    # The version as it is now: the seal of the card holds the hash of the call, which
    # is compared as it was seen, and an edited call has left the card.
    return click.with_(
        approval=approval_id,
        index=index,
        version=versions.get(approval_id, 0),
        action_hash=item.action_hash,
    )


def _choice(decision: Decision | None) -> Choice | None:
    if decision is None or isinstance(decision, Approve | Edit | Reject):
        return decision
    raise TypeError(f"{decision.kind} is no decision on several calls.")


def _as_batch(
    shown: Approval, numbers: Sequence[int], outcome: CollectionOutcome
) -> BatchOutcome:
    """Return an outcome by the places of the calls on the card."""
    if isinstance(outcome, CollectionDecided):

        def places(found: Iterable[int]) -> tuple[int, ...]:
            return tuple(numbers[one] for one in found)

        return BatchDecided(
            approval=shown,
            approved=places(outcome.approved),
            edited=places(outcome.edited),
            rejected=places(outcome.rejected),
            withdrawn=places(outcome.withdrawn),
            waiting=places(outcome.waiting),
            needs_one=outcome.needs_one,
            left_out=places(outcome.left_out),
        )
    if isinstance(outcome, CollectionRefused):
        first = min(outcome.refusals)
        return BatchRefused(index=numbers[first], refusal=outcome.refusals[first])
    return outcome
