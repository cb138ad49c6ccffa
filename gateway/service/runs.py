"""List failed runs (dead letters), retry them, or drop them."""

from __future__ import annotations

from collections.abc import Callable

from keyturn.gateway.approvals.decisions import Forbidden, Gesture, Reviewer
from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.quorum import is_among, no_member
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.service.agents import AgentService
from keyturn.gateway.service.freezing import ReviewerFreezes
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.jobs import DeadLetter, Job
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.stalled import HALTED, RunState, StalledRun
from keyturn.gateway.store.store import Store

RETRIED = "retried"
"""Value of `StalledRun.announced` after a person retried the run."""

_LIMIT = "limit"

_NEWEST = 3
"""Number of a run's newest approvals that are read to find an existing one."""


async def run_event(
    store: Store, keys: Keys, run: StalledRun, name: EventName
) -> Event:
    """Return an event about a failed run, addressed to the place of its request.

    A run without a request in Slack is reported in its newest card's channel.
    """
    channel, thread_ts = await _where_to_tell(store, keys, run)
    return Event(
        name=name,
        tenant=run.tenant,
        agent=run.agent,
        thread=run.thread,
        channel=channel,
        reason=run.reason,
        data={
            "channel": channel,
            "thread_ts": thread_ts,
            "outage": run.outage,
            "trouble": run.trouble,
            "since_ms": str(run.since_ms),
            "next_ms": str(run.next_ms),
            "until_ms": str(run.until_ms),
            "can_pass": str(int(run.can_pass)),
        },
    )


async def _where_to_tell(store: Store, keys: Keys, run: StalledRun) -> tuple[str, str]:
    facts = await store.threads.facts(keys, run.agent, run.thread)
    if facts.origin is not None:
        return facts.origin.channel, facts.origin.thread_ts
    run_ref = RunRef(agent=run.agent, thread=run.thread)
    newest = await store.approvals.of_run(keys, run_ref, newest=_NEWEST)
    # The channel of the sealed record: the stored place of a card is not protected.
    loaded = await store.approvals.load_each(one.id for one in newest)
    return (loaded[-1].approval.channel if loaded else ""), ""  # oldest first


class RunService(PolicyService):
    """The failed runs of a tenant."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._agents = AgentService(store, policy, tenant=tenant)
        self._reviewer_freezes = ReviewerFreezes(store, policy, tenant=tenant)

    async def all(self) -> list[StalledRun]:
        """Return the waiting and parked runs, the longest failing first."""
        found = await self._store.stalled.all(self._keys)
        listed = [one for one in found if one.tenant == self._tenant and one.is_listed]
        return sorted(listed, key=lambda one: one.since_ms)

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
        outsider = no_member(reviewer)
        if outsider is not None:
            return Forbidden(reason=outsider)
        facts = await self._store.threads.facts(self._keys, run.agent, run.thread)
        asked = (*((facts.requester,) if facts.requester else ()), *facts.principals)
        if is_among(reviewer.person, asked):
            return None
        scope = FreezeScope(kind=ScopeKind.AGENT, name=run.agent)
        return self._reviewer_freezes.forbidden(scope, reviewer)

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
                await self._agents.supersede_run(run_ref)
                await self._store.threads.end_run(*place)
        return is_dropped

    async def _event(
        self, run: StalledRun, name: EventName, by: str, gesture: Gesture
    ) -> Event:
        event = await run_event(self._store, self._keys, run, name)
        data = {**event.data, "gesture": gesture.value}
        return event.with_(actor=by, data=data)

    async def dead_letters(self) -> list[DeadLetter]:
        """Return the tenant's corrupt jobs; they do not name their agents."""
        return await self._store.queue(self._keys).dead_letters()

    async def forget(self, letter: DeadLetter) -> None:
        """Remove a corrupt job."""
        await self._store.queue(self._keys).forget(letter)
