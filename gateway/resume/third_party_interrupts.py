"""Report third-party interrupts in Slack, and end them when they expire.

A thread rests on a question that is not ours when a tool calls LangGraph's
``interrupt``, or another human-in-the-loop middleware stands in the graph. Nobody can
answer it in Slack. So it is told in the run's thread, and the program that runs the
agent may answer it by itself until it expires; then it ends here: with an answer that
lets nothing run where there is one, else with the end of the run. The question itself
then stays in the checkpoint. What comes next into the thread drops it, and the agent is
told of its calls that did not run.

Threads that a program runs with `Twokey.run` are left to the program, which gets the
question as a result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.resume.advancer import Advancer
from twokey.gateway.resume.interrupt_formats import question_text, rejection
from twokey.gateway.resume.questions import fits, question_of
from twokey.gateway.resume.run_events import RunEvents, ThreadRef
from twokey.gateway.resume.runner import (
    AnswerRefused,
    PendingInterrupt,
    Runner,
    ThreadState,
)
from twokey.gateway.service.agents import AgentService
from twokey.gateway.store.announced_interrupts import AnnouncedInterrupt
from twokey.gateway.store.jobs import Job
from twokey.gateway.store.store import Store

logger = logging.getLogger(__name__)

AGAIN_MS = 60_000
"""How soon to look again at a question that cannot end before others have."""


class ThirdPartyInterrupts:
    """Everything that is done about questions that are not ours.

    Args:
        store: where it is kept what people were told.
        policy: returns the policy in force now; its ``expires_in`` counts.
        agents: ends what waits in a run that ends.
        advancer: brings a thread forward that was answered.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        agents: AgentService,
        advancer: Advancer,
    ) -> None:
        self._conn = store.conn
        self._interrupts = store.interrupts
        self._policy = policy
        self._agents = agents
        self._advancer = advancer
        self._events = RunEvents(store)

    async def announce_or_end(
        self, at: ThreadRef, runner: Runner, state: ThreadState
    ) -> ThreadState:
        """Tell, or end, what a resting thread asks; return where it stands then.

        The caller holds the thread's lease.
        """
        foreign = [one for one in state.pending if question_of(one) is None]
        if not foreign:
            return state
        # An id of its own: other jobs of the thread bring it forward.
        job = Job.to_resume(at.tenant, at.agent, at.thread).with_(id="question")
        known = await self._interrupts.all(at.keys, job)
        now_ms = await self._conn.now_ms(at.keys.retry)
        due: list[PendingInterrupt] = []
        for one in foreign:
            question = known.get(one.id)
            if question is None:
                await self._ask(at, job, one, now_ms)
            elif 0 < question.until_ms <= now_ms:
                due.append(one)
            elif question.until_ms:
                await self._interrupts.arm(at.keys, job, question.until_ms)
        return await self._end(at, runner, state, due, job) if due else state

    async def _ask(
        self, at: ThreadRef, job: Job, one: PendingInterrupt, now_ms: int
    ) -> None:
        policy = self._policy()
        expires_in = policy.defaults.expires_in.of(Tier.APPROVE)
        until_ms = now_ms + int(expires_in.total_seconds() * 1000)
        event = await self._event(at, EventName.RUN_ASKED, until_ms=str(until_ms))
        event = _ending(event, is_answered=rejection(one) is not None)
        words = question_text(
            one, lambda tool: EffectiveRules(policy, at.agent, tool).redact()
        )
        question = AnnouncedInterrupt(one.id, until_ms)
        logger.info("question.foreign agent=%s thread=%s", at.agent, at.thread)
        await self._interrupts.ask(at.keys, job, question, event, words)

    async def _end(
        self,
        at: ThreadRef,
        runner: Runner,
        state: ThreadState,
        due: list[PendingInterrupt],
        job: Job,
    ) -> ThreadState:
        answers = {
            one.id: answer
            for one in due
            if (answer := rejection(one)) is not None and fits(answer, one.schema)
        }
        if answers:
            try:
                await runner.resume(at.thread, answers, key=state.taken)
            except AnswerRefused:
                logger.warning(
                    "question.unended agent=%s thread=%s", at.agent, at.thread
                )
                return await self._give_up(at, state, due, job)
            await self._announce_end(at, job, [*answers], is_answered=True)
            after = await self._advancer.forward(at, runner)
            # The thread may ask the next question already.
            return await self.announce_or_end(at, runner, after)
        return await self._give_up(at, state, due, job)

    async def _give_up(
        self, at: ThreadRef, state: ThreadState, due: list[PendingInterrupt], job: Job
    ) -> ThreadState:
        """End the run, unless it asks something else that may be answered still."""
        if len(due) < len(state.pending):
            now_ms = await self._conn.now_ms(at.keys.retry)
            await self._interrupts.arm(at.keys, job, now_ms + AGAIN_MS)
            return state
        # Before the question is marked as ended: killed in between, it is due once
        # more.
        await self._agents.supersede_run(at.run_ref)
        await self._announce_end(at, job, [one.id for one in due], is_answered=False)
        return state

    async def _announce_end(
        self, at: ThreadRef, job: Job, ids: list[str], *, is_answered: bool
    ) -> None:
        event = await self._event(at, EventName.RUN_UNANSWERED)
        event = _ending(event, is_answered=is_answered)
        await self._interrupts.end(at.keys, job, ids, event)

    async def _event(self, at: ThreadRef, name: EventName, **data: str) -> Event:
        event = await self._events.event(at, name)
        return event.with_(data={**event.data, **data})


def _ending(event: Event, *, is_answered: bool) -> Event:
    ends = "answered" if is_answered else "ended"
    return event.with_(data={**event.data, "ends": ends})
