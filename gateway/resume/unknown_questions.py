"""Announce questions that no answer can come for, and end their runs.

A graph may ask something that no dialect knows. It is shown to people as data, and
until it expires the program that runs the agent may answer it. A question may also end
in a way that its format has no word for: nobody answered a plain `interrupt`, whose
answer may be data such as an account number. Nothing is ever made up: the run ends, and
the question remains in the checkpoint. The thread's next message drops it, and the
agent learns which of its calls did not run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import GraphError
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.resume.advancer import Advancer
from keyturn.gateway.resume.threads import ThreadState, is_known, question_of
from keyturn.gateway.service.people.freezing import run_event
from keyturn.gateway.service.run.agents import AgentService
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.runs.jobs import Job
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

AGAIN_MS = 60_000
"""Delay before the next look at a question that has to wait for other questions."""

MAX_CHARS = 3000
"""Longest text of a question."""


class UnknownQuestions(TenantService):
    """The questions of threads that no answer can come for.

    Args:
        store: saves which questions were announced.
        policy: returns the policy in force now; its ``expires_in`` applies.
        agents: ends the open calls of a run that ends.
        advancer: of these threads.
        tenant: owner of the threads.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        agents: AgentService,
        advancer: Advancer,
        *,
        tenant: str,
    ) -> None:
        super().__init__(store, tenant=tenant)
        self._interrupts = store.interrupts
        self._policy = policy
        self._agents = agents
        self._advancer = advancer

    async def announce_or_end(self, run: RunRef, state: ThreadState) -> None:
        """Announce or end such questions of a resting thread, under its lease."""
        if all(question_of(one) for one in state.pending):
            return
        left = await self._advancer.unanswerable(run, state)
        # A separate job id: other jobs of the thread advance it.
        job = Job.to_resume(self._tenant, run.agent, run.thread).with_(id="question")
        announced = await self._interrupts.all(self._keys, job) if left else {}
        now_ms = await self._store.conn.now_ms(self._keys.retry)
        due: list[str] = []
        for one in left.values():
            until_ms = announced.get(one.id)
            if until_ms == 0:
                continue  # it has ended
            if is_known(one) or (until_ms is not None and until_ms <= now_ms):
                due.append(one.id)
            elif until_ms is None:
                await self._ask(run, job, one, now_ms)
            else:
                await self._interrupts.arm(self._keys, job, until_ms)
        if due:
            await self._end(run, state, due, job)

    async def check_answerable(self, run: RunRef, state: ThreadState) -> None:
        """Check that a program's thread has no question that ended without a word.

        Raises:
            GraphError: it has; the program decides how the thread goes on.
        """
        if not state.hands_over or all(question_of(one) for one in state.pending):
            return
        left = await self._advancer.unanswerable(run, state)
        if any(is_known(one) for one in left.values()):
            raise GraphError(
                f"People did not answer a question of the thread {run.thread!r}, and "
                "it takes no other answer. Resume the thread yourself, or give it a "
                "new message."
            )

    async def _ask(self, run: RunRef, job: Job, one: Question, now_ms: int) -> None:
        policy = self._policy()
        until_ms = now_ms + int(policy.defaults.expires_in.total_seconds() * 1000)
        event = await run_event(
            self._store, self._keys, run, EventName.RUN_ASKED, until_ms=str(until_ms)
        )
        logger.info("question.unknown agent=%s thread=%s", run.agent, run.thread)
        words = question_text(one, is_hidden=_redacts(policy))
        await self._interrupts.ask(self._keys, job, one.id, until_ms, event, words)

    async def _end(
        self, run: RunRef, state: ThreadState, due: Collection[str], job: Job
    ) -> None:
        """End the run, unless another of its questions can still be answered."""
        if len(due) < len(state.pending):
            now_ms = await self._store.conn.now_ms(self._keys.retry)
            await self._interrupts.arm(self._keys, job, now_ms + AGAIN_MS)
            return
        # Before the question is marked as ended: after a crash in between, it is due
        # again.
        await self._agents.supersede_run(run)
        name = EventName.RUN_UNANSWERED
        event = await run_event(self._store, self._keys, run, name)
        await self._interrupts.end(self._keys, job, [*due], event)


def _redacts(policy: Policy) -> bool:
    rules = [*policy.tools.values()]
    for agent in policy.agents.values():
        rules += agent.tools.values()
    return any(rule.redact for rule in rules)


def question_text(pending: Question, *, is_hidden: bool) -> str:
    """Return an unknown question for people, as data.

    ``is_hidden`` leaves the data out: no rule of redaction fits data of unknown form.
    """
    if is_hidden:
        return "Its data is not shown, because the policy hides arguments."
    text = json.dumps(pending.value, ensure_ascii=False, indent=2, default=repr)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"
