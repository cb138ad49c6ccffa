"""Compare the store with the checkpoints, and recover losses on either side.

Theory of operation. A waiting call is recorded twice: the store has its record, and the
checkpoints have the thread with its question. Either can be lost, or restored from an
older copy. Both are compared at start, soon afterwards, and hourly:

1. A thread with a question about a missing record is queued; its answer reports the
   loss and authorizes nothing. A thread whose run was interrupted before its question
   is queued as well.
2. A record is queued if its thread has finished, was interrupted, has other questions
   or could continue, because its job may be lost. The process that runs the thread ends
   or answers it.
3. A record whose thread is gone is ended.

Every change is made under the thread's lease, from the state that both sides have then.
So a comparison is harmless at any time, on any replica, and twice.

Restore counters (see `RestoreDetector`) reveal a store that was restored from a backup.
All of its calls are then put in doubt before any of them runs.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointMetadata,
    empty_checkpoint,
)
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.ending import doubt_restored, end_with_thread
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.errors import CorruptRecord, ThreadUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.resume.langgraph_local import AGENT_KEY, Runners
from keyturn.gateway.resume.own_gates import names_of
from keyturn.gateway.resume.store_threads import under_lease
from keyturn.gateway.resume.threads import (
    Answers,
    ThreadState,
    asked_items,
    is_known,
    questions_of,
)
from keyturn.gateway.service.run.agents import MAX_HISTORY
from keyturn.gateway.service.run.claiming import find_answers
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.connection.usable import until_usable
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.runs.restore_counters import RestoreCounters
from keyturn.gateway.store.store import Store

MOST_READ = 200
"""Number of approvals in one read, so that other requests of the store get a turn."""

Recover = Callable[[Approval, Item, int], Change | None]
Saver = BaseCheckpointSaver[Any]


@dataclass(frozen=True)
class Found:
    """One call that recovery changes: before (``was``) and after (``item``)."""

    approval: Approval
    item: Item
    was: Item


# Detect that the store or the checkpoint database was lost or restored.
#
# Both keep a restore counter, which rises while work is done. It is raised in the store
# first, so after a crash in between the store is one ahead. The store is behind the
# checkpoints only if it lost writes.
#
# Each store has separate counters in the checkpoints, because several may share them; a
# copy of a store has the same id. An empty store is not behind: it has no stale record.

THREAD = "keyturn:restore-counter:"
"""Prefix of the thread in which the checkpoints keep their counter for one store."""
CHECKPOINT = "00000000-0000-6000-8000-000000000000"
"""The only checkpoint of that thread, overwritten each time."""
ID_KEY, NUMBER_KEY = "keyturn_checkpoints", "keyturn_restore_counter"

ALIVE_MS = 600_000
"""Time after their last write in which checkpoints may still belong to a restarting
gateway. Calls of threads that are missing here are left alone for that time.
"""
# Far below ALIVE_MS: an idle gateway must not count as gone.
IDLE_MS = 40_000
"""Interval at which the counters rise without any work."""
_SLACK = 16
"""Most that the store may be ahead: several processes raise the counter at once."""


class Consistency(StrEnum):
    """Whether the store or the checkpoints are older than the other."""

    SAME = "same"
    STORE_IS_OLDER = "store_is_older"
    CHECKPOINTS_ARE_OLDER = "checkpoints_are_older"


class RestoreDetector:
    """The counters of one store and one set of checkpoints.

    Args:
        store: the gateway's store.
        saver: the checkpoints.
        tenant: whose records they are.
    """

    def __init__(
        self, store: Store, saver: BaseCheckpointSaver[Any], *, tenant: str = "default"
    ) -> None:
        self._counters = store.restore_counters
        self._saver = saver
        self._keys = store.keys_of_tenant(tenant)
        self._store = ""
        self._id = ""
        self._last = 0
        self._changes = -1
        self._advanced_ms = 0

    async def compare(self) -> Consistency:
        """Return which of the two is older, if any; write nothing."""
        store = (await self._known()).store
        if self._store and store != self._store:
            return Consistency.STORE_IS_OLDER  # it was emptied under this process
        checkpoints, written = await self._read(store)
        # The checkpoints first: another process writes the store before the
        # checkpoints.
        counters = await self._known()
        counter = counters.of.get(checkpoints)
        kept = counter.number if counter else 0
        # The number that this process wrote counts, too: store and checkpoints may have
        # been restored to one moment while it ran, and then agree with each other.
        last = self._last if checkpoints == self._id else 0
        if kept < max(written, last):
            return Consistency.STORE_IS_OLDER
        # The store may be ahead: by one for each process that is between its two
        # writes, or was killed there.
        if kept > written + _SLACK:
            return Consistency.CHECKPOINTS_ARE_OLDER
        return Consistency.SAME

    async def advance(self) -> None:
        """Raise both counters, if something changed or time has passed."""
        # Read before the counters rise: a change in between makes them rise again.
        changes = await self._counters.changes(self._keys)
        now_ms = (await self._known()).now_ms
        is_idle = changes == self._changes
        if is_idle and now_ms - self._advanced_ms < IDLE_MS:
            return
        if not self._store:
            fresh = secrets.token_hex(16)
            self._store = await self._counters.named(self._keys, fresh)
        if not self._id:
            self._id, _ = await self._read(self._store)
            self._id = self._id or secrets.token_hex(16)
        # The store first. After a crash in between, it is one ahead, which is allowed;
        # in the other order it would look like an older copy.
        self._last = await self._counters.add(self._keys, self._id)
        await self._write(self._last)
        self._changes, self._advanced_ms = changes, now_ms

    async def equalize(self) -> None:
        """Make both counters equal again, after a recovery."""
        counters = await self._known()
        self._store = counters.store
        self._id, written = await self._read(counters.store)
        if self._id:
            kept = counters.of[self._id].number if self._id in counters.of else 0
            # Never the smaller one: other processes treat a lower counter as a loss.
            newest = max(kept, written)
            await self._counters.put(self._keys, self._id, newest)
        self._changes = -1
        await self.advance()

    async def is_only_process(self) -> bool:
        """Return True if no other checkpoints were used with this store recently."""
        counters = await self._known()
        return all(
            one == self._id or counter.at_ms < counters.now_ms - ALIVE_MS
            for one, counter in counters.of.items()
        )

    async def _known(self) -> RestoreCounters:
        return await self._counters.read(self._keys)

    async def _read(self, store: str) -> tuple[str, int]:
        """Return the id of the checkpoints and their counter for a store."""
        found = await self._saver.aget_tuple(_place(store)) if store else None
        if found is None:
            return "", 0
        metadata = cast("Mapping[str, object]", found.metadata)
        number = metadata.get(NUMBER_KEY, 0)
        kept = number if isinstance(number, int) else 0
        return str(metadata.get(ID_KEY, "")), kept

    async def _write(self, number: int) -> None:
        checkpoint = {**empty_checkpoint(), "id": CHECKPOINT}
        metadata = {"source": "update", ID_KEY: self._id, NUMBER_KEY: number}
        await self._saver.aput(
            _place(self._store),
            cast("Any", checkpoint),
            cast("CheckpointMetadata", metadata),
            {},
        )


def _place(store: str) -> RunnableConfig:
    return {"configurable": {"thread_id": THREAD + store, "checkpoint_ns": ""}}


logger = logging.getLogger(__name__)

RECORD_LOST = "The store has no record of a call that the thread asks about."
THREAD_GONE = "The checkpoints do not have the thread of a call that waits."
THREAD_ENDED = "The thread has ended, and a call of it still waits."
DROPPED = "A call waits for people, and the thread asks nothing about it."
CUT_OFF = "The thread was cut off, and no process runs it."
DECIDED = "A call is decided, and its thread did not go on."
UNASKED = "A thread asks people by itself, and there is no card about it."


@dataclass(frozen=True)
class Mismatch:
    """A thread whose records and checkpoints differ: the problem and its calls."""

    agent: str
    thread: str
    problem: str
    items: tuple[str, ...]

    @property
    def is_gone(self) -> bool:
        """Return True if the thread is missing from the checkpoints."""
        return self.problem == THREAD_GONE


@dataclass(frozen=True)
class RecoveryReport:
    """Result of one comparison.

    Attributes:
        mismatches: threads to advance.
        unserved: number of waiting threads without a known agent in this process.
    """

    mismatches: tuple[Mismatch, ...]
    unserved: int = 0

    @property
    def gone(self) -> tuple[Mismatch, ...]:
        """Return the mismatches whose thread is missing from the checkpoints."""
        return tuple(one for one in self.mismatches if one.is_gone)


class Recovery(TenantService):
    """Compare both sides for the agents of one process, and recover losses.

    Each change of a record is one atomic write.

    Args:
        store: records and jobs.
        runners: the runners of this process, and its checkpoints.
        tenant: owner of these agents.
    """

    def __init__(
        self, store: Store, runners: Runners, *, tenant: str = "default"
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._runners = runners

    async def recover(self, *, is_only_process: bool) -> RecoveryReport:
        """End the calls of threads that are gone, and queue all other threads.

        Args:
            is_only_process: no gateway with other checkpoints uses this store. Such a
                gateway might have the threads that are missing here.
        """
        found = await self.compare()
        for mismatch in found.mismatches:
            logger.info(
                "recovery.found agent=%s thread=%s problem=%s items=%s",
                mismatch.agent,
                mismatch.thread,
                mismatch.problem,
                ",".join(mismatch.items),
            )
            if not mismatch.is_gone:
                await self._queue(mismatch)
            elif is_only_process:
                await self._end(mismatch)
        return found

    async def doubt_all(self, *, is_dry: bool = False) -> list[Found]:
        """Put all unfinished calls in doubt after a restore from an older copy.

        Args:
            is_dry: only return the changes.
        """
        return [
            found
            async for approval in self.unfinished()
            for found in await self._change(approval, doubt_restored, is_dry=is_dry)
        ]

    async def unfinished(self) -> AsyncGenerator[Approval]:
        """Yield the tenant's unfinished approvals.

        Their ids are read first, because the caller's change to one may end it.
        """
        # By the index of deadlines: calls that are already in doubt are not in it, and
        # need no further doubt.
        ids = await self._store.approvals.scheduled(self._keys)
        for start in range(0, len(ids), MOST_READ):
            page = ids[start : start + MOST_READ]
            for loaded in await self._store.approvals.load_each(page):
                if loaded.approval.tenant == self._tenant:
                    yield loaded.approval

    async def _change(
        self, approval: Approval, recover: Recover, *, is_dry: bool = False
    ) -> list[Found]:
        """Change each item of an approval, where needed; return the changes."""
        changed = [
            await self._change_item(approval.id, item.index, recover, is_dry=is_dry)
            for item in approval.items
        ]
        return [one for one in changed if one is not None]

    async def _change_item(
        self, approval_id: str, index: int, recover: Recover, *, is_dry: bool
    ) -> Found | None:
        found: Found | None = None

        async def compute(loaded: Loaded) -> Write | None:
            nonlocal found
            was = loaded.approval.items[index]
            change = recover(loaded.approval, was, loaded.now_ms)
            found = None
            if change is None:
                return None
            found = Found(change.approval, change.approval.items[index], was)
            return None if is_dry else Write(change)

        # `load_each` has just logged it; the other records must be recovered anyway.
        with suppress(CorruptRecord):
            written = await self._store.approvals.change(approval_id, compute)
            if written and found:
                logger.warning(
                    "item.recovered item=%s agent=%s thread=%s state=%s",
                    found.item.id,
                    found.approval.run_ref.agent,
                    found.approval.run_ref.thread,
                    found.item.state,
                )
        return found

    async def _queue(self, mismatch: Mismatch) -> None:
        run = self._keys.stalled_run(mismatch.agent, mismatch.thread)
        if await self._store.stalled.find(self._keys, run) is not None:
            return  # `keyturn.gateway.resume.retries` decides about it
        job = Job.to_resume(self._tenant, mismatch.agent, mismatch.thread)
        await self._store.queue(self._keys).put(job)

    async def _end(self, mismatch: Mismatch) -> None:
        """End a thread's calls, if it is still missing under its lease."""
        runner = self._runners.of(mismatch.agent, mismatch.thread)
        run = RunRef(agent=mismatch.agent, thread=mismatch.thread)

        async def work() -> None:
            # Read again, now under the lease: the thread may have been started since.
            if runner is None or (await runner.probe(run.thread)).exists:
                return
            ids = await self._store.approvals.unfinished_of_run(self._keys, run)
            for loaded in await self._store.approvals.load_each(ids):
                await self._change(loaded.approval, end_with_thread)

        try:
            await under_lease(self._store, self._keys, run, work)
        except ThreadUnavailable:
            return  # another process runs it, so it exists

    async def compare(self) -> RecoveryReport:
        """Return the mismatches, and change nothing."""
        runs: dict[RunRef, list[Approval]] = {}
        async for approval in self.unfinished():
            runs.setdefault(approval.run_ref, []).append(approval)
        found = [
            await self._mismatch(run, approvals) for run, approvals in runs.items()
        ]
        unserved = 0
        async for page in newest_threads(self._runners.saver):
            others = await self._open_runs(page)
            for thread in (thread for thread, is_waiting in page if is_waiting):
                agent = await self._agent_of(thread)
                unserved += not agent
                others.append(RunRef(agent=agent, thread=thread))
            found += [
                await self._mismatch(run, ()) for run in others if run not in runs
            ]
        return RecoveryReport(tuple(one for one in found if one), unserved)

    async def _mismatch(
        self, run: RunRef, approvals: Sequence[Approval]
    ) -> Mismatch | None:
        """Compare a run's records with its thread; None if they fit."""
        runner = self._runners.of(run.agent, run.thread)
        if runner is None:
            return None
        try:
            state = await runner.probe(run.thread)
            problem = await self._problem(run, state, approvals)
        except any_failure() as error:  # it must not stop the others
            log_failure(logger, error, "recovery.unread thread=%s", run.thread)
            return None
        if not problem:
            return None
        items = [item.id for item in _waiting_items(approvals)]
        asked = sorted(asked_items(state.pending))
        return Mismatch(run.agent, run.thread, problem, tuple(items or asked))

    async def _problem(
        self, run: RunRef, state: ThreadState, approvals: Sequence[Approval]
    ) -> str:
        """Return the problem of a run; "" if it waits correctly."""
        if state.is_cut_off:
            return "" if await self._is_run(run) else CUT_OFF
        if approvals and not state.exists:
            return THREAD_GONE
        if approvals and state.is_finished:
            return THREAD_ENDED
        asked = asked_items(state.pending)
        if any(
            # A call inside a tool may have no question while another agent there has
            # one.
            item.is_pending and not item.ctx.ns and item.id not in asked
            for item in _waiting_items(approvals)
        ):
            return DROPPED
        if problem := await self._handed_problem(run, state, approvals):
            return problem
        return await self._answer_problem(run, state)

    async def _handed_problem(
        self, run: RunRef, state: ThreadState, approvals: Sequence[Approval]
    ) -> str:
        """Return the problem of a graph that asks by itself; "" without one."""
        known = [one for one in state.pending if state.hands_over and is_known(one)]
        names = names_of(known)
        if is_decided(approvals, names):
            return DECIDED
        return "" if names <= await self._messages(run, names) else UNASKED

    async def _answer_problem(self, run: RunRef, state: ThreadState) -> str:
        questions = questions_of(state.pending)
        # The answers are only counted.
        found = await find_answers(self._store, run, questions, hides_reviewers=True)
        given = {question: (one.answer, one.times) for question, one in found.items()}
        if not Answers.to(state.pending, given).ready:
            return ""
        return RECORD_LOST if any(one.is_lost for one in found.values()) else DECIDED

    async def _messages(self, run: RunRef, names: Collection[str]) -> set[str]:
        """Return the messages of a run's approvals; read only if any is needed."""
        if not names:
            return set()
        listed = await self._store.approvals.of_run(self._keys, run, newest=MAX_HISTORY)
        found = await self._store.approvals.load_each(one.id for one in listed)
        return {one.approval.message_id for one in found}

    async def _is_run(self, run: RunRef) -> bool:
        """Return True if a process has the lease on a thread."""
        lease = self._keys.lease(run.agent, run.thread)
        return bool(await self._store.conn.command("EXISTS", lease))

    async def _open_runs(self, page: Iterable[tuple[str, bool]]) -> list[RunRef]:
        """Return the runs without a question that have not ended.

        The job of such a run may be lost. Without a waiting call, only this check finds
        it.
        """
        runs = [
            RunRef(agent=agent, thread=thread)
            for thread, is_waiting in page
            for agent in self._runners.agents
            if not is_waiting
        ]
        return await self._store.threads.open_runs(self._keys, runs)

    async def _agent_of(self, thread: str) -> str:
        """Return the agent of a thread; "" if this process does not run it."""
        found = await self._runners.saver.aget_tuple(
            {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        )
        metadata = cast("Mapping[str, object]", found.metadata if found else {})
        agent, served = str(metadata.get(AGENT_KEY, "")), self._runners.agents
        if not agent and len(served) == 1:
            [agent] = served  # a program ran the graph without Keyturn
        # Do not trust checkpoints: the name counts only for an agent that runs here.
        return agent if agent in served else ""


def is_decided(approvals: Iterable[Approval], names: Collection[str]) -> bool:
    """Return True if all calls of one of these questions are decided and not sent."""
    items = [item for one in approvals for item in one.items if item.handed_to]
    waiting = {item.ctx.message_id for item in items if item.is_pending}
    return any(
        item.state is ItemState.AUTHORIZED
        and item.ctx.message_id in names
        and item.ctx.message_id not in waiting
        for item in items
    )


def _waiting_items(approvals: Iterable[Approval]) -> list[Item]:
    waiting = {ItemState.PENDING, ItemState.AUTHORIZED}
    return [item for one in approvals for item in one.items if item.state in waiting]


PAGE = 500
"""Number of threads that one statement reads."""
INTERRUPT = "__interrupt__"
"""Channel of LangGraph's open questions."""

# The root namespace is enough: a question of an inner graph is written there, too, as a
# question of the task that runs this graph.
_NEWEST = """
SELECT newest.thread_id AS thread, newest.id IN (
  SELECT w.checkpoint_id FROM {writes} AS w
  WHERE w.thread_id = newest.thread_id AND w.checkpoint_ns = ''
    AND w.checkpoint_id = newest.id AND w.channel = '{interrupt}'
) AS waits
FROM (
  SELECT thread_id, MAX(checkpoint_id) AS id FROM checkpoints
  WHERE checkpoint_ns = '' AND thread_id > {mark}
  GROUP BY thread_id ORDER BY thread_id LIMIT {page}
) AS newest
ORDER BY newest.thread_id
"""


# Pages begin after a key, not at an OFFSET: concurrent changes do not shift them.
async def newest_threads(saver: Saver) -> AsyncGenerator[list[tuple[str, bool]]]:
    """Yield the ids of all threads, a page at a time, and whether each one waits.

    The query uses indexes and loads no checkpoint.
    """
    after = ""
    while rows := await _page(saver, after):
        yield rows
        after = rows[-1][0]


async def _page(saver: Saver, after: str) -> list[tuple[str, bool]]:
    if isinstance(saver, AsyncSqliteSaver):
        await saver.setup()
        query = _NEWEST.format(writes="writes", interrupt=INTERRUPT, mark="?", page="?")
        async with saver.lock, saver.conn.execute(query, (after, PAGE)) as cursor:
            return [(str(row[0]), bool(row[1])) for row in await cursor.fetchall()]
    query = _NEWEST.format(
        writes="checkpoint_writes", interrupt=INTERRUPT, mark="%s", page="%s"
    )
    # The saver's cursor: on a connection of its pool, or on its only connection,
    # locked.
    async with cast("Any", saver)._cursor() as cursor:  # noqa: SLF001
        await cursor.execute(query, (after, PAGE))
        rows = cast("list[dict[str, object]]", await cursor.fetchall())
        return [(str(row["thread"]), bool(row["waits"])) for row in rows]


TICK_S = 5.0
"""Interval at which the restore counters rise and are compared."""
AGAIN_S = 20.0
"""Delay between the first comparison and the second; the leases of a killed process
have ended by then.
"""
HOURLY_S = 3600.0


class RecoveryLoop:
    """Periodic detection of losses and recovery from them in one process.

    Args:
        store: the records.
        runners: the runners of this process, and its checkpoints.
        tenant: owner of these agents.
    """

    def __init__(
        self, store: Store, runners: Runners, *, tenant: str = "default"
    ) -> None:
        self._detector = RestoreDetector(store, runners.saver, tenant=tenant)
        self._recovery = Recovery(store, runners, tenant=tenant)
        self._url = store.conn.url
        self._ticks_left = 0
        self._has_looked = False

    async def begin(self) -> None:
        """Put a restored store's calls in doubt before any of them runs.

        Waits for an unavailable store, like the opening of the store.

        Raises:
            StoreUnavailable: the store does not answer in time.
        """
        await until_usable(self._compare, self._url)

    async def tick(self) -> None:
        """Detect a loss, and compare store and checkpoints if that is due."""
        await self._compare()
        # A comparison reads every waiting thread, so it is hourly; the counters are
        # compared at each tick.
        if self._ticks_left > 0:
            self._ticks_left -= 1
            return
        is_only_process = await self._detector.is_only_process()
        found = await self._recovery.recover(is_only_process=is_only_process)
        waits_s = HOURLY_S if self._has_looked else AGAIN_S
        self._has_looked = True
        if found.gone:
            # A worker may have had the lease on a missing thread just now. Or a gateway
            # with other checkpoints used this store a moment ago.
            waits_s = 0 if is_only_process else ALIVE_MS / 1000
        self._ticks_left = int(waits_s / TICK_S)

    async def _compare(self) -> None:
        consistency = await self._detector.compare()
        if consistency is not Consistency.SAME:
            logger.error("recovery.inconsistent %s", consistency)
            if consistency is Consistency.STORE_IS_OLDER:
                await self._recovery.doubt_all()
            # Only after all calls are in doubt: after a crash in between, the next
            # start finds the difference again and repeats this.
            await self._detector.equalize()
            self._ticks_left = 0
        await self._detector.advance()


@dataclass(frozen=True)
class RepairReport:
    """Changes that a repair made, or would make.

    Attributes:
        consistency: whether store or checkpoints are older than the other.
        doubted: calls whose record may be out of date.
        report: threads whose records and checkpoints do not match.
    """

    consistency: Consistency
    doubted: tuple[Found, ...]
    report: RecoveryReport


async def repair_losses(
    store: Store, runners: Runners, *, tenant: str, is_dry: bool, is_restored: bool
) -> RepairReport:
    """Put calls in doubt, end or queue mismatched threads, and return the changes.

    The caller asserts that no gateway with other checkpoints uses the store.

    Args:
        store: the gateway's store.
        runners: the agents and their checkpoints.
        tenant: owner of the records.
        is_dry: only return the changes.
        is_restored: the store is out of date, even if that cannot be detected: copies
            of both sides from one moment match.
    """
    recovery = Recovery(store, runners, tenant=tenant)
    detector = RestoreDetector(store, runners.saver, tenant=tenant)
    consistency = await detector.compare()
    doubted = list[Found]()
    if is_restored or consistency is Consistency.STORE_IS_OLDER:
        doubted = await recovery.doubt_all(is_dry=is_dry)
    if is_dry:
        return RepairReport(consistency, tuple(doubted), await recovery.compare())
    report = await recovery.recover(is_only_process=True)
    # Last: after a crash before this, the next repair still finds the difference.
    await detector.equalize()
    return RepairReport(consistency, tuple(doubted), report)
