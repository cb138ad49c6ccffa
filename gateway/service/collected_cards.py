"""Read collected cards: several approvals of a tenant as one record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from keyturn.gateway.approvals.collected import collected
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.rules import BatchRule
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store.atomic_write import Loaded


class CollectedCardService(PolicyService):
    """What collected cards show, by their id, and which calls the policy collects."""

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

    async def read_short(self, short: str) -> list[Loaded]:
        """Return the records of the tenant's collected cards with a short id."""
        ids = await self._store.approvals.with_short_id(self._keys, short)
        found = [await self.read(one) for one in ids]
        return [one for one in found if one is not None]

    async def versions(self, card: str) -> dict[str, int]:
        """Return the versions of the approvals that a card shows, by id."""
        members, _ = await self._members(card)
        return {one.approval.id: one.approval.version for one in members}

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
