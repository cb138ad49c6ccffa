"""Retry failed runs with backoff, and park runs that a retry cannot help.

The caller of `failed` and `record_resumed` has the thread's lease, so the record of a
run describes its last attempt. People change it too (`RunService`), without the lease:
every write is a compare-and-set against the record that was read.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.failures import any_failure, described, log_failure
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.resume.diagnosis import (
    Diagnosis,
    ErrorKind,
    ThreadHalted,
    diagnose,
    unserved,
)
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.service.people.freezing import stalled_event
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.runs.jobs import Delivery, Job, JobKind, RunState, StalledRun
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

UNSERVED_S = 30.0
"""Delay before an announcement that no process runs a thread: a process may be about to
take its job, or to start.
"""
UNSERVED_MS, _UNSERVED_LONGEST_MS = 1000, 600_000
"""Shortest and longest delay before an unserved job is offered again."""
_UNSERVED_PARKED_MS = 5000
_PASSED_ON_MS = 50
"""Time in which a job is passed on at once. The server gives it to the process that
waited longest, so within one round it reaches a process that serves it.
"""
_START_MS = 60_000
"""A process that starts within this time of another one retries no parked run."""
# An attempt fails only if the same run was changed concurrently: this many in a row are
# a bug or a flood.
_ATTEMPTS = 32
_LONGEST_DETAIL = 2000


class Retries(TenantService):
    """Retries, parks or ends the failed runs of a store.

    Args:
        store: jobs, events and failed runs, and the retry settings.
        tenant: owner of the runs.
    """

    def __init__(self, store: Store, *, tenant: str = "default") -> None:
        super().__init__(store, tenant=tenant)
        self._stalled = store.stalled

    async def failed(
        self,
        run: RunRef,
        error: BaseException,
        *,
        left: Job | None,
        delivery: Delivery | None = None,
        is_last: bool = False,
    ) -> StalledRun | None:
        """Plan the next attempt of a failed run, or park it.

        Args:
            run: the run; the caller has the lease of its thread.
            error: the error that ended the attempt.
            left: the remaining job; None if it is unknown.
            delivery: the failed job, which is acknowledged in the same step.
            is_last: park the run in any case.

        Returns:
            The record of the run; None if its halt was already announced.

        Raises:
            StoreUnavailable: nothing was written; the job is delivered again.
        """
        diagnosis = diagnose(error)
        approved_until_ms = await self._approved_until(run)
        # Without a replacement job the delivery is not acknowledged, so it is repeated.
        done = delivery.id if delivery and left else ""
        for _ in range(_ATTEMPTS):
            before = await self._stalled.find(self._keys, self._id(run))
            # This halt was announced. Another record would announce it again with each
            # job.
            if (
                before is None
                and isinstance(error, ThreadHalted)
                and error.is_announced
            ):
                if await self._stalled.change(
                    self._keys, self._id(run), None, None, delivery=done
                ):
                    return None
                continue
            # The store's clock: other processes compare these times with theirs.
            now_ms = await self._store.conn.now_ms(self._keys.retry)
            after = failed_again(
                before or _first_failure(self._keys, run, now_ms),
                diagnosis,
                self._store.retries,
                now_ms=now_ms,
                approved_until_ms=approved_until_ms,
                spread=_spread(),
                is_last=is_last,
            ).with_(
                detail=described(error)[:_LONGEST_DETAIL],
                jobs=_still_to_do(before, delivery, left),
            )
            if await self._keep(run, before, after, now_ms, left, delivery=done):
                log_failure(
                    logger,
                    error,
                    "run.%s agent=%s thread=%s trouble=%s attempts=%d next_in_ms=%d",
                    after.state,
                    run.agent,
                    run.thread,
                    after.trouble,
                    after.attempts,
                    max(0, after.next_ms - now_ms),
                )
                return after
        raise _too_many_changes(run)

    async def record_resumed(
        self, run: RunRef, delivery: Delivery | None, runner: Runner | None = None
    ) -> None:
        """Record that a run has resumed, and acknowledge the job that resumed it.

        Args:
            run: the run; the caller has the lease of its thread.
            delivery: the job; None if there was none.
            runner: the runner of the thread, to check for taken messages; None if
                unavailable.
        """
        done = delivery.id if delivery else ""
        # The usual case in one step: it succeeds only without a record.
        if await self._stalled.change(
            self._keys, self._id(run), None, None, delivery=done
        ):
            return
        for _ in range(_ATTEMPTS):
            before = await self._stalled.find(self._keys, self._id(run))
            left = [
                job
                for job in (before.jobs if before else ())
                if job.kind is JobKind.START
                and not (delivery and job == delivery.job)
                and not await _was_given(run, runner, job)
            ]
            after, events = None, list[Event]()
            if before is not None and left:
                # Messages that could not be given before are next, so they are queued
                # again. A taken message is not: another worker would take its job at
                # once, find the thread busy and put the rest of the job back, which
                # ends up here again, for ever.
                after = before.with_(state=RunState.WAITING, jobs=tuple(left))
            elif before is not None and before.is_announced:
                name = EventName.RUN_RESUMED
                events = [await stalled_event(self._store, self._keys, before, name)]
            if await self._stalled.change(
                self._keys, self._id(run), before, after,
                delivery=done, again=left, events=events,
            ):  # fmt: skip
                if before is not None:
                    logger.info("run.resumed agent=%s thread=%s", run.agent, run.thread)
                return
        raise _too_many_changes(run)

    async def find_parked(self, run: RunRef) -> StalledRun | None:
        """Return the thread's run if it is parked."""
        found = await self._stalled.find(self._keys, self._id(run))
        is_parked = found is not None and found.state is RunState.PARKED
        return found if is_parked else None

    async def requeue_unserved(
        self, run: RunRef, delivery: Delivery, why: str = ""
    ) -> None:
        """Requeue a job that this process does not serve, with growing delay.

        ``why`` is a sentence with another reason than that no process serves it.
        """
        for _ in range(_ATTEMPTS):
            before = await self._stalled.find(self._keys, self._id(run))
            if before is not None and before.state is RunState.PARKED:
                queue = self._store.queue(self._keys)
                await queue.later(delivery, delay_ms=jittered(_UNSERVED_PARKED_MS))
                return
            now_ms = await self._store.conn.now_ms(self._keys.retry)
            after = _unserved(
                before or _first_failure(self._keys, run, now_ms), now_ms, why
            ).with_(jobs=_still_to_do(before, delivery, delivery.job))
            is_late = now_ms - after.unserved_since_ms >= UNSERVED_S * 1000
            after = after.with_(is_listed=after.attempts > 0 or is_late)
            if await self._keep(
                run, before, after, now_ms, delivery.job,
                delivery=delivery.id,
            ):  # fmt: skip
                return
        raise _too_many_changes(run)

    async def retry_now(self, serves: Callable[[str], bool]) -> None:
        """Retry failed runs at once, because a process that serves them has started.

        A parked run gets one attempt; only a new result is announced.
        """
        keys = self._keys
        for before in await self._stalled.all(keys):
            is_ours = before.tenant == keys.tenant and serves(before.agent)
            is_waiting = before.state is RunState.WAITING
            if not is_ours or not (is_waiting or before.can_pass) or not before.jobs:
                continue
            now_ms = await self._store.conn.now_ms(keys.retry)
            if before.next_ms and before.next_ms <= now_ms < before.next_ms + _START_MS:
                continue  # it is being tried right now
            after = before.with_(next_ms=now_ms)
            # False: another process changed the run first, and queued its jobs.
            await self._stalled.change(keys, before.id, before, after, again=after.jobs)

    async def forget_old(self) -> None:
        """Forget runs without progress for as long as approvals are kept."""
        before_ms = await self._store.conn.now_ms(self._keys.retry) - KEEP_MS
        for stalled in await self._stalled.all(self._keys):
            await self._forget(stalled, before_ms)

    async def _forget(self, before: StalledRun, before_ms: int) -> None:
        is_parked = before.state is RunState.PARKED
        since_ms = before.at_ms if is_parked else before.unserved_since_ms
        # 0: a process serves the run and retries it.
        if not 0 < since_ms <= before_ms:
            return
        keys, run = self._keys, RunRef(agent=before.agent, thread=before.thread)
        if await self._store.approvals.has_open(keys, run):
            return  # a decision may still advance it
        event = await stalled_event(self._store, keys, before, EventName.RUN_DROPPED)
        if await self._stalled.change(
            keys, before.id, before, None,
            undone=before.jobs, is_dropped=True, events=[event],
        ):  # fmt: skip
            await self._store.threads.end_run(keys, run.agent, run.thread)

    async def _keep(
        self,
        run: RunRef,
        before: StalledRun | None,
        after: StalledRun,
        now_ms: int,
        left: Job | None,
        *,
        delivery: str,
    ) -> bool:
        """Store a run's new state, its jobs and the event for its announcement."""
        events: list[Event] = []
        is_parked = after.state is RunState.PARKED
        if (
            after.is_announced
            and after.is_listed
            and report_text(after) != after.announced
        ):
            # Announce only a changed text, or each attempt would write a message.
            after = after.with_(announced=report_text(after))
            name = EventName.RUN_PARKED if is_parked else EventName.RUN_WAITING
            events = [await stalled_event(self._store, self._keys, after, name)]
        was_parked = before is not None and before.state is RunState.PARKED
        # The jobs of a parked run are in no queue, so all are queued; those of a
        # waiting run are queued already, except the delivered job.
        again: Sequence[Job] = after.jobs if was_parked else (left,) if left else ()
        return await self._stalled.change(
            self._keys,
            self._id(run),
            before,
            after,
            delivery=delivery,
            undone=after.jobs if is_parked else (),
            again=() if is_parked else again,
            delay_ms=max(0, after.next_ms - now_ms),
            events=events,
        )

    def _id(self, run: RunRef) -> str:
        return self._keys.stalled_run(run.agent, run.thread)

    async def _approved_until(self, run: RunRef) -> int:
        """Return the end of the last approval by people; 0 if the run has none."""
        approvals = self._store.approvals
        ids = await approvals.unfinished_of_run(self._keys, run)
        return max(
            (
                item.lapses_at_ms
                for loaded in await approvals.load_each(ids)
                for item in loaded.approval.items
                if item.state is ItemState.AUTHORIZED and not item.is_auto_approved
            ),
            default=0,
        )


def _first_failure(keys: Keys, run: RunRef, now_ms: int) -> StalledRun:
    id_ = keys.stalled_run(run.agent, run.thread)
    return StalledRun(
        id=id_,
        outage=f"{id_}.{secrets.token_hex(4)}",
        tenant=keys.tenant,
        agent=run.agent,
        thread=run.thread,
        state=RunState.WAITING,
        trouble="",
        reason="",
        since_ms=now_ms,
        retried_since_ms=now_ms,
        at_ms=now_ms,
    )


async def _was_given(run: RunRef, runner: Runner | None, job: Job) -> bool:
    """Return True if a thread was given a message; False if unknown."""
    if runner is None:
        return False
    try:
        return await runner.has_taken(run.thread, job.id)
    except any_failure() as error:  # the checkpoints cannot be read
        # Record that the run continued. The message is queued again, and checked again
        # before it is given.
        log_failure(logger, error, "thread.unread job=%s", job.id)
        return False


def _still_to_do(
    before: StalledRun | None, delivery: Delivery | None, left: Job | None
) -> tuple[Job, ...]:
    """Return the remaining jobs after an attempt; ``left`` is the rest of its job."""
    replaced = [left, delivery.job if delivery else None]
    jobs = [job for job in (before.jobs if before else ()) if job not in replaced]
    return (*jobs, left) if left else tuple(jobs)


def _unserved(before: StalledRun, now_ms: int, why: str) -> StalledRun:
    """Return a run after its job was offered to a process that does not serve it."""
    since_ms = before.unserved_since_ms or now_ms
    age_ms = now_ms - since_ms
    # In proportion to its age: a restarted program gets its thread within a second, and
    # a thread of a vanished program costs one offer every ten minutes.
    pause_ms = min(max(UNSERVED_MS, age_ms // 4), _UNSERVED_LONGEST_MS)
    next_ms = now_ms + (0 if age_ms < _PASSED_ON_MS else jittered(pause_ms))
    after = before.with_(unserved_since_ms=since_ms, next_ms=next_ms)
    # A run that failed before keeps its reason until it is certain that no process
    # serves it.
    if before.attempts and age_ms < UNSERVED_S * 1000:
        return after
    cause = unserved()
    return after.with_(
        trouble=cause.kind.value,
        reason=(why or cause.reason)[:_LONGEST_DETAIL],
        detail="",
        can_pass=True,
        until_ms=0,
        is_announced=before.is_announced or age_ms >= UNSERVED_S * 1000,
    )


def jittered(pause_ms: int) -> int:
    """Return 50 to 100 % of a pause, so that retries spread out."""
    return max(1, int(pause_ms * _spread()))


def _spread() -> float:
    return random.uniform(0.5, 1.0)  # noqa: S311 - spreads load only


def _too_many_changes(run: RunRef) -> StoreUnavailable:
    return StoreUnavailable(
        f"What is kept of the run of {run.thread!r} changed {_ATTEMPTS} times while it "
        "was written; nothing was kept, and its job is delivered again."
    )


_MOST_DOUBLINGS = 20
_LONGEST_REASON = 500


def failed_again(
    before: StalledRun,
    diagnosis: Diagnosis,
    settings: RetrySettings,
    *,
    now_ms: int,
    approved_until_ms: int,
    spread: float,
    is_last: bool = False,
) -> StalledRun:
    """Return a run after one more failure.

    Args:
        before: its record; a first failure starts with an empty one.
        diagnosis: classification of the error.
        settings: retry settings.
        now_ms: the store's clock.
        approved_until_ms: end of the run's last authorization; 0 for none.
        spread: fraction of a pause that is waited, so that runs spread out.
        is_last: park the run in any case.
    """
    # After a permanent error parked the run, a new attempt, such as for a message,
    # restarts its time. A run parked by a transient error gets only one attempt at a
    # start.
    starts_over = before.state is RunState.PARKED and not before.can_pass
    since_ms = now_ms if starts_over else before.retried_since_ms
    attempts = 1 if starts_over else before.attempts + 1
    is_unknown = diagnosis.kind is ErrorKind.UNKNOWN
    limit = settings.unknown_limit if is_unknown else settings.limit
    until_ms = since_ms + milliseconds(limit)
    if diagnosis.can_pass:
        # A call of the run was approved: retry for as long as the approval allows.
        until_ms = max(until_ms, approved_until_ms)
    is_parked = is_last or diagnosis.is_final or now_ms >= until_ms
    pause_ms = _pause_ms(attempts, settings) * spread
    # After the spread, which must not shorten the wait that a service asked for.
    pause_ms = max(pause_ms, 1000 * diagnosis.retry_after_s)
    # No later than the limit, so that the last attempt is made at the limit.
    next_ms = 0 if is_parked else min(until_ms, now_ms + max(1, int(pause_ms)))
    is_late = next_ms - before.since_ms >= milliseconds(settings.notify_after)
    state = RunState.PARKED if is_parked else RunState.WAITING
    return before.with_(
        state=state,
        at_ms=before.at_ms if state is before.state else now_ms,
        trouble=diagnosis.kind.value,
        reason=diagnosis.reason[:_LONGEST_REASON],
        can_pass=not diagnosis.is_final,
        attempts=attempts,
        retried_since_ms=since_ms,
        next_ms=next_ms,
        until_ms=0 if is_parked else until_ms,
        unserved_since_ms=0,
        is_listed=True,
        is_announced=before.is_announced or is_parked or is_late,
    )


def _pause_ms(attempts: int, settings: RetrySettings) -> int:
    # Bounded: attempts may continue for days, and the integer would double with each.
    doubled = 1 << min(attempts - 1, _MOST_DOUBLINGS)
    return min(milliseconds(settings.first) * doubled, milliseconds(settings.longest))


def milliseconds(time: timedelta) -> int:
    """Return a length of time in milliseconds."""
    return int(time.total_seconds() * 1000)


def report_text(run: StalledRun) -> str:
    """Return the text of a run's announcement; a changed text is announced again."""
    return f"{run.state} {run.until_ms} {run.reason}"
