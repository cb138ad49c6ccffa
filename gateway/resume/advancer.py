"""Run one thread's resumable steps under its lease.

Theory of operation. A job, or an answer that came, says only that something may have
changed; what to do is read from the thread's own checkpoint and from the gateway. So
any number of attempts, in any process, twice or after a crash, come to the same:

1. Questions whose items are decided are answered, all in one map.
2. A thread with work left that waits for no answer was cut off: it is nudged, also
   while other work of it asks. One that stands so after a step that raised nothing
   was not cut off: it stopped at a breakpoint of a graph inside, and is left there.
3. Both are repeated until neither applies. What was decided meanwhile is thus taken
   along, and the job that this decision queued finds nothing left to do.
4. Items that nothing asks about any more are ended, so that no card waits for ever.
   That is known only now: work that was cut off had not asked yet.
5. A finished thread's last words are told, once.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from keyturn.gateway.errors import GraphError, StoreUnavailable, ThreadUnavailable
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.diagnosis import (
    CALL_LIMITS,
    AtBreakpoint,
    ThreadHalted,
    at_breakpoint,
    at_limit,
    is_final,
)
from keyturn.gateway.resume.questions import Answers
from keyturn.gateway.resume.runner import (
    AnswerRefused,
    PendingInterrupt,
    Runner,
    ThreadState,
)
from keyturn.gateway.store.fences import Lease

logger = logging.getLogger(__name__)

MAX_STALE = 8
"""How often a question may vanish between reading and answering it, in one job."""


class ThreadStuck(GraphError):
    """A thread does not advance; trying again at once would not help."""


class Threads:
    """What a gateway keeps of the threads that this process runs.

    The holder of a thread's lease asks for all of it. By default nothing is kept but
    marks, in this process: for threads that no job of the gateway brings forward.
    """

    def __init__(self) -> None:
        self._marks: dict[RunRef, str] = {}

    @abstractmethod
    def lease(self, run: RunRef) -> AbstractAsyncContextManager[Lease]:
        """Hold the right to run a thread."""

    @abstractmethod
    async def answers(
        self, run: RunRef, pending: Sequence[PendingInterrupt]
    ) -> Answers:
        """Return the answers to a thread's questions that there are."""

    @abstractmethod
    async def rests(self, run: RunRef, state: ThreadState) -> None:
        """End what a thread that rests does not ask about any more."""

    @abstractmethod
    async def ends(self, run: RunRef) -> None:
        """End everything that waits in a run: its thread is deleted."""

    async def opens(self, run: RunRef, *, has_past: bool) -> None:
        """Keep who asked until the run has ended; a thread may have run before."""

    async def takes_up(self, run: RunRef) -> bool:
        """Take up a run that somebody dropped; False when nobody did."""
        del run
        return False

    async def starts(self, run: RunRef, key: str) -> Collection[str]:
        """Announce a run, once for this input; return the approvals before it."""
        del run, key
        return ()

    async def supersedes(
        self, run: RunRef, state: ThreadState, before: Collection[str]
    ) -> None:
        """End those approvals of before that a thread does not ask about."""

    async def finishes(self, run: RunRef, state: ThreadState) -> None:
        """Announce a run's final message, once for this checkpoint."""

    async def marked(self, run: RunRef) -> str:
        """Return the mark of a thread; "" for none."""
        return self._marks.get(run, "")

    async def mark(self, run: RunRef, mark: str) -> None:
        """Keep a mark of a thread; "" removes it."""
        self._marks[run] = mark


class Advancer:
    """Everything that is done to a thread; the caller holds its lease.

    Args:
        threads: what the gateway keeps of them.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    async def begin(
        self,
        run: RunRef,
        runner: Runner,
        give: Callable[[], Awaitable[None]],
        *,
        key: str,
    ) -> ThreadState:
        """Give a thread new input and advance it.

        What was decided before the input came is carried out first; what still waits
        then is superseded. Of a run that was dropped, nothing is carried out. The
        caller sees to it that an input is given once.

        ``key`` names the input: that its run began is told once, and not at each try.
        """
        if not await self._threads.takes_up(run):
            await self._finish(run, runner)
            state = await runner.probe(run.thread)
            # Its process may have died too early. A thread that its program changed by
            # itself has no input of ours at its end.
            if state.is_finished and state.taken:
                await self._threads.finishes(run, state)
        # Before the step: what the step itself opens must not be superseded below.
        before = await self._threads.starts(run, key)
        await self._step(run, runner, give)
        state = await runner.probe(run.thread)
        await self._threads.supersedes(run, state, before)
        if state.is_cut_off:
            await self._halt_at_breakpoint(run, state)
        return await self.forward(run, runner)

    async def _finish(self, run: RunRef, runner: Runner) -> None:
        """Finish what was asked of a thread before a new message, as far as it goes.

        Raises:
            StoreUnavailable, ThreadUnavailable: it can be finished later.
        """
        try:
            await self.run_until_waiting(run, runner)
        except (StoreUnavailable, ThreadUnavailable):
            raise
        except ThreadHalted:
            return
        except any_failure() as error:
            # A thread that cannot go on must not keep out the message that may bring it
            # back on its way; the middleware repairs the turn.
            log_failure(
                logger,
                error,
                "thread.finish_failed agent=%s thread=%s",
                run.agent,
                run.thread,
            )

    async def forward(
        self, run: RunRef, runner: Runner, *, past_limits: bool = False
    ) -> ThreadState:
        """Advance a thread until it waits or ends; return where it stands.

        ``past_limits`` goes on with a thread that was stopped by a limit, because its
        program asks for that.

        Raises:
            ThreadStuck: when an answer is not taken.
            ThreadHalted: when the thread stands at a limit or a breakpoint.
            ThreadUnknown: when there is no such thread, and calls of it are approved.
        """
        state = await self.run_until_waiting(run, runner, past_limits=past_limits)
        await self._threads.rests(run, state)
        if state.is_finished:
            await self._threads.finishes(run, state)
        return state

    async def run_until_waiting(
        self, run: RunRef, runner: Runner, *, past_limits: bool = False
    ) -> ThreadState:
        """Answer and nudge until nothing is left that can be done without a person."""
        sent: set[str] = set()
        stale, has_run = 0, False
        state = await runner.probe(run.thread)
        await self._threads.opens(run, has_past=state.exists)
        while True:
            found = await self._threads.answers(run, state.pending)
            # An answer whose question came back was refused for good: sending it again
            # would never end.
            fresh = found.without(sent)
            if fresh.ready:
                refused = await self._answer(run, runner, fresh, state)
                has_run = has_run or refused is None
                # A stale refusal saved nothing. The question moved after it was read,
                # so its answer may be sent again under the new id.
                if refused is None or not refused.is_stale:
                    sent.update(fresh.fingerprint.values())
                elif (stale := stale + 1) > MAX_STALE:
                    raise ThreadStuck(f"Thread {run.thread!r} changes all the time.")
            elif found.ready or found.unfit:
                raise ThreadStuck(
                    f"Thread {run.thread!r} of {run.agent!r} does not take the answer "
                    "to a question it asked; see the agent's log."
                )
            elif state.is_cut_off:
                await self._nudge(run, runner, state, past_limits=past_limits)
                has_run = True
            else:
                return state
            state = await runner.probe(run.thread)
            if state.is_cut_off and has_run:
                # Before any answer: one for another branch would run this one, too.
                await self._halt_at_breakpoint(run, state)

    async def _nudge(
        self, run: RunRef, runner: Runner, state: ThreadState, *, past_limits: bool
    ) -> None:
        halted = await self._halted(run, state)
        if isinstance(halted, AtBreakpoint) or (halted and not past_limits):
            raise halted
        if halted:
            # Or a retry of this step would stop at the mark.
            await self._threads.mark(run, "")
        await self._step(run, runner, lambda: runner.nudge(run.thread, key=state.taken))

    async def _step(
        self, run: RunRef, runner: Runner, step: Callable[[], Awaitable[None]]
    ) -> None:
        """Take a step of a thread; mark where it stands when no retry would help."""
        try:
            await step()
        except Exception as error:
            # Marked at the checkpoint that the step left, or a later job would take the
            # thread for one whose process died and run into the same limit.
            if is_final(error):
                state = await runner.probe(run.thread)
                await self._halt(run, state, error)
                if isinstance(error, CALL_LIMITS):
                    await self._threads.rests(run, state)
            raise

    async def _answer(
        self, run: RunRef, runner: Runner, answers: Answers, state: ThreadState
    ) -> AnswerRefused | None:
        """Send answers; return why the thread did not take them, if it did not."""
        if state.is_cut_off:
            # With any answer LangGraph runs all work that is left, also what stands at
            # the breakpoint of another branch.
            halted = await self._halted(run, state)
            if isinstance(halted, AtBreakpoint):
                raise halted
        try:
            await self._step(
                run,
                runner,
                lambda: runner.resume(run.thread, answers.ready, key=state.taken),
            )
        except AnswerRefused as refused:
            logger.warning(
                "answer.refused agent=%s thread=%s stale=%s",
                run.agent,
                run.thread,
                refused.is_stale,
            )
            return refused
        return None

    # A thread that reached a limit, or stopped at a breakpoint of a graph inside it,
    # looks in its checkpoint like one whose process died. A mark tells them apart: it
    # names the checkpoint, so it ends by itself when the thread moves on.

    async def _halted(self, run: RunRef, state: ThreadState) -> ThreadHalted | None:
        """Return why a thread was halted where it stands; None: it was not."""
        marked, _, why = (await self._threads.marked(run)).partition(" ")
        # An empty id is tested first: it would equal a mark that was never put.
        if not state.checkpoint or marked != state.checkpoint:
            return None
        if why == AtBreakpoint.__name__:
            return at_breakpoint(run.thread, is_announced=True)
        return at_limit(run.thread, why)

    async def _halt(self, run: RunRef, state: ThreadState, why: BaseException) -> None:
        await self._threads.mark(run, f"{state.checkpoint} {type(why).__name__}")

    async def _halt_at_breakpoint(self, run: RunRef, state: ThreadState) -> NoReturn:
        """Leave a thread where it stopped; what it asks people goes on waiting."""
        halted = at_breakpoint(run.thread, is_announced=False)
        await self._halt(run, state, halted)
        raise halted
