"""Let people whom a front end verified stop things, and let them run again."""

from __future__ import annotations

from collections.abc import Callable

from gateway.approvals.changes import listed
from gateway.approvals.decisions import Forbidden, Reviewer
from gateway.approvals.quorum import objection, standing_in
from gateway.approvals.record import Demand
from gateway.policy.rules import Policy
from gateway.policy.stopping import stoppers
from gateway.service.freezing import FreezeService
from gateway.store.freezes import Freeze, Scope, ScopeKind
from gateway.store.store import Store

MAX_REASON = 500
"""How many characters a reason may have; agents and people read it."""

_NOBODY = (
    "The policy names nobody who could review this, so nobody can stop it from here. "
    "Whoever runs the gateway can, with `twokey freeze`."
)


class StopService:
    """What reviewers may stop: whatever they may review, by the policy of this moment.

    Args:
        store: where everything is kept.
        policy: returns the policy in force now.
        tenant: whose agents and tools these are.
    """

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        self._policy = policy
        self._freezes = FreezeService(store, tenant=tenant)

    def usergroups(self, scope: Scope) -> frozenset[str]:
        """Return the user groups that matter for who may stop this."""
        roles = self._stoppers(scope).roles
        return frozenset(group for role in roles for group in role.usergroups)

    def knows_tool(self, name: str) -> bool:
        """Say whether the policy names this tool; others exist as well."""
        policy = self._policy()
        of_agents = (rule.tools for rule in policy.agents.values())
        return any(name in tools for tools in (policy.tools, *of_agents))

    def forbidden(self, scope: Scope, reviewer: Reviewer) -> Forbidden | None:
        """Say why somebody may not stop this; None when they may."""
        demand = self._stoppers(scope)
        if not any(role.users or role.usergroups for role in demand.roles):
            return Forbidden(reason=_NOBODY)
        reason = objection(reviewer, demand, ())
        return Forbidden(reason=reason) if reason else None

    async def freeze(
        self, scope: Scope, reviewer: Reviewer, reason: str
    ) -> bool | Forbidden:
        """Stop something; False when it is frozen already.

        Raises:
            StoreUnavailable: when it is not known to be stopped.
        """
        forbidden = self.forbidden(scope, reviewer)
        if forbidden is not None:
            return forbidden
        behalf = self._behalf(scope, reviewer)
        return await self._freezes.freeze(
            scope, _by(reviewer), reason, on_behalf_of=behalf
        )

    async def unfreeze(
        self, scope: Scope, reviewer: Reviewer, reason: str
    ) -> bool | Forbidden:
        """Let something run again, and end an agent's pause; False when neither was.

        Raises:
            StoreUnavailable: when it is not known to be lifted.
        """
        forbidden = self.forbidden(scope, reviewer)
        if forbidden is not None:
            return forbidden
        behalf = self._behalf(scope, reviewer)
        return await self._freezes.unfreeze(
            scope, _by(reviewer), reason, on_behalf_of=behalf
        )

    async def frozen(self) -> tuple[Freeze, ...]:
        """Return everything that is frozen or paused, oldest first."""
        return await self._freezes.frozen()

    def _behalf(self, scope: Scope, reviewer: Reviewer) -> str:
        """Name those for whom somebody does this who may not by a role of their own."""
        demand = self._stoppers(scope)
        if objection(reviewer.with_(stands_in_for=()), demand, ()) is None:
            return ""
        acting = standing_in(reviewer, demand.roles, ())
        return listed(other.person for other in acting.stands_in_for)

    def _stoppers(self, scope: Scope) -> Demand:
        is_agent = scope.kind is ScopeKind.AGENT
        is_tool = scope.kind is ScopeKind.TOOL
        return stoppers(
            self._policy(),
            agent=scope.name if is_agent else "",
            tool=scope.name if is_tool else "",
        )


def _by(reviewer: Reviewer) -> str:
    return f"{reviewer.team}/{reviewer.user}"
