"""Freeze an agent, a tool or a whole tenant (kill switch), and lift the freeze.

A freeze is one key that the script of a claim reads, so it also stops calls that were
authorized before. Running calls are not interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from keyturn.gateway.approvals.decision_context import listed
from keyturn.gateway.approvals.decisions import Forbidden, Gesture, Reviewer
from keyturn.gateway.approvals.events import BY_GATEWAY, Event, EventName
from keyturn.gateway.approvals.quorum import ineligible_reason, standing_in
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.approvals.standing import FROZEN, bounds_of
from keyturn.gateway.policy.eligibility import freeze_requirement, unfreeze_requirement
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.service.standing import end_those
from keyturn.gateway.service.tenant_service import PolicyService, TenantService
from keyturn.gateway.store.freezes import (
    NOT_BELIEVED,
    Freeze,
    FreezeScope,
    ScopeKind,
    names_of,
)
from keyturn.gateway.store.store import Store
from keyturn.gateway.validation_errors import did_you_mean

MAX_REASON = 500
"""Most characters of a reason; agents and people read it."""

_NOBODY_STOPS = (
    "The policy names no reviewers for this, so nobody can stop it from here. The "
    "operator of the gateway can, with `keyturn freeze`."
)
_NOBODY_LIFTS = (
    "The policy names nobody who can unfreeze this, so it cannot be done here. The "
    "operator of the gateway can, with `keyturn unfreeze`."
)


def unknown_name(policy: Policy, agents: Collection[str], scope: FreezeScope) -> str:
    """Return a hint if neither policy nor settings name the frozen scope, or "".

    A process elsewhere may still have such a tool or agent.

    Args:
        policy: the policy in force.
        agents: names of agents in the settings.
        scope: the frozen scope.
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


def misspelled(policy: Policy, agents: Collection[str], scope: FreezeScope) -> str:
    """Return why a misspelled name of a tool or agent is refused, or ""."""
    agent_names = {*policy.agents, *agents}
    is_tool = scope.kind is ScopeKind.TOOL
    meant = did_you_mean(scope.name, policy.tool_names if is_tool else agent_names)
    if scope.kind is ScopeKind.TENANT or not meant:
        return ""
    return f"There is no {scope.kind} {scope.name!r}; {meant} Nothing was changed."


class ReviewerFreezes(PolicyService):
    """Freezes by reviewers: they may stop what the current policy lets them review."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._freezes = FreezeService(store, tenant=tenant)

    def usergroups(self, scope: FreezeScope) -> frozenset[str]:
        """Return the user groups whose members may freeze or unfreeze this."""
        roles = (*self._may_freeze(scope).roles, *self._may_unfreeze(scope).roles)
        return frozenset(group for role in roles for group in role.usergroups)

    def unknown_name(self, scope: FreezeScope, agents: Collection[str]) -> str:
        """Return a hint by the current policy; see `unknown_name`."""
        return unknown_name(self._policy(), agents, scope)

    def misspelled(self, scope: FreezeScope, agents: Collection[str]) -> str:
        """Return why the current policy refuses a name; see `misspelled`."""
        return misspelled(self._policy(), agents, scope)

    def forbidden(self, scope: FreezeScope, reviewer: Reviewer) -> Forbidden | None:
        """Return why a reviewer may not freeze this; None when they may."""
        return _forbidden(reviewer, self._may_freeze(scope), _NOBODY_STOPS)

    async def freeze(
        self, scope: FreezeScope, reviewer: Reviewer, reason: str
    ) -> bool | Forbidden:
        """Freeze a scope; False when it is frozen already.

        Raises:
            StoreUnavailable: when it is not known to be frozen.
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
        """Lift a freeze and end an agent's pause; False when there was neither.

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
    """Return the actor and, if they need a delegated role, the people they act for."""
    by = listed([reviewer.person])
    # A person's own role comes first, even if others have delegated their queue to
    # them.
    if ineligible_reason(reviewer.with_(stands_in_for=()), requirement, ()) is None:
        return by, ""
    acting = standing_in(reviewer, requirement.roles, ())
    return by, listed(other.person for other in acting.stands_in_for)


class FreezeService(TenantService):
    """The freezes of one tenant.

    Args:
        store: the store.
        tenant: the tenant.
    """

    async def freeze(
        self,
        scope: FreezeScope,
        by: str,
        reason: str,
        *,
        on_behalf_of: str = "",
        gesture: Gesture = Gesture.API,
    ) -> bool:
        """Freeze a scope; False when it is frozen already: then nothing changes.

        Args:
            scope: agent, tool or tenant.
            by: the actor, for the audit log and for the refusals.
            reason: read by agents and people.
            on_behalf_of: the people that a delegate acts for, for the audit log.
            gesture: the actor's gesture, for the audit log.

        Raises:
            StoreUnavailable: when it is not known to be frozen.
        """
        now_ms = await self._store.conn.now_ms(self._keys.outbox)
        freeze = Freeze(scope=scope, by=by, reason=reason, at_ms=now_ms)
        event = self._event(EventName.FREEZE_SET, scope, by, on_behalf_of, gesture)
        event = event.with_(reason=reason)
        is_new = await self._store.freezes.set(self._keys, freeze, event)
        # During the freeze no standing approval covers a call; see `unfreeze`.
        await self._end_standing(scope)
        return is_new

    async def unfreeze(
        self,
        scope: FreezeScope,
        by: str,
        reason: str = "",
        *,
        on_behalf_of: str = "",
        gesture: Gesture = Gesture.API,
    ) -> bool:
        """Lift a freeze and end an agent's pause; False when there was neither.

        Raises:
            StoreUnavailable: when it is not known to be lifted.
        """
        event = self._event(EventName.FREEZE_LIFTED, scope, by, on_behalf_of, gesture)
        event = event.with_(reason=reason)
        # Standing approvals from before a freeze never come back. End them before the
        # freeze is lifted, in case `freeze` was interrupted before it did.
        await self._end_standing(scope)
        return await self._store.freezes.lift(self._keys, scope, event)

    async def mend(self) -> None:
        """Freeze everything if the store's list is gone, changed or older than the log.

        Every process then shows this freeze until a person confirms the list.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        epoch = self._store.audit_index.freeze_epoch(self._tenant)
        lists = self._store.freeze_lists
        known = await lists.compare(self._keys, epoch)
        if not known.is_believed:
            await self.freeze(NOT_BELIEVED.scope, BY_GATEWAY, NOT_BELIEVED.reason)

    async def frozen(self) -> tuple[Freeze, ...]:
        """Return all freezes and pauses, oldest first.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        return await self._store.freezes.all(self._keys)

    async def names(self) -> str:
        """Return the names of the freezes, one a line.

        Pauses are excluded, because they do not prevent approvals.
        """
        freezes = await self.frozen()
        return "\n".join(sorted(one.name for one in freezes if not one.is_pause))

    async def _end_standing(self, scope: FreezeScope) -> None:
        def is_stopped(standing: Approval) -> bool:
            bounds = bounds_of(standing)
            return str(scope) in names_of(bounds.agent, bounds.tool)

        await end_those(self._store, self._keys, is_stopped, FROZEN)

    def _event(
        self,
        name: EventName,
        scope: FreezeScope,
        by: str,
        behalf: str,
        gesture: Gesture,
    ) -> Event:
        data = {"scope": str(scope), "gesture": gesture.value}
        return Event(
            name=name,
            tenant=self._tenant,
            agent=scope.name if scope.kind is ScopeKind.AGENT else "",
            tool=scope.name if scope.kind is ScopeKind.TOOL else "",
            actor=by,
            data={**data, "on_behalf_of": behalf} if behalf else data,
        )
