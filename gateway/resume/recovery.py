"""Compare the store with the checkpoints, and recover what one side lost.

Theory of operation. A call waits in two places: the store has its record, and the
checkpoints have the thread that asks about it. Either can be lost, or restored from an
older copy. Both are compared at start, soon after it, and hourly:

1. A thread that asks about a record which the store does not have is queued; the
   answer says that the record is lost, and authorizes nothing. So is a thread whose run
   was cut off before it asked.
2. A record whose thread has finished, was cut off, asks about something else or could
   go on is queued, since its job may be lost. The process that runs the thread ends or
   answers what it finds.
3. A record whose thread is gone is ended.

All of it is done under the thread's lease, from what both sides say then. So a look is
harmless at any time, on any replica, and twice.

A store that was restored from a backup is noticed by counters
(`keyturn.gateway.resume.recovery`). All of its calls are in doubt then, before
anything of it is carried out.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    CheckpointMetadata,
    CheckpointTuple,
    empty_checkpoint,
)
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Interrupt

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.ending import doubt_restored, end_with_thread
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.errors import CorruptRecord, GraphError, ThreadUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.resume.langgraph_local import AGENT_KEY, pending_of
from keyturn.gateway.resume.questions import Answers, asked_items, questions_of
from keyturn.gateway.resume.runner import PendingInterrupt, Runners, ThreadState
from keyturn.gateway.resume.store_threads import ThreadRef, answers_for, under_lease
from keyturn.gateway.service.answering import find_answers
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.atomic_write import Loaded, Write
from keyturn.gateway.store.jobs import Job
from keyturn.gateway.store.restore_counters import RestoreCounters
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.usable import until_usable

MOST_READ = 200
"""How many approvals are read before others may use the store again."""

Recover = Callable[[Approval, Item, int], Change | None]
Saver = BaseCheckpointSaver[Any]


@dataclass(frozen=True)
class Found:
    """One call that recovery changes, as it stood and as it stands then."""

    approval: Approval
    item: Item
    was: Item


class RecoveryService(TenantService):
    """Change records after a loss or a restore; each change is one atomic write."""

    async def end_thread(self, run_ref: RunRef) -> list[Found]:
        """End what waits in a run whose thread is gone."""
        approvals = self._store.approvals
        keys = self._keys
        ids = await approvals.unfinished_of_run(keys, run_ref)
        return [
            found for one in ids for found in await self._each(one, end_with_thread)
        ]

    async def doubt_all(self, *, is_dry: bool = False) -> list[Found]:
        """Doubt everything in a store that was restored from an older copy.

        Args:
            is_dry: only say what would change.
        """
        return [
            found
            async for approval in self.unfinished()
            for found in await self._each(approval.id, doubt_restored, is_dry=is_dry)
        ]

    async def unfinished(self) -> AsyncGenerator[Approval]:
        """Yield the tenant's approvals in which something is still to happen.

        They are listed first, because what is done to one may end it.
        """
        # By the index of deadlines: what is in doubt already is not in it, and needs no
        # doubt.
        ids = await self._store.approvals.scheduled(self._keys)
        for start in range(0, len(ids), MOST_READ):
            page = ids[start : start + MOST_READ]
            for loaded in await self._store.approvals.load_each(page):
                if loaded.approval.tenant == self._tenant:
                    yield loaded.approval

    async def _each(
        self, approval_id: str, recover: Recover, *, is_dry: bool = False
    ) -> list[Found]:
        found: list[Found] = []
        for loaded in await self._store.approvals.load_each([approval_id]):
            for item in loaded.approval.items:
                one = await self._item(approval_id, item.index, recover, is_dry=is_dry)
                found += [] if one is None else [one]
        return found

    async def _item(
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

        # `load_each` has logged it a moment ago; the others are to be recovered all the
        # same.
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


# Detect that the store or the checkpoint database was lost or restored.
#
# Both keep a restore counter, which rises while anything happens. It is raised in the
# store first, so after a crash in between the store is one ahead. Behind the
# checkpoints it is only when it lost what was written to it.
#
# Each store has counters of its own in the checkpoints, because several may share them;
# a copy of a store has the same id. An empty store is not behind: it says nothing
# untrue.

THREAD = "keyturn:restore-counter:"
"""Prefix of the thread under which checkpoints keep their counter for one store."""
CHECKPOINT = "00000000-0000-6000-8000-000000000000"
"""The one checkpoint of it, written over each time."""
ID_KEY, NUMBER_KEY = "keyturn_checkpoints", "keyturn_restore_counter"

ALIVE_MS = 600_000
"""How long after their last write checkpoints may still belong to a gateway that only
restarts: what waits for threads that ours do not have is left alone so long."""
# Far below ALIVE_MS: a gateway with nothing to do must not count as gone.
IDLE_MS = 40_000
"""How soon the counters rise again while nothing happens."""
_SLACK = 16
"""How far the store may be ahead: several processes raise the counter at once."""


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
        self._tenant = tenant
        self._store = ""
        self._id = ""
        self._last = 0
        self._changes = -1
        self._advanced_ms = 0

    async def compare(self) -> Consistency:
        """Return which of the two is older, if any; nothing is written."""
        store = (await self._known()).store
        if self._store and store != self._store:
            return Consistency.STORE_IS_OLDER  # it was emptied under this process
        checkpoints, written = await self._read(store)
        # The checkpoints first: what another process writes meanwhile is in the store
        # before it is there.
        counters = await self._known()
        counter = counters.of.get(checkpoints)
        kept = counter.number if counter else 0
        # What this process wrote itself counts, too: store and checkpoints can have
        # been put back to one moment while it ran, and then agree with each other.
        last = self._last if checkpoints == self._id else 0
        if kept < max(written, last):
            return Consistency.STORE_IS_OLDER
        # The store may be ahead: by one for each process that is between its two
        # writes, or was killed there.
        if kept > written + _SLACK:
            return Consistency.CHECKPOINTS_ARE_OLDER
        return Consistency.SAME

    async def advance(self) -> None:
        """Raise both counters, if something happened or time has passed."""
        # Read before the counters rise: what changes in between lets them rise again.
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
        # The store first. Killed in between, it is one ahead, which is allowed; the
        # other way round it would look like an older copy.
        self._last = await self._counters.add(self._keys, self._id)
        await self._write(self._last)
        self._changes, self._advanced_ms = changes, now_ms

    async def equalize(self) -> None:
        """Make both counters equal again, after differences were recovered."""
        counters = await self._known()
        self._store = counters.store
        self._id, written = await self._read(counters.store)
        if self._id:
            kept = counters.of[self._id].number if self._id in counters.of else 0
            # Never the smaller one: others take a counter that fell for a loss.
            newest = max(kept, written)
            await self._counters.put(self._keys, self._id, newest)
        self._changes = -1
        await self.advance()

    async def is_only_process(self) -> bool:
        """Return True if no process used other checkpoints with this store lately."""
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


@dataclass(frozen=True)
class Mismatch:
    """A thread whose records and checkpoints differ: in what, for which calls."""

    agent: str
    thread: str
    problem: str
    items: tuple[str, ...]

    @property
    def is_gone(self) -> bool:
        """Return whether the checkpoints do not have the thread."""
        return self.problem == THREAD_GONE


@dataclass(frozen=True)
class RecoveryReport:
    """What one comparison found.

    Attributes:
        mismatches: threads to advance.
        unserved: how many waiting threads no agent of this process is known to run.
    """

    mismatches: tuple[Mismatch, ...]
    unserved: int = 0

    @property
    def gone(self) -> tuple[Mismatch, ...]:
        """Return those whose thread the checkpoints do not have."""
        return tuple(one for one in self.mismatches if one.is_gone)


class Recovery:
    """Compare both sides for the agents of one process.

    Args:
        store: where records and jobs are.
        runners: what this process runs, and its checkpoints.
        tenant: whose agents these are.
    """

    def __init__(
        self, store: Store, runners: Runners, *, tenant: str = "default"
    ) -> None:
        self._store = store
        self._runners = runners
        self._tenant = tenant
        self._records = RecoveryService(store, tenant=tenant)

    async def recover(self, *, is_only_process: bool) -> RecoveryReport:
        """End what waits for threads that are gone, and queue all others.

        Args:
            is_only_process: no gateway with other checkpoints uses this store. One that
                did might have the threads that ours do not.
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

    async def _queue(self, mismatch: Mismatch) -> None:
        keys = self._store.keys_of_tenant(self._tenant)
        run = keys.stalled_run(mismatch.agent, mismatch.thread)
        if await self._store.stalled.find(keys, run) is not None:
            return  # `keyturn.gateway.resume.retries` decides about it
        job = Job.to_resume(self._tenant, mismatch.agent, mismatch.thread)
        await self._store.queue(keys).put(job)

    async def _end(self, mismatch: Mismatch) -> None:
        """End what waits for a thread, if it is still not there under its lease."""
        runner = self._runners.of(mismatch.agent, mismatch.thread)
        keys = self._store.keys_of_tenant(self._tenant)
        at = ThreadRef(keys, mismatch.agent, mismatch.thread)

        async def work() -> None:
            # Read again, now under the lease: the thread may have been started
            # meanwhile.
            if runner is not None and not (await runner.probe(at.thread)).exists:
                await self._records.end_thread(at.run_ref)

        try:
            await under_lease(self._store, at, work)
        except ThreadUnavailable:
            return  # somebody runs it, so it is there

    async def compare(self) -> RecoveryReport:
        """Return what does not match, and change nothing."""
        mismatches = [mismatch async for mismatch in self._from_store()]
        known = {(mismatch.agent, mismatch.thread) for mismatch in mismatches}
        unserved = 0
        if (saver := self._runners.saver) is None:
            return RecoveryReport(tuple(mismatches))
        async for page in newest_threads(saver):
            found = [one async for one in self._cut_off(page)]
            for thread in (thread for thread, is_waiting in page if is_waiting):
                agent, pending = await self._questions(saver, thread)
                if pending and not agent:
                    unserved += 1
                elif pending and (agent, thread) not in known:
                    mismatch = await self._unanswered(agent, thread, pending)
                    found += [] if mismatch is None else [mismatch]
            mismatches += [one for one in found if (one.agent, one.thread) not in known]
        return RecoveryReport(tuple(mismatches), unserved)

    async def _from_store(self) -> AsyncGenerator[Mismatch]:
        runs: dict[RunRef, list[Approval]] = {}
        async for approval in self._records.unfinished():
            runs.setdefault(approval.run_ref, []).append(approval)
        for run_ref, approvals in runs.items():
            runner = self._runners.of(run_ref.agent, run_ref.thread)
            if runner is None:
                continue
            try:
                state = await runner.probe(run_ref.thread)
                problem = await self._problem(run_ref, state, approvals)
            except any_failure() as error:  # one keeps no other from it
                log_failure(logger, error, "recovery.unread thread=%s", run_ref.thread)
                continue
            if problem:
                items = tuple(item.id for item in _waiting_items(approvals))
                yield Mismatch(run_ref.agent, run_ref.thread, problem, items)

    async def _problem(
        self, run_ref: RunRef, state: ThreadState, approvals: Iterable[Approval]
    ) -> str:
        """Return what is wrong with a run; "" when it waits as it should."""
        if not state.exists:
            return THREAD_GONE
        if state.is_finished:
            return THREAD_ENDED
        if state.is_cut_off:
            return "" if await self._is_run(run_ref) else CUT_OFF
        asked = asked_items(state.pending)
        dropped = [
            item
            for item in _waiting_items(approvals)
            # What waits inside a tool may not ask while another agent there does.
            if item.is_pending and not item.ctx.ns and item.id not in asked
        ]
        if dropped:
            return DROPPED
        found = await answers_for(self._store, run_ref, state.pending)
        return DECIDED if found.ready else ""

    async def _is_run(self, run: RunRef) -> bool:
        """Return True if a process holds the lease on a thread."""
        keys = self._store.keys_of_tenant(self._tenant)
        lease = keys.lease(run.agent, run.thread)
        return bool(await self._store.conn.command("EXISTS", lease))

    async def _cut_off(
        self, page: Iterable[tuple[str, bool]]
    ) -> AsyncGenerator[Mismatch]:
        """Yield the threads that ask nothing and whose run has not ended.

        The job of such a run may be lost. Without a call that waits, nothing else
        would find it.
        """
        agents, keys = self._runners.agents, self._store.keys_of_tenant(self._tenant)
        runs = [
            RunRef(agent=agent, thread=thread)
            for thread, is_waiting in page
            for agent in agents
            if not is_waiting
        ]
        for run in await self._store.threads.open_runs(keys, runs):
            runner = self._runners.of(run.agent, run.thread)
            if runner is None or await self._is_run(run):
                continue
            try:
                state = await runner.probe(run.thread)
            except any_failure() as error:  # one keeps no other from it
                log_failure(logger, error, "recovery.unread thread=%s", run.thread)
                continue
            if state.is_cut_off:
                yield Mismatch(run.agent, run.thread, CUT_OFF, ())

    async def _questions(
        self, saver: Saver, thread: str
    ) -> tuple[str, list[PendingInterrupt]]:
        """Return agent and open questions of a thread that waits.

        The agent is "" when nobody here runs it; questions that are not about calls
        are none.
        """
        place: RunnableConfig = {
            "configurable": {"thread_id": thread, "checkpoint_ns": ""}
        }
        found = await saver.aget_tuple(place)
        pending = [] if found is None else _open_questions(found)
        if found is None or not asked_items(pending):
            return "", []
        return self._agent_of(found), pending

    def _agent_of(self, found: CheckpointTuple) -> str:
        """Return the agent whose thread this is; "" when this process runs none."""
        metadata = cast("Mapping[str, object]", found.metadata)
        agent, served = str(metadata.get(AGENT_KEY, "")), self._runners.agents
        if not agent and len(served) == 1:
            [agent] = served  # a program ran the graph without Keyturn
        # Checkpoints are not believed: the name counts only for an agent that runs
        # here.
        return agent if agent in served else ""

    async def _unanswered(
        self, agent: str, thread: str, pending: Sequence[PendingInterrupt]
    ) -> Mismatch | None:
        run = RunRef(agent=agent, thread=thread)
        try:
            found = await find_answers(self._store, run, questions_of(pending))
        except GraphError as error:
            log_failure(logger, error, "recovery.unread thread=%s", thread)
            return None
        if not Answers.to(pending, found).ready:
            return None
        is_lost = any(one.is_lost for one in found.values())
        problem = RECORD_LOST if is_lost else DECIDED
        return Mismatch(agent, thread, problem, tuple(sorted(asked_items(pending))))


def _open_questions(found: CheckpointTuple) -> list[PendingInterrupt]:
    return [
        pending_of(one)  # pyright: ignore[reportUnknownArgumentType] - its type parameter
        for _, channel, value in found.pending_writes or ()
        if channel == INTERRUPT and isinstance(value, list | tuple)
        for one in cast("Sequence[object]", value)
        if isinstance(one, Interrupt)
    ]


def _waiting_items(approvals: Iterable[Approval]) -> list[Item]:
    waiting = {ItemState.PENDING, ItemState.AUTHORIZED}
    return [item for one in approvals for item in one.items if item.state in waiting]


PAGE = 500
"""How many threads one statement looks at."""
INTERRUPT = "__interrupt__"
"""Channel in which LangGraph keeps questions."""

# The root namespace is enough: a question of a graph inside is written there, too, as
# one of the task that runs this graph.
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


# Pages begin after a key, not at an OFFSET: threads that come or go meanwhile shift no
# page.
async def newest_threads(saver: Saver) -> AsyncGenerator[list[tuple[str, bool]]]:
    """Yield the ids of all threads, a page at a time, and whether each one waits.

    It is read from indexes, without any checkpoint being loaded.
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
    # The saver's own cursor: on a connection of its pool, or on its one locked one.
    async with cast("Any", saver)._cursor() as cursor:  # noqa: SLF001
        await cursor.execute(query, (after, PAGE))
        rows = cast("list[dict[str, object]]", await cursor.fetchall())
        return [(str(row["thread"]), bool(row["waits"])) for row in rows]


TICK_S = 5.0
"""How often the restore counters rise and are compared."""
AGAIN_S = 20.0
"""How long after the first look the second one comes: the leases of a process that was
killed have ended by then."""
HOURLY_S = 3600.0


class RecoveryLoop:
    """What one process does to notice losses and to recover from them.

    Args:
        store: where the records are.
        runners: what this process runs, and its checkpoints.
        tenant: whose agents these are.
    """

    def __init__(
        self, store: Store, runners: Runners, *, tenant: str = "default"
    ) -> None:
        saver = runners.saver
        self._detector = (
            None if saver is None else RestoreDetector(store, saver, tenant=tenant)
        )
        self._records = RecoveryService(store, tenant=tenant)
        self._recovery = Recovery(store, runners, tenant=tenant)
        self._url = store.conn.url
        self._ticks_left = 0
        self._has_looked = False

    async def begin(self) -> None:
        """Doubt what a restored store says, before anything of it is carried out.

        A store that is away is waited for, as when it was opened.

        Raises:
            StoreUnavailable: when the store does not answer in time.
        """
        await until_usable(self._compare, self._url)

    async def tick(self) -> None:
        """Detect a loss, and compare store and checkpoints when that is due."""
        await self._compare()
        # A look reads every waiting thread, so it is hourly; counters are compared at
        # each tick.
        if self._ticks_left > 0:
            self._ticks_left -= 1
            return
        detector = self._detector
        is_only_process = detector is not None and await detector.is_only_process()
        found = await self._recovery.recover(is_only_process=is_only_process)
        waits_s = HOURLY_S if self._has_looked else AGAIN_S
        self._has_looked = True
        if found.gone and detector is not None:
            # A worker may have held the lease on a thread that is gone just now. Or a
            # gateway with other checkpoints used this store a moment ago.
            waits_s = 0 if is_only_process else ALIVE_MS / 1000
        self._ticks_left = int(waits_s / TICK_S)

    async def _compare(self) -> None:
        detector = self._detector
        if detector is None:
            return
        consistency = await detector.compare()
        if consistency is not Consistency.SAME:
            logger.error("recovery.inconsistent %s", consistency)
            if consistency is Consistency.STORE_IS_OLDER:
                await self._records.doubt_all()
            # Only after everything is in doubt: killed in between, the next start still
            # sees the difference and does it again.
            await detector.equalize()
            self._ticks_left = 0
        await detector.advance()


@dataclass(frozen=True)
class RepairReport:
    """What a repair changed, or would change.

    Attributes:
        consistency: whether store or checkpoints are older than the other.
        doubted: calls whose record may be older than what happened.
        report: threads whose records and checkpoints do not match.
    """

    consistency: Consistency
    doubted: tuple[Found, ...]
    report: RecoveryReport


async def repair_losses(
    store: Store, runners: Runners, *, tenant: str, is_dry: bool, is_restored: bool
) -> RepairReport:
    """Doubt, end and queue what does not match, and return what it was.

    The caller asserts that no gateway with other checkpoints uses the store.

    Args:
        store: the gateway's store.
        runners: the agents and their checkpoints.
        tenant: whose.
        is_dry: only say what would be done.
        is_restored: the store is older than what happened, also where that cannot be
            seen: copies of both from one moment match.
    """
    records = RecoveryService(store, tenant=tenant)
    saver, consistency = runners.saver, Consistency.SAME
    detector = None if saver is None else RestoreDetector(store, saver, tenant=tenant)
    if detector is not None:
        consistency = await detector.compare()
    doubted = list[Found]()
    if is_restored or consistency is Consistency.STORE_IS_OLDER:
        doubted = await records.doubt_all(is_dry=is_dry)
    recovery = Recovery(store, runners, tenant=tenant)
    if is_dry:
        return RepairReport(consistency, tuple(doubted), await recovery.compare())
    report = await recovery.recover(is_only_process=True)
    if detector is not None:
        # Last: after a crash before this, the next repair still sees the difference.
        await detector.equalize()
    return RepairReport(consistency, tuple(doubted), report)
