"""Run one thread's resumable steps under its lease.

Theory of operation. A job says only that something may have changed; what to do is
read from the thread's own checkpoint and from the store. So any number of jobs for a
thread, in any order, twice or after a crash, come to the same:

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
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NoReturn

from twokey.gateway.approvals.record import Approval
from twokey.gateway.errors import (
    GraphError,
    ThreadUnknown,
)
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.resume.answers import answers_for
from twokey.gateway.resume.asked_approvals import AskedApprovals
from twokey.gateway.resume.classification import (
    CALL_LIMITS,
    AtBreakpoint,
    at_breakpoint,
    is_final,
)
from twokey.gateway.resume.concurrent import ahead
from twokey.gateway.resume.halts import Halts
from twokey.gateway.resume.questions import Answers, asked_items, question_of
from twokey.gateway.resume.run_events import RunEvents, ThreadRef
from twokey.gateway.resume.run_rules import finish_before
from twokey.gateway.resume.runner import AnswerRefused, Runner, ThreadState
from twokey.gateway.service.agents import AgentService
from twokey.gateway.service.dropped_calls import DroppedCalls
from twokey.gateway.store.jobs import Given
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

MAX_STALE = 8
"""How often a question may vanish between reading and answering it, in one job."""


class ThreadStuck(GraphError):
    """A thread does not advance; trying again at once would not help."""


@dataclass(frozen=True)
class Seen:
    """Where a thread stands, and what was read beside that under its lease.

    Attributes:
        state: of the thread.
        read: approvals that it waits for, by id, as far as it is known which.
        is_open: whether its run was opened before.
    """

    state: ThreadState
    read: Mapping[str, Approval]
    is_open: bool


class Advancer:
    """Everything that is done to a thread; the caller holds its lease.

    Args:
        store: where items, facts and events are kept.
        agents: ends the items that nothing asks about any more.
    """

    def __init__(self, store: Store, agents: AgentService) -> None:
        self._store = store
        self._agents = agents
        self._events = RunEvents(store)
        self._halts = Halts(store)
        self._asked = AskedApprovals(store)
        self._dropped = DroppedCalls(store, agents)

    async def look(self, at: ThreadRef, runner: Runner) -> Seen:
        """Read where a thread stands, and meanwhile what the store has of it."""
        opened = self._store.threads.is_run_open(
            at.keys, at.tenant, at.agent, at.thread
        )
        async with ahead(self._asked.read(at)) as reading, ahead(opened) as opening:
            state = await runner.probe(at.thread)
            return Seen(state, await reading, await opening)

    async def look_given(self, at: ThreadRef, runner: Runner, given: Given) -> Seen:
        """Read where a thread stands whose job was handed over with its lease.

        The script that did so has found its run open.
        """
        state = await runner.probe(at.thread)
        read = given.known or await self._asked.read(at)
        return Seen(state, read, is_open=True)

    async def begin(
        self,
        at: ThreadRef,
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
        if not await self._store.stalled.taken_up(at.keys, at.run):
            await finish_before(at.run_ref, self.run_until_waiting(at, runner))
            await self._announce_earlier(at, runner)
        await self._events.started(at, key)
        # Before the step: what the step itself opens must not be superseded below.
        before = await self.unfinished(at)
        await self._step(at, runner, give)
        state = await runner.probe(at.thread)
        await self._supersede_dropped(at, state, before)
        if state.is_cut_off:
            await self._halt_at_breakpoint(at, state)
        return await self.forward(at, runner)

    async def forward(
        self,
        at: ThreadRef,
        runner: Runner,
        *,
        past_limits: bool = False,
        seen: Seen | None = None,
    ) -> ThreadState:
        """Advance a thread until it waits or ends; return where it stands.

        ``past_limits`` goes on with a thread that was stopped by a limit, because its
        program asks for that. ``seen`` is what `look` returned under this lease, if
        the caller has just asked for it.

        Raises:
            ThreadStuck: when an answer is not taken.
            ThreadHalted: when the thread stands at a limit or a breakpoint.
            ThreadUnknown: when there is no such thread, and calls of it are approved.
        """
        state = await self.run_until_waiting(
            at, runner, past_limits=past_limits, seen=seen
        )
        if not state.exists:
            if await self._has_approved(at):
                raise ThreadUnknown(at.agent, at.thread)
            logger.warning("thread.unknown agent=%s thread=%s", at.agent, at.thread)
            return state
        await self._end_dropped(at, state)
        if state.is_finished:
            await self._events.finished(at, state.checkpoint, state.final_message)
        return state

    async def run_until_waiting(
        self,
        at: ThreadRef,
        runner: Runner,
        *,
        past_limits: bool = False,
        seen: Seen | None = None,
    ) -> ThreadState:
        """Answer and nudge until nothing is left that can be done without a person."""
        sent: set[str] = set()
        stale, has_run = 0, False
        seen = seen or await self.look(at, runner)
        state = seen.state
        found = await self._opened(at, seen)
        while True:
            # An answer whose question came back was refused for good: sending it again
            # would never end.
            fresh = found.without(sent)
            if fresh.ready:
                refused = await self._answer(at, runner, fresh, state)
                has_run = has_run or refused is None
                # A stale refusal saved nothing. The question moved after it was read,
                # so its answer may be sent again under the new id.
                if refused is None or not refused.is_stale:
                    sent.update(fresh.fingerprint.values())
                elif (stale := stale + 1) > MAX_STALE:
                    raise ThreadStuck(f"Thread {at.thread!r} changes all the time.")
            elif found.ready or found.unfit:
                raise ThreadStuck(
                    f"Thread {at.thread!r} of {at.agent!r} does not take the answer "
                    "to a question it asked; see the agent's log."
                )
            elif state.is_cut_off:
                await self._nudge(at, runner, state, past_limits=past_limits)
                has_run = True
            else:
                self._asked.note(at, state.pending)
                return state
            state = await runner.probe(at.thread)
            if state.is_cut_off and has_run:
                # Before any answer: one for another branch would run this one, too.
                await self._halt_at_breakpoint(at, state)
            found = await self._answers(at, state)

    async def _opened(self, at: ThreadRef, seen: Seen) -> Answers:
        """Return the answers that there are, once the run is open."""
        answers = self._answers(at, seen.state, seen.read)
        if seen.is_open:
            return await answers
        async with ahead(answers) as reading:
            await self._store.threads.open_run(
                at.keys, at.tenant, at.agent, at.thread, has_past=seen.state.exists
            )
            return await reading

    async def _answers(
        self,
        at: ThreadRef,
        state: ThreadState,
        read: Mapping[str, Approval] | None = None,
    ) -> Answers:
        return await answers_for(self._store, at.agent, at.thread, state.pending, read)

    async def _nudge(
        self, at: ThreadRef, runner: Runner, state: ThreadState, *, past_limits: bool
    ) -> None:
        halted = await self._halts.at(at, state.checkpoint)
        if isinstance(halted, AtBreakpoint) or (halted and not past_limits):
            raise halted
        if halted:
            # Or a retry of this step would stop at the mark.
            await self._halts.clear(at)
        await self._step(at, runner, lambda: runner.nudge(at.thread, key=state.taken))

    async def _step(
        self, at: ThreadRef, runner: Runner, step: Callable[[], Awaitable[None]]
    ) -> None:
        """Take a step of a thread; mark where it stands when no retry would help."""
        try:
            await step()
        except Exception as error:
            # Marked at the checkpoint that the step left, or a later job would take the
            # thread for one whose process died and run into the same limit.
            if is_final(error):
                state = await runner.probe(at.thread)
                await self._halts.put(at, state.checkpoint, error)
                if isinstance(error, CALL_LIMITS):
                    await self._end_dropped(at, state)
            raise

    async def _halt_at_breakpoint(self, at: ThreadRef, state: ThreadState) -> NoReturn:
        """Leave a thread where it stopped; what it asks people goes on waiting."""
        # Kept in the store, so that no other process answers or nudges the thread.
        halted = at_breakpoint(at.thread, is_announced=False)
        await self._halts.put(at, state.checkpoint, halted)
        raise halted

    async def _supersede_dropped(
        self, at: ThreadRef, state: ThreadState, before: Collection[str]
    ) -> None:
        """End what waited before a new message came; the card says so.

        The middleware does it too; this also holds for a graph that lost it.
        """
        asked = asked_items(state.pending)
        dropped = [
            approval.id
            for approval in await self._dropped.droppable(
                at.keys, at.tenant, at.run_ref, asked
            )
            if approval.id in before
            and not any(item.id in asked for item in approval.items)
        ]
        await self._agents.supersede_approvals(dropped)

    async def _answer(
        self, at: ThreadRef, runner: Runner, answers: Answers, state: ThreadState
    ) -> AnswerRefused | None:
        """Send answers; return why the thread did not take them, if it did not."""
        if state.is_cut_off:
            # With any answer LangGraph runs all work that is left, also what stands at
            # the breakpoint of another branch.
            halted = await self._halts.at(at, state.checkpoint)
            if isinstance(halted, AtBreakpoint):
                raise halted
        try:
            await self._step(
                at,
                runner,
                lambda: runner.resume(at.thread, answers.ready, key=state.taken),
            )
        except AnswerRefused as refused:
            logger.warning(
                "answer.refused agent=%s thread=%s stale=%s",
                at.agent,
                at.thread,
                refused.is_stale,
            )
            return refused
        return None

    async def _announce_earlier(self, at: ThreadRef, runner: Runner) -> None:
        """Announce the final message of the turn before, if its process died too early.

        A thread that its program changed by itself has no input of ours at its end.
        """
        state = await runner.probe(at.thread)
        if state.is_finished and state.taken:
            await self._events.finished(at, state.checkpoint, state.final_message)

    async def _end_dropped(self, at: ThreadRef, state: ThreadState) -> None:
        """Withdraw what nothing asks about: another middleware dropped the call.

        While the thread rests on a question, an authorized item may belong to a tool
        whose inside asks that question, so only pending ones end. A question of another
        library may stand in front of the tools, which then have not asked yet.
        """
        if any(question_of(one) is None for one in state.pending):
            return
        asked = asked_items(state.pending)
        await self._dropped.end(
            at.keys, at.tenant, at.run_ref, asked, is_finished=state.is_finished
        )

    async def _has_approved(self, at: ThreadRef) -> bool:
        """Return True if people approved a call of the run that has not run."""
        found = await self._store.approvals.load_each(await self.unfinished(at))
        items = [item for one in found for item in one.approval.items]
        return any(
            item.state is ItemState.AUTHORIZED and not item.is_auto_approved
            for item in items
        )

    async def unfinished(self, at: ThreadRef) -> list[str]:
        """Return ids of the approvals in which something is still to happen."""
        return await self._store.approvals.unfinished_of_run(
            at.keys, at.tenant, at.run_ref
        )
