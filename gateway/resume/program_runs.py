"""Drive the threads that a program runs itself, with a gateway here or elsewhere.

A wait can be bounded or cancelled at any time: only the wait ends then. The step runs
in a separate task, because a step that stops in the middle leaves its thread to be
repaired. It is cancelled only when the program ends, after a grace period.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import logging
from abc import abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

from langgraph.types import Interrupt

from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.arguments import check_timeout, require
from keyturn.gateway.background import GRACE_S
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import (
    GraphError,
    KeyRefused,
    KeyturnError,
    ThreadUnavailable,
)
from keyturn.gateway.failures import log_failure
from keyturn.gateway.protocol.http_api import Gateway, RunFacts, connected
from keyturn.gateway.protocol.records import NO_SLACK_ID, Person, RunRef
from keyturn.gateway.resume.advancer import Advancer
from keyturn.gateway.resume.diagnosis import ThreadHalted, diagnose
from keyturn.gateway.resume.graphs import strict_serializer
from keyturn.gateway.resume.langgraph_local import Runner, pending_of
from keyturn.gateway.resume.threads import (
    Answers,
    ThreadChange,
    Threads,
    ThreadState,
    asked_items,
)
from keyturn.gateway.resume.transient_retry import (
    InputNotGiven,
    backoff_s,
    drain_tasks,
    retry_transient,
)
from keyturn.gateway.setting_forms import RetrySettings
from keyturn.gateway.store.runs.leases import while_held

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 60.0
"""Time without a change after which a thread is read anyway: an event can be lost when
the store is restored.
"""
SOON_S = 1.0
"""Time after each change before another look at the thread: an event can precede its
effect, for instance when a thread is deleted.
"""
BUSY_S = 1.0
"""Delay before the next attempt at a thread that another process runs."""
POLL_S = 25.0
"""Duration of one wait for an answer: shorter than the request limit of proxies."""


class NoThread(ThreadUnavailable):
    """There is no such thread."""

    def __init__(self, run: RunRef, hint: str) -> None:
        super().__init__(f"There is no thread {run.thread!r} of {run.agent!r}{hint}.")


class GivenUp(GraphError):
    """A thread is no longer retried."""

    def __init__(self, run: RunRef, reason: str) -> None:
        super().__init__(
            f"The thread {run.thread!r} of {run.agent!r} was given up: {reason} Mend "
            "the cause and run it again without input."
        )


_AS_IT_IS = (GivenUp, KeyRefused, ThreadHalted, ThreadUnavailable)
"""Errors that already contain the next step for a thread."""

ThreadChanges = asyncio.Queue[ThreadChange]


async def next_change(
    changes: ThreadChanges, *, within_s: float = LOOK_S
) -> ThreadChange | None:
    """Wait until a thread may have changed; None after a wait without a change."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            return await changes.get()
    return None


class Drive:
    """Gives a thread its input, and continues it as long as no worker can.

    Args:
        run: the run of the thread.
        runner: its graph.
        given: its input, until the thread has it; None for none.
    """

    def __init__(self, run: RunRef, runner: Runner, given: object) -> None:
        self.run = run
        self.runner = runner
        self.given = given
        self.has_begun = False
        self.moved = asyncio.Event()
        self.task: asyncio.Task[None]
        self.begin_step()

    def begin_step(self) -> None:
        """Begin to count the time of the attempts at a step."""
        self._pauses = backoff_s()
        self._began_s = asyncio.get_running_loop().time()

    def pause_s(
        self, error: BaseException, retries: RetrySettings, url: str
    ) -> float | None:
        """Return the pause before the next attempt; None if there is none.

        Args:
            error: the error of the last attempt.
            retries: time limits of the attempts.
            url: address of the gateway; "" for the one in this process.
        """
        if isinstance(error, NoThread):
            return None
        can_pass = isinstance(error, ThreadUnavailable)
        if can_pass and error.__cause__ is None:
            # Another process runs it, or finishes one of its calls: not an outage.
            return BUSY_S
        found = diagnose(error)
        can_pass = can_pass or found.can_pass
        limit = retries.limit if can_pass else retries.unknown_limit
        age_s = asyncio.get_running_loop().time() - self._began_s
        if (found.is_final and not can_pass) or age_s >= limit.total_seconds():
            return None
        pause_s = max(next(self._pauses), found.retry_after_s)
        logger.warning(
            "run.waiting gateway=%s agent=%s thread=%s error=%s next_in_s=%.1f%s",
            url or "here",
            self.run.agent,
            self.run.thread,
            type(error.__cause__ or error).__name__,
            pause_s,
            # Only Keyturn's own texts: other errors may quote secrets or arguments.
            f": {error}" if isinstance(error, KeyturnError) else "",
        )
        return pause_s

    async def until_moved(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for work; end early on news, on a newer drive, or on close."""
        tasks = [asyncio.ensure_future(one) for one in (work, self.moved.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.moved.clear()


class ProgramRuns:
    """Threads that a program runs itself, with a gateway here or in another process.

    Each run has a task in this process, its drive, which gives the thread its input and
    tries again after an outage. Workers of the gateway then continue the thread. If
    none can (`resumes_threads`), the drive itself continues it after each answer. Two
    processes with the same checkpoints may drive one thread: the lease holder works,
    and the other process finds the results.

    Args:
        gateway: the agents' gateway.
        threads: the gateway's records of the threads.
        retries: time limits for a failing step.
        url: address of the gateway; "" for the one in this process.
    """

    resumes_threads = False
    retried: tuple[type[Exception], ...] = (Exception,)
    """Errors of a step that the drive itself tries again."""

    def __init__(
        self, gateway: Gateway, threads: Threads, retries: RetrySettings, url: str = ""
    ) -> None:
        self.gateway = gateway
        self.threads = threads
        self._retries = retries
        self._url = url
        self._advancer = Advancer(threads)
        self._closing = asyncio.Event()
        self._is_closed = False
        self._drives = dict[RunRef, list[Drive]]()
        self._waiting = defaultdict[RunRef, set[ThreadChanges]](set)

    async def run(self, run: RunRef, runner: Runner, given: object) -> dict[str, Any]:
        """Give a thread its input, unless it has it, and wait for its end.

        The wait also ends at a question of another library.

        Raises:
            GraphError: the thread was given up.
            ThreadUnavailable: there is no thread and no input, or it was deleted.
        """
        # A step that begins now would outlive the checkpoints.
        if self._closing.is_set():
            raise _closed(run)
        # First, so that a wait that ends at once has begun the step as well.
        task = self._begin(run, runner, given)
        async with self._changes(run) as changes:
            try:
                # A cancelled wait must not stop the step in the middle.
                await asyncio.shield(task)
            except asyncio.CancelledError:
                caller = asyncio.current_task()
                # The step was cancelled, not the caller.
                if task.cancelled() and caller and not caller.cancelling():
                    raise _closed(run) from None
                raise
            return await self._rest(run, runner, changes)

    async def wait(self, run: RunRef, runner: Runner) -> dict[str, Any]:
        """Wait for a thread's end, in any process; see `run`.

        Raises:
            GraphError: the thread was given up.
            ThreadUnavailable: there is no such thread.
        """
        async with self._changes(run) as changes:
            return await self._rest(run, runner, changes)

    def notify(self, change: ThreadChange) -> None:
        """Wake the waiters for a thread; an error ends their wait."""
        run = RunRef(agent=change.agent, thread=change.thread)
        for queue in self._waiting.get(run, ()):
            queue.put_nowait(change)

    async def close(self) -> None:
        """Wait for running steps, then cancel the rest after `GRACE_S`."""
        self._closing.set()
        drives = [one for each in self._drives.values() for one in each]
        for one in drives:
            one.moved.set()  # those that wait stop at once
        await drain_tasks([one.task for one in drives], GRACE_S)
        self._is_closed = True
        for run in [*self._waiting]:
            self.notify(ThreadChange(run.agent, run.thread))

    @abstractmethod
    async def _answers(
        self, run: RunRef, asked: Sequence[Question], wait_s: float
    ) -> Answers:
        """Return the answers to a thread's questions; wait for the first one."""

    @asynccontextmanager
    async def _changes(self, run: RunRef) -> AsyncGenerator[ThreadChanges]:
        """Yield a queue that gets an entry after each change from now on.

        Read the thread after entering this, or a change in between is missed.
        """
        queue = ThreadChanges()
        self._waiting[run].add(queue)
        try:
            yield queue
        finally:
            self._waiting[run].discard(queue)
            if not self._waiting[run]:
                del self._waiting[run]

    async def _next_change(
        self, run: RunRef, state: ThreadState, changes: ThreadChanges, within_s: float
    ) -> ThreadChange | None:
        """Wait until a thread may have changed after it was read."""
        del run, state
        return await next_change(changes, within_s=within_s)

    async def _next_answer(self, run: RunRef, state: ThreadState) -> None:
        """Wait until a thread that this process resumes may have an answer."""

    async def _parked(self, run: RunRef) -> str | None:
        """Return why a thread is no longer retried; None if it is not parked."""
        del run
        return None

    async def _rest(
        self, run: RunRef, runner: Runner, changes: ThreadChanges
    ) -> dict[str, Any]:
        """Wait until a thread rests for good; return its values."""
        # The first look does not wait: the thread may rest already.
        state, within_s = ThreadState(exists=False), 0.0
        while True:
            change: ThreadChange | None = None
            if within_s:
                change = await self._next_change(run, state, changes, within_s)
            _raise_if_given_up(run, change)
            self._raise_if_closed(run)
            try:
                state = await runner.probe(run.thread)
                # A drive in this process may be about to write the thread.
                if rests_for_good(state) and (state.exists or run not in self._drives):
                    return await self._values(run, runner, state)
                # Another process may have parked the run.
                reason = await self._parked(run)
            except ThreadUnavailable:
                raise
            except Exception as error:
                self._raise_if_closed(run)
                if not diagnose(error).can_pass:
                    raise
                logger.warning(
                    "thread.unread agent=%s thread=%s", run.agent, run.thread
                )
                change = ThreadChange(run.agent, run.thread)
            else:
                if reason is not None:
                    raise GivenUp(run, reason)
            within_s = LOOK_S if change is None else SOON_S

    def _raise_if_closed(self, run: RunRef) -> None:
        """Raise if this object is closed, because the thread can no longer be read."""
        if self._is_closed:
            raise _closed(run) from None

    def _begin(self, run: RunRef, runner: Runner, given: object) -> asyncio.Task[None]:
        drive = Drive(run, runner, given)
        self.wake(run)
        self._drives.setdefault(run, []).append(drive)
        # With an eager task factory it starts here, and looks for its place above.
        drive.task = asyncio.create_task(self._drive(drive))
        drive.task.add_done_callback(lambda _: self._ended(drive))
        return drive.task

    async def _drive(self, drive: Drive) -> None:
        while True:
            if self._closing.is_set():
                raise _closed(drive.run)
            # A newer drive continues the thread.
            if drive.given is None and self._drives[drive.run][-1] is not drive:
                return
            try:
                with connected(self.gateway, drive.run):
                    lease = self.threads.lease(drive.run)
                    state = await while_held(lease, lambda: self._advance(drive))
            except self.retried as error:
                pause_s = await self._pause_s(drive, error)
                await drive.until_moved(asyncio.sleep(pause_s))
                if drive.given is not None and await _has_taken(drive):
                    # Giving it again after another input would be a new message.
                    drive.given = None
                continue
            if state is None or not self.resumes_threads or rests_for_good(state):
                return
            # It has its input; a thread that is deleted now is not begun again.
            drive.given, drive.has_begun = None, True
            drive.begin_step()
            await drive.until_moved(self._next_answer(drive.run, state))

    async def _pause_s(self, drive: Drive, error: Exception) -> float:
        """Return the pause before the next attempt at a step.

        Raises:
            Exception: the step's error, if there is no other attempt.
        """
        # `InputNotGiven` only carries its cause up to here.
        cause = (isinstance(error, InputNotGiven) and error.__cause__) or error
        # A thread is worth waiting for if it has an input, or exists.
        has_work = drive.has_begun or drive.given is not None
        pause_s: float | None = None
        if has_work or (await probe(drive.run, drive.runner)).exists:
            pause_s = drive.pause_s(cause, self._retries, self._url)
        if pause_s is not None:
            return pause_s
        if drive.has_begun and not isinstance(error, _AS_IT_IS):
            raise GivenUp(drive.run, diagnose(error).reason) from error
        if cause is not error:
            raise cause from None
        raise error

    async def _advance(self, drive: Drive) -> ThreadState | None:
        """Give a thread its input, or continue it; the caller has its lease.

        Returns:
            Its state; None if workers try the step again.
        """
        run, runner, given = drive.run, drive.runner, drive.given
        key = "" if given is None else input_key(given)
        state = await runner.probe(run.thread)
        if given is None and not state.exists:
            if drive.has_begun:
                return state  # it was deleted
            raise NoThread(run, " to go on with; give it an input")
        # The same input again is a retry of the program's call, not a second message.
        if given is None or state.taken == key:
            await self.threads.takes_up(run)
            return await self._advancer.forward(run, runner, past_limits=True)
        # A copy, because LangGraph writes ids into the input's messages.
        fresh = copy.deepcopy(given)
        return await self._advancer.begin(
            run, runner, lambda: runner.give(run.thread, fresh, key=key), key=key
        )

    def wake(self, run: RunRef) -> bool:
        """Make a thread check for its answer now; False if it does not run here."""
        drives = self._drives.get(run, ())
        for drive in drives:
            drive.moved.set()
        return bool(drives)

    async def take_up(self, run: RunRef, runner: Runner) -> None:
        """Advance a thread of these checkpoints, unless it rests for good."""
        state = await probe(run, runner)
        if state.exists and not rests_for_good(state) and not self.wake(run):
            self._begin(run, runner, None)

    async def remember(
        self, run: RunRef, requester: Person | None, origin: Origin | None
    ) -> None:
        """Save the requester and the origin of a run, where provided.

        Before the run: the requester must not decide its calls.
        """
        check_who_asked(requester, origin)
        if requester is not None or origin is not None:
            facts = RunFacts(
                run=run,
                requester=requester,
                channel=origin.channel if origin else "",
                thread_ts=origin.thread_ts if origin else "",
            )
            await retry_transient(lambda: self.threads.remember(facts))

    async def answers(
        self, run: RunRef, interrupts: Sequence[Interrupt], timeout_s: float | None
    ) -> dict[str, Any]:
        """Return the answers to a thread's questions; wait for the first one.

        Raises:
            SettingsError: ``timeout_s`` is not a number of seconds.
        """
        check_timeout(timeout_s)
        asked = [pending_of(one) for one in interrupts]
        if not asked_items(asked):
            return {}
        clock = asyncio.get_running_loop().time
        ends = None if timeout_s is None else clock() + timeout_s
        while True:
            left_s = POLL_S if ends is None else max(0.0, ends - clock())
            found = await self._answers(run, asked, min(left_s, POLL_S))
            if found.ready or (ends is not None and clock() >= ends):
                return cast("dict[str, Any]", found.ready)

    async def delete(self, run: RunRef, runner: Runner) -> None:
        """End the waiting calls of a thread, and delete its checkpoints.

        Raises:
            ThreadUnavailable: another process runs the thread; nothing was deleted.
        """

        async def work() -> None:
            # The cards first: a crash after the checkpoints were deleted would leave
            # cards that wait for a missing thread.
            await self.threads.ends(run)
            await runner.delete(run.thread)
            await self._forget(run)

        await while_held(self.threads.lease(run), work)

    async def _forget(self, run: RunRef) -> None:
        """Forget a deleted thread, under its lease."""

    async def _values(
        self, run: RunRef, runner: Runner, state: ThreadState
    ) -> dict[str, Any]:
        if not state.exists:
            raise NoThread(run, ", or it was deleted")
        return await retry_transient(lambda: runner.values(run.thread))

    def _ended(self, drive: Drive) -> None:
        run = drive.run
        self._drives[run].remove(drive)
        if not self._drives[run]:
            del self._drives[run]
        error = None if drive.task.cancelled() else drive.task.exception()
        is_unavailable = isinstance(error, ThreadUnavailable)
        if error is not None and not (self._closing.is_set() and is_unavailable):
            # The caller may have stopped waiting, and other callers may wait as well.
            log_failure(
                logger, error, "run.failed agent=%s thread=%s", run.agent, run.thread
            )
        if is_unavailable or (error is None and not self.resumes_threads):
            return
        self.notify(ThreadChange(run.agent, run.thread, error))


def _closed(run: RunRef) -> ThreadUnavailable:
    return ThreadUnavailable(
        f"Keyturn was closed during the wait for the thread {run.thread!r} of "
        f"{run.agent!r}. The thread keeps its state; run it again to go on."
    )


def _raise_if_given_up(run: RunRef, change: ThreadChange | None) -> None:
    if change is None or change.error is None:
        return
    if isinstance(change.error, _AS_IT_IS):
        raise change.error
    raise GivenUp(run, diagnose(change.error).reason) from change.error


async def _has_taken(drive: Drive) -> bool:
    thread, key = drive.run.thread, input_key(drive.given)
    return await retry_transient(lambda: drive.runner.has_taken(thread, key))


async def probe(run: RunRef, runner: Runner) -> ThreadState:
    """Read a thread's state; wait while its checkpoints cannot be read."""
    return await retry_transient(lambda: runner.probe(run.thread))


def rests_for_good(state: ThreadState) -> bool:
    """Return True if neither a decision nor a worker will advance this thread."""
    if state.is_finished or not state.exists:
        return True
    is_asking = bool(state.pending) and not state.is_cut_off
    return is_asking and not state.asks_people


def input_key(given: object) -> str:
    """Return the key of an input; the thread saves it to detect a repeated input."""
    # By value, so that the same input has the same key in the next process.
    kind, body = strict_serializer().dumps_typed(given)
    return f"run-{hashlib.sha256(kind.encode() + body).hexdigest()[:32]}"


def check_who_asked(requester: object, origin: object) -> None:
    """Check the requester and the origin that a program provides.

    Raises:
        SettingsError: one of them has another type.
        ValueError: the requester has no Slack user id.
    """
    for name, given, kind in (
        ("requester", requester, Person),
        ("origin", origin, Origin),
    ):
        is_one = given is None or isinstance(given, kind)
        require(is_one, name, given, f"give a {kind.__module__}.{kind.__name__}")
    if isinstance(requester, Person) and not requester.has_slack_id:
        raise ValueError(f"requester={requester!r}: {NO_SLACK_ID}")
