"""Freeze and unfreeze on behalf of a verified person, with permission checks."""

from __future__ import annotations

from collections.abc import Callable, Collection

from twokey.gateway.approvals.decision_context import listed
from twokey.gateway.approvals.decisions import Forbidden, Reviewer
from twokey.gateway.approvals.quorum import ineligible_reason, standing_in
from twokey.gateway.approvals.requirement import Requirement
from twokey.gateway.policy.eligibility import freeze_requirement, unfreeze_requirement
from twokey.gateway.policy.rules import Policy
from twokey.gateway.service.freezing import FreezeService
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store

MAX_REASON = 500
"""How many characters a reason may have; agents and people read it."""

_NOBODY_STOPS = (
    "The policy names no reviewers for this, so nobody can stop it from here. The "
    "operator of the gateway can, with `twokey freeze`."
)
_NOBODY_LIFTS = (
    "The policy names nobody who can unfreeze this, so it cannot be done here. The "
    "operator of the gateway can, with `twokey unfreeze`."
)


def unknown_name(policy: Policy, agents: Collection[str], scope: FreezeScope) -> str:
    """Return what to check where nothing here names what was frozen, or "".

    There may be such a tool or agent all the same, in a process elsewhere.

    Args:
        policy: that names tools and agents.
        agents: that the settings name.
        scope: what was frozen.
    """
    match scope.kind:
        case ScopeKind.TOOL if not policy.names_tool(scope.name):
            return "The policy does not name this tool; please check its name."
        case ScopeKind.AGENT if scope.name not in {*policy.agents, *agents}:
            return (
                "Neither the settings nor the policy names this agent; please check "
                "its name."
            )
        case _:
            return ""


class ReviewerFreezes(PolicyService):
    """What reviewers may stop: whatever they may review, by the policy in force now."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._freezes = FreezeService(store, tenant=tenant)

    def usergroups(self, scope: FreezeScope) -> frozenset[str]:
        """Return the user groups that matter for who may stop this."""
        roles = (*self._may_freeze(scope).roles, *self._may_unfreeze(scope).roles)
        return frozenset(group for role in roles for group in role.usergroups)

    def unknown_name(self, scope: FreezeScope, agents: Collection[str]) -> str:
        """Return what to check by the policy of now; see `unknown_name`."""
        return unknown_name(self._policy(), agents, scope)

    def forbidden(self, scope: FreezeScope, reviewer: Reviewer) -> Forbidden | None:
        """Return why somebody may not stop this; None when they may."""
        return _forbidden(reviewer, self._may_freeze(scope), _NOBODY_STOPS)

    async def freeze(
        self, scope: FreezeScope, reviewer: Reviewer, reason: str
    ) -> bool | Forbidden:
        """Stop something; False when it is frozen already.

        Raises:
            StoreUnavailable: when it is not known to be stopped.
        """
        forbidden = self.forbidden(scope, reviewer)
        if forbidden is not None:
            return forbidden
        by, behalf = _who(reviewer, self._may_freeze(scope))
        return await self._freezes.freeze(
            scope, by, reason, on_behalf_of=behalf, gesture=reviewer.gesture
        )

    async def unfreeze(
        self, scope: FreezeScope, reviewer: Reviewer, reason: str
    ) -> bool | Forbidden:
        """Let something run again, and end an agent's pause; False when neither was.

        Raises:
            StoreUnavailable: when it is not known to be lifted.
        """
        requirement = self._may_unfreeze(scope)
        forbidden = _forbidden(reviewer, requirement, _NOBODY_LIFTS)
        if forbidden is not None:
            return forbidden
        by, behalf = _who(reviewer, requirement)
        return await self._freezes.unfreeze(
            scope, by, reason, on_behalf_of=behalf, gesture=reviewer.gesture
        )

    def _may_freeze(self, scope: FreezeScope) -> Requirement:
        return freeze_requirement(self._policy(), **_what(scope))

    def _may_unfreeze(self, scope: FreezeScope) -> Requirement:
        return unfreeze_requirement(self._policy(), **_what(scope))


def _what(scope: FreezeScope) -> dict[str, str]:
    return {} if scope.kind is ScopeKind.TENANT else {scope.kind.value: scope.name}


def _forbidden(
    reviewer: Reviewer, requirement: Requirement, nobody: str
) -> Forbidden | None:
    if not any(role.users or role.usergroups for role in requirement.roles):
        return Forbidden(reason=nobody)
    # No principals: the requester of a call may stop its agent at any time.
    reason = ineligible_reason(reviewer, requirement, ())
    return Forbidden(reason=reason) if reason else None


def _who(reviewer: Reviewer, requirement: Requirement) -> tuple[str, str]:
    """Name who does this, and for whom if they may not by a role of their own."""
    by = listed([reviewer.person])
    # A person who may by a role of their own does it as themselves, even if others have
    # delegated their queue to them.
    if ineligible_reason(reviewer.with_(stands_in_for=()), requirement, ()) is None:
        return by, ""
    acting = standing_in(reviewer, requirement.roles, ())
    return by, listed(other.person for other in acting.stands_in_for)
