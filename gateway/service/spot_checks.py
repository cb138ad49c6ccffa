"""Sample calls for spot checks, and record what people answer."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from keyturn.gateway.approvals import spot_checking
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.approvals.requirement import Role
from keyturn.gateway.policy.raise_rules import Raise
from keyturn.gateway.policy.rules import Policy, SpotCheckRule
from keyturn.gateway.protocol.records import Tier
from keyturn.gateway.service.proposals import EvaluatedCall
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store.atomic_write import Loaded, Write
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store

DRAWN = Raise(to=Tier.NOTIFY, reason="Shown because a spot check was drawn of it.")
"""What makes a call of tier ``auto`` run with a card, on which somebody checks it."""


class SpotCheckService(PolicyService):
    """The spot checks of one tenant."""

    async def answer(
        self, approval_id: str, index: int, reviewer: Reviewer, *, is_right: bool
    ) -> str:
        """Record whether a call was right, once; return why not, or "" when it is.

        Raises:
            StoreUnavailable: when it is not known to be kept.
            CorruptRecord: when the record is corrupt.
        """
        answer = spot_checking.RIGHT if is_right else spot_checking.WRONG

        async def compute(loaded: Loaded) -> Write | str:
            approval = loaded.approval
            is_ours = approval.tenant == self._tenant
            if not is_ours or not 0 <= index < len(approval.items):
                return spot_checking.NOT_ASKED
            item = approval.items[index]
            pinned = item.spot_check.of if item.spot_check else ()
            result = spot_checking.answered(
                approval,
                item,
                reviewer,
                answer,
                of_now=self._of_now() or pinned,
                now_ms=loaded.now_ms,
            )
            return Write(result) if isinstance(result, Change) else result

        found = await self._store.approvals.change(approval_id, compute)
        if found is None:
            return spot_checking.NOT_ASKED
        return found if isinstance(found, str) else ""

    def usergroups(self, *roles: Role) -> frozenset[str]:
        """Return the user groups that are asked, by these roles and by the policy."""
        asked = (*roles, *self._of_now())
        return frozenset(group for role in asked for group in role.usergroups)

    def _of_now(self) -> tuple[Role, ...]:
        # A policy that asks nobody any more leaves the questions that were asked.
        policy = self._policy()
        rule = policy.spot_checks
        return policy.roles_named(rule.of) if rule else ()


async def draw(
    store: Store,
    keys: Keys,
    rule: SpotCheckRule | None,
    evaluated: Sequence[EvaluatedCall],
) -> frozenset[int]:
    """Return the positions of calls of tier ``auto`` that a spot check is drawn of."""
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
    if not spot_checking.is_due(change, index, percent=rule.share, of=of):
        return change
    tenant = change.approval.tenant
    may_ask = spot_checking.is_counted(change, index) or (
        await store.spot_checks.take(store.keys_of_tenant(tenant), rule.per_day)
    )
    return spot_checking.asking(change, index, of, now_ms) if may_ask else change
