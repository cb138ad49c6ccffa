"""Stop and restart: freeze agents, tools or a tenant; retry or drop failed runs.

The script of a claim compares the list of freezes (kill switches), so a freeze also
stops calls that were authorized before. Running calls are not interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.changes import listed
from keyturn.gateway.approvals.decisions import Forbidden, Gesture, Reviewer
from keyturn.gateway.approvals.events import BY_GATEWAY, Event, EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.approvals.standing import FROZEN, bounds_of
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.eligibility import freeze_requirement, unfreeze_requirement
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.submit.standing import end_those
from keyturn.gateway.service.tenant_service import PolicyService, TenantService
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.limits.freezes import (
    NOT_BELIEVED,
    Freeze,
    FreezeScope,
    ScopeKind,
    names_of,
)
from keyturn.gateway.store.runs.jobs import HALTED, Job, RunState, StalledRun
from keyturn.gateway.store.store import Store
from keyturn.gateway.validation_errors import did_you_mean

logger = logging.getLogger(__name__)

MAX_REASON = 500
"""Most characters of a reason; agents and people read it."""

_NOBODY = (
    "Only the operator of the gateway can do this, with `keyturn freeze` or `keyturn "
    "unfreeze`: the policy names no people for it."
)


def unknown_name(policy: Policy, agents: Collection[str], scope: FreezeScope) -> str:
    """Return a hint if neither policy nor settings name the frozen scope, or "".

    A process elsewhere may still have such a tool or agent.

    Args:
        policy: the policy in force.
        agents: names of agents in the settings.
        scope: the frozen scope.
    """
    if scope.kind is ScopeKind.TENANT or scope.name in _names(policy, agents, scope):
        return ""
    return (
        f"Neither the policy nor the settings name this {scope.kind}; please check its "
        "name."
    )


def misspelled(policy: Policy, agents: Collection[str], scope: FreezeScope) -> str:
    """Return why a misspelled name of a tool or agent is refused, or ""."""
    meant = did_you_mean(scope.name, _names(policy, agents, scope))
    if scope.kind is ScopeKind.TENANT or not meant:
        return ""
    return f"There is no {scope.kind} {scope.name!r}; {meant} Nothing was changed."


def _names(
    policy: Policy, agents: Collection[str], scope: FreezeScope
) -> Collection[str]:
    is_tool = scope.kind is ScopeKind.TOOL
    return policy.tool_names if is_tool else {*policy.agents, *agents}


class FreezeService(TenantService):
    """The freezes of one tenant."""

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
        # During the freeze no standing approval covers a call, and `unfreeze` ends the
        # rest of them. So a failure here must not hide that the freeze is in force.
        try:
            await self._end_standing(scope)
        except StoreUnavailable as error:
            logger.warning("freeze.standing_approvals_left why=%s", error)
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
        lists = self._store.freezes
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


class ReviewerFreezes(PolicyService, FreezeService):
    """Freezes by reviewers: they may stop what the current policy lets them review."""

    def usergroups(self, scope: FreezeScope) -> frozenset[str]:
        """Return the user groups whose members may freeze or unfreeze this."""
        roles = (*self._may_freeze(scope).roles, *self._may_unfreeze(scope).roles)
        return frozenset(group for role in roles for group in role.usergroups)

    def forbidden(self, scope: FreezeScope, reviewer: Reviewer) -> Forbidden | None:
        """Return why a reviewer may not freeze this; None when they may."""
        return _forbidden(reviewer, self._may_freeze(scope))

    async def freeze_by(
        self, scope: FreezeScope, reviewer: Reviewer, reason: str
    ) -> bool | Forbidden:
        """Freeze a scope; False when it is frozen already.

        Raises:
            StoreUnavailable: when it is not known to be frozen.
        """
        requirement = self._may_freeze(scope)
        return await self._by(self.freeze, scope, reviewer, reason, requirement)

    async def unfreeze_by(
        self, scope: FreezeScope, reviewer: Reviewer, reason: str
    ) -> bool | Forbidden:
        """Lift a freeze and end an agent's pause; False when there was neither.

        Raises:
            StoreUnavailable: when it is not known to be lifted.
        """
        requirement = self._may_unfreeze(scope)
        return await self._by(self.unfreeze, scope, reviewer, reason, requirement)

    async def _by(
        self,
        change: Callable[..., Awaitable[bool]],
        scope: FreezeScope,
        reviewer: Reviewer,
        reason: str,
        requirement: Requirement,
    ) -> bool | Forbidden:
        forbidden = _forbidden(reviewer, requirement)
        if forbidden is not None:
            return forbidden
        by, behalf = _who(reviewer, requirement)
        return await change(
            scope, by, reason, on_behalf_of=behalf, gesture=reviewer.gesture
        )

    def _may_freeze(self, scope: FreezeScope) -> Requirement:
        return freeze_requirement(self._policy(), **_what(scope))

    def _may_unfreeze(self, scope: FreezeScope) -> Requirement:
        return unfreeze_requirement(self._policy(), **_what(scope))


def _what(scope: FreezeScope) -> dict[str, str]:
    return {} if scope.kind is ScopeKind.TENANT else {scope.kind.value: scope.name}


def _forbidden(reviewer: Reviewer, requirement: Requirement) -> Forbidden | None:
    if not any(role.users or role.usergroups for role in requirement.roles):
        return Forbidden(reason=_NOBODY)
    # No principals: the requester of a call may stop its agent at any time.
    reason = quorum.ineligible_reason(reviewer, requirement, ())
    return Forbidden(reason=reason) if reason else None


def _who(reviewer: Reviewer, requirement: Requirement) -> tuple[str, str]:
    """Return the actor and, if they need a delegated role, the people they act for."""
    by = listed([reviewer.person])
    # A person's own role comes first, even if others have delegated their queue to
    # them.
    if (
        quorum.ineligible_reason(reviewer.with_(stands_in_for=()), requirement, ())
        is None
    ):
        return by, ""
    acting = quorum.standing_in(reviewer, requirement.roles, ())
    return by, listed(other.person for other in acting.stands_in_for)


RETRIED = "retried"
"""Value of `StalledRun.announced` after a person retried the run."""

_LIMIT = "limit"

_NEWEST = 3
"""Number of a run's newest approvals that are read to find an existing one."""


async def run_event(
    store: Store, keys: Keys, run: RunRef, name: EventName, **data: str
) -> Event:
    """Return an event about a run, addressed to the place of its request."""
    facts = await store.threads.facts(keys, run.agent, run.thread)
    origin = facts.origin
    channel, thread_ts = (origin.channel, origin.thread_ts) if origin else ("", "")
    return Event(
        name=name,
        tenant=keys.tenant,
        agent=run.agent,
        thread=run.thread,
        channel=channel,
        data={"channel": channel, "thread_ts": thread_ts, **data},
    )


async def stalled_event(
    store: Store, keys: Keys, run: StalledRun, name: EventName
) -> Event:
    """Return an event about a failed run, addressed to the place of its request.

    A run without a request in Slack is reported in its newest card's channel.
    """
    run_ref = RunRef(agent=run.agent, thread=run.thread)
    event = await run_event(
        store,
        keys,
        run_ref,
        name,
        outage=run.outage,
        trouble=run.trouble,
        since_ms=str(run.since_ms),
        next_ms=str(run.next_ms),
        until_ms=str(run.until_ms),
        can_pass=str(int(run.can_pass)),
    )
    if not event.channel:
        newest = await store.approvals.of_run(keys, run_ref, newest=_NEWEST)
        # The channel of the sealed record: the stored place of a card is not protected.
        for one in await store.approvals.load_each(one.id for one in newest):
            channel = one.approval.channel  # oldest first
            event = event.with_(channel=channel, data=event.data | {"channel": channel})
    return event.with_(reason=run.reason)


class RunService(PolicyService):
    """The failed runs of a tenant."""

    async def all(self) -> list[StalledRun]:
        """Return the waiting and parked runs, the longest failing first."""
        found = await self._store.stalled.all(self._keys)
        return [one for one in found if one.tenant == self._tenant and one.is_listed]

    async def find(self, run: str) -> StalledRun | None:
        """Return a failed run; None if it continues or does not exist."""
        keys = self._store.keys_of_run(run)
        found = await self._store.stalled.find(keys, run) if keys else None
        return found if found and found.tenant == self._tenant else None

    async def counts(self) -> tuple[int, int]:
        """Return the numbers of the tenant's waiting runs and parked runs."""
        return await self._store.stalled.counts(self._keys)

    async def forbidden(self, run: StalledRun, reviewer: Reviewer) -> Forbidden | None:
        """Return why a person may not retry a run; None when they may.

        Its requesters and the reviewers of its agent may.
        """
        outsider = quorum.no_member(reviewer)
        if outsider is not None:
            return Forbidden(reason=outsider)
        facts = await self._store.threads.facts(self._keys, run.agent, run.thread)
        if quorum.is_among(reviewer.person, facts.people):
            return None
        scope = FreezeScope(kind=ScopeKind.AGENT, name=run.agent)
        freezes = ReviewerFreezes(self._store, self._policy, tenant=self._tenant)
        return freezes.forbidden(scope, reviewer)

    async def retry(
        self, run: StalledRun, by: str, gesture: Gesture = Gesture.API
    ) -> bool:
        """Retry a run now; False when it changed since it was read.

        The time for its retries starts over. ``by`` and ``gesture`` are for the audit
        log.

        Raises:
            StoreUnavailable: when it is not known to be retried.
        """
        stalled, keys = self._store.stalled, self._keys
        now_ms = await self._store.conn.now_ms(keys.retry)
        after = run.with_(
            state=RunState.WAITING,
            attempts=0,
            retried_since_ms=now_ms,
            at_ms=now_ms,
            next_ms=now_ms,
            until_ms=0,
            announced=RETRIED if run.is_announced else run.announced,
            jobs=run.jobs or (Job.to_resume(run.tenant, run.agent, run.thread),),
        )
        event = await self._event(run, EventName.RUN_RETRIED, by, gesture)
        return await stalled.change(
            self._keys,
            run.id,
            run,
            after,
            again=after.jobs,
            # A person allows it beyond the limit, which restarts from zero.
            forgotten=HALTED if run.trouble == _LIMIT else "",
            events=[event],
        )

    async def drop(
        self, run: StalledRun, by: str, gesture: Gesture = Gesture.API
    ) -> bool:
        """End a run and its calls unexecuted; False when it changed since it was read.

        A new message in its thread starts a new run.

        Raises:
            StoreUnavailable: when it is not known to be dropped.
            ThreadUnavailable: while a worker runs the thread.
        """
        keys = self._keys
        place = (keys, run.agent, run.thread)
        run_ref = RunRef(agent=run.agent, thread=run.thread)
        # Under the lease: otherwise a worker that is retrying the run could write its
        # failure, or an approval, after the drop.
        async with self._store.threads.lease(*place):
            event = await self._event(run, EventName.RUN_DROPPED, by, gesture)
            is_dropped = await self._store.stalled.change(
                keys,
                run.id,
                run,
                None,
                undone=run.jobs,
                is_dropped=True,
                events=[event],
            )
            # Only if this call dropped it: otherwise the record may be a new one.
            if is_dropped:
                agents = AgentService(self._store, self._policy, tenant=self._tenant)
                await agents.supersede_run(run_ref)
                await self._store.threads.end_run(*place)
        return is_dropped

    async def _event(
        self, run: StalledRun, name: EventName, by: str, gesture: Gesture
    ) -> Event:
        event = await stalled_event(self._store, self._keys, run, name)
        data = {**event.data, "gesture": gesture.value}
        return event.with_(actor=by, data=data)
