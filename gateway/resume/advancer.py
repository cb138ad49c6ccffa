"""Run one thread's resumable steps under its lease.

Theory of operation. A job or an answer only signals that something may have changed.
The next step is read from the thread's checkpoint and from the gateway. So attempts are
idempotent, in any process, twice or after a crash:

1. Questions whose items are decided are answered, all in one map.
2. A thread with work left that waits for no answer was interrupted: it is nudged, even
   while other tasks have questions. A thread in this state after a step without an
   error was not interrupted: it stopped at a breakpoint of an inner graph, and is left
   there.
3. Both are repeated until neither applies. Decisions in the meantime are included, and
   their jobs find nothing left to do.
4. Items without a question are ended, so that no card waits for ever. Only now are they
   known: interrupted work may not have asked its questions yet.
5. A finished thread's last message is announced, once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from pydantic import JsonValue

from keyturn.gateway import tracing
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import (
    GraphError,
    LeaseLost,
    StoreUnavailable,
    ThreadUnavailable,
)
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
from keyturn.gateway.resume.hand_over import Delivery, Ending
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.own_gates import OwnGates
from keyturn.gateway.resume.threads import AnswerRefused, Threads, ThreadState

logger = logging.getLogger(__name__)

MAX_STALE = 8
"""Limit on questions that vanish between reading and answering, in one job."""


class ThreadStuck(GraphError):
    """A thread does not advance, and an immediate retry would not help."""


class Advancer:
    """Steps of a thread; the caller has its lease.

    Args:
        threads: the gateway's records of the threads.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._own_gates = OwnGates(threads)

    async def unanswerable(
        self, run: RunRef, state: ThreadState
    ) -> dict[str, Question]:
        """Return a thread's questions that no answer can come for, by id."""
        return await self._own_gates.unanswerable(run, state)

    async def begin(
        self,
        run: RunRef,
        runner: Runner,
        give: Callable[[], Awaitable[None]],
        *,
        key: str,
    ) -> ThreadState:
        """Give a thread new input and advance it.

        Decisions from before the input are carried out first; calls that still wait
        then are superseded. Decisions of a dropped run are not carried out. The caller
        ensures that an input is given once.

        ``key`` names the input: the begin of its run is announced once, not at each
        attempt.
        """
        if not await self._threads.takes_up(run):
            await self._finish(run, runner)
            state = await runner.probe(run.thread)
            # The process may have died before the announcement. A thread that its
            # program changed itself has no input key at its end.
            if state.is_finished and state.taken:
                await self._threads.finishes(run, state)
        # Before the step: approvals that the step opens must not be superseded below.
        before = await self._threads.starts(run, key)
        await self._step(run, runner, give)
        state = await runner.probe(run.thread)
        await self._threads.supersedes(run, state, before)
        if state.is_cut_off:
            await self._halt_at_breakpoint(run, state)
        return await self.forward(run, runner)

    async def _finish(self, run: RunRef, runner: Runner) -> None:
        """Finish the thread's earlier work before a new message, if possible.

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
            # A broken thread must not block the message that may repair it; the
            # middleware repairs the turn.
            log_failure(
                logger,
                error,
                "thread.finish_failed agent=%s thread=%s",
                run.agent,
                run.thread,
            )

    async def forward(
        self,
        run: RunRef,
        runner: Runner,
        *,
        past_limits: bool = False,
        is_open: bool = False,
    ) -> ThreadState:
        """Advance a thread until it waits or ends; return its state.

        Args:
            run: the run of the thread.
            runner: its graph.
            past_limits: continue a thread that a limit stopped, because its program
                asks for that.
            is_open: the gateway has recorded that the run began.

        Raises:
            ThreadStuck: the thread does not accept an answer.
            ThreadHalted: the thread stopped at a limit or a breakpoint.
            ThreadUnknown: there is no such thread, but it has approved calls.
        """
        state = await self.run_until_waiting(
            run, runner, past_limits=past_limits, is_open=is_open
        )
        if state.exists and state.hands_over:
            await self._own_gates.settle(run, runner, state)
        await self._threads.rests(run, state)
        if state.is_finished:
            await self._threads.finishes(run, state)
        if not self._threads.polls:
            return state
        return replace(state, handed=await self._own_gates.waiting(run, state))

    async def run_until_waiting(
        self,
        run: RunRef,
        runner: Runner,
        *,
        past_limits: bool = False,
        is_open: bool = False,
    ) -> ThreadState:
        """Answer and nudge until only a person's decision can advance the thread."""
        sent: set[str] = set()
        stale, has_run = 0, False
        state = await runner.probe(run.thread)
        if not is_open:
            await self._threads.opens(run, has_past=state.exists)
        while True:
            found = await self._threads.answers(run, state.pending)
            # An answer whose question came back was refused for good: sending it again
            # would never end.
            fresh = found.without(sent)
            if fresh.ready:
                # A worker has no span; a program that waits for its run has its own.
                trace = "" if tracing.current() else fresh.trace
                with tracing.inside(trace):
                    refused = await self._answer(run, runner, fresh.ready, state)
                has_run = has_run or refused is None
                # A stale refusal saved nothing. The question's id changed after it was
                # read, so its answer may be sent again under the new id.
                if refused is None or not refused.is_stale:
                    sent.update(fresh.fingerprint.values())
                elif (stale := stale + 1) > MAX_STALE:
                    raise ThreadStuck(f"Thread {run.thread!r} changes all the time.")
            elif found.ready:
                raise _stuck(run)
            elif ready := await self._own_gates.ready(run, state):
                await self._hand(run, runner, state, ready, sent)
                has_run = True
            elif state.is_cut_off:
                await self._nudge(run, runner, state, past_limits=past_limits)
                has_run = True
            else:
                return state
            state = await runner.probe(run.thread)
            if state.is_cut_off and has_run:
                # Before any answer: one for another branch would run this branch, too.
                await self._halt_at_breakpoint(run, state)

    async def _nudge(
        self, run: RunRef, runner: Runner, state: ThreadState, *, past_limits: bool
    ) -> None:
        halted = await self._halted(run, state)
        if isinstance(halted, AtBreakpoint) or (halted and not past_limits):
            raise halted
        if halted:
            # Otherwise a retry of this step would stop at the mark.
            await self._threads.mark(run, "")
        try:
            await self._step(
                run, runner, lambda: runner.nudge(run.thread, key=state.taken)
            )
        except (AtBreakpoint, LeaseLost, StoreUnavailable):
            raise
        except Exception as error:
            if await runner.follows_answer(run.thread):
                await self._own_gates.stopped(run, runner, (), error)
            raise

    async def _step(
        self, run: RunRef, runner: Runner, step: Callable[[], Awaitable[None]]
    ) -> None:
        """Take a step of a thread; mark its checkpoint if no retry would help."""
        try:
            await step()
        except Exception as error:
            # Mark the checkpoint of this step. Otherwise a later job would assume that
            # the thread's process died, and would reach the same limit.
            if is_final(error):
                state = await runner.probe(run.thread)
                await self._halt(run, state, error)
                if isinstance(error, CALL_LIMITS):
                    await self._threads.rests(run, state)
            raise

    async def _hand(
        self,
        run: RunRef,
        runner: Runner,
        state: ThreadState,
        ready: Sequence[Delivery],
        sent: set[str],
    ) -> None:
        """Hand people's decisions to a graph that asks by itself.

        Raises:
            StoppedInside: the graph failed while it worked on a decision.
        """
        names = [one.mark for one in ready]
        if not sent.isdisjoint(names):
            await self._own_gates.release(ready)
            raise _stuck(run)
        sent.update(names)
        answers = {one.about.ref.ns: one.answer for one in ready}
        try:
            refused = await self._answer(run, runner, answers, state, names)
        except (AtBreakpoint, LeaseLost, StoreUnavailable):
            raise  # a later step finds out whether it was taken
        except Exception as error:
            await self._own_gates.stopped(run, runner, ready, error)
            raise
        if refused is not None and refused.is_stale:
            await self._own_gates.release(ready)
            sent.difference_update(names)
            return
        ending = Ending("refused", str(refused)) if refused else Ending()
        for one in ready:
            await self._own_gates.end(one, ending)

    async def _answer(
        self,
        run: RunRef,
        runner: Runner,
        answers: Mapping[str, JsonValue],
        state: ThreadState,
        names: Collection[str] = (),
    ) -> AnswerRefused | None:
        """Send answers; return the thread's refusal, if any."""
        if state.is_cut_off:
            # With any answer LangGraph runs all remaining work, including a task at the
            # breakpoint of another branch.
            halted = await self._halted(run, state)
            if isinstance(halted, AtBreakpoint):
                raise halted
        try:
            await self._step(
                run,
                runner,
                lambda: runner.resume(
                    run.thread, answers, key=state.taken, names=names
                ),
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

    # A thread that reached a limit, or stopped at a breakpoint of an inner graph, has
    # the same checkpoint as a thread whose process died. A mark distinguishes them. It
    # names the checkpoint, so it becomes invalid when the thread advances.

    async def _halted(self, run: RunRef, state: ThreadState) -> ThreadHalted | None:
        """Return the error that halted a thread here; None if it was not halted."""
        marked, _, why = (await self._threads.marked(run)).partition(" ")
        # Check for an empty id first: it would equal a missing mark.
        if not state.checkpoint or marked != state.checkpoint:
            return None
        if why == AtBreakpoint.__name__:
            return at_breakpoint(run.thread, is_announced=True)
        return at_limit(run.thread, why)

    async def _halt(self, run: RunRef, state: ThreadState, why: BaseException) -> None:
        await self._threads.mark(run, f"{state.checkpoint} {type(why).__name__}")

    async def _halt_at_breakpoint(self, run: RunRef, state: ThreadState) -> NoReturn:
        """Leave a thread at its breakpoint; its open calls continue to wait."""
        halted = at_breakpoint(run.thread, is_announced=False)
        await self._halt(run, state, halted)
        raise halted


def _stuck(run: RunRef) -> ThreadStuck:
    return ThreadStuck(
        f"Thread {run.thread!r} of {run.agent!r} does not take the answer to a "
        "question it asked; see the agent's log."
    )
