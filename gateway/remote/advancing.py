"""Bring a thread forward under its lease, with the answers of a remote gateway.

It does what `twokey.gateway.resume.advancer` does in the process that has the store:
what to do is read from the thread's own checkpoint and from the gateway's answers. Any
number of attempts, in any process, twice or after a crash, come to the same.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from twokey.gateway.client.http_threads import HttpThreads, OfferedLease
from twokey.gateway.errors import (
    GraphError,
    KeyRefused,
    NotAllowed,
    ThreadUnavailable,
)
from twokey.gateway.protocol.records import RunRef
from twokey.gateway.protocol.remote_runs import Answered, OpenQuestion
from twokey.gateway.protocol.wire import APPROVAL_INTERRUPT
from twokey.gateway.resume.classification import (
    AtBreakpoint,
    ThreadHalted,
    at_breakpoint,
    at_limit,
    is_final,
)
from twokey.gateway.resume.diagnosis import name_of
from twokey.gateway.resume.questions import Answers, Question, asked_items, question_of
from twokey.gateway.resume.run_rules import finish_before
from twokey.gateway.resume.runner import (
    AnswerRefused,
    PendingInterrupt,
    Runner,
    ThreadState,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Ours = list[tuple[PendingInterrupt, Question]]

MAX_STALE = 8
"""How often a question may vanish between reading and answering it, in one step."""


@dataclass(frozen=True, slots=True)
class AwaitedAnswers:
    """Answers that a wait ended with, and where the thread stood meanwhile.

    ``lease`` is that on the thread, if it was taken with them.
    """

    state: ThreadState
    answers: Answers
    lease: OfferedLease | None = None


class RemoteAdvancer:
    """Everything that is done to threads here; the caller holds the thread's lease.

    Args:
        threads: the gateway's side of them.
    """

    def __init__(self, threads: HttpThreads) -> None:
        self._threads = threads
        # Where a thread stands that no retry brings forward; known to this process.
        self._halts: dict[RunRef, tuple[str, ThreadHalted]] = {}

    async def begin(
        self, run: RunRef, runner: Runner, give: Callable[[], Awaitable[None]]
    ) -> ThreadState:
        """Give a thread new input and advance it; what was decided runs first."""
        await finish_before(run, self._until_waiting(run, runner))
        self._halts.pop(run, None)
        await self._step(run, runner, give)
        state = await runner.probe(run.thread)
        if state.is_cut_off:
            self._halt_at_breakpoint(run, state)
        return await self.forward(run, runner)

    async def forward(
        self,
        run: RunRef,
        runner: Runner,
        *,
        past_limits: bool = False,
        state: ThreadState | None = None,
        awaited: AwaitedAnswers | None = None,
    ) -> ThreadState:
        """Advance a thread until it waits or ends; return where it stands.

        Args:
            run: of the thread.
            runner: runs it.
            past_limits: go on where it stands at a limit.
            state: where it stands, as it was read under the lease.
            awaited: answers that were read before the lease was taken. They count
                where the thread stands as it did then: an answer does not change, and
                each call is claimed before it runs.

        Raises:
            ThreadHalted: when the thread stands at a limit or a breakpoint.
            GraphError: when it does not take an answer.
        """
        state = await self._until_waiting(
            run, runner, past_limits=past_limits, state=state, awaited=awaited
        )
        # A question of another library may stand in front of the tools, which then
        # have not asked yet.
        if state.exists and all(question_of(one) for one in state.pending):
            await self._threads.settle(
                run, asked_items(state.pending), is_finished=state.is_finished
            )
        return state

    async def answers(
        self, run: RunRef, pending: Sequence[PendingInterrupt], *, wait_s: float = 0.0
    ) -> Answers:
        """Return the answers to a thread's questions; wait for the first one."""
        if not (ours := _ours(pending)):
            return Answers()
        found = await _asked(self._threads.answers(run, _open(ours), wait_s=wait_s))
        return _answers(ours, found)

    async def awaited(
        self, run: RunRef, state: ThreadState, *, wait_s: float, token: str
    ) -> AwaitedAnswers:
        """Wait for the first answer to a thread's questions, and take its lease.

        See `HttpThreads.answers_and_lease`.
        """
        ours = _ours(state.pending)
        found, lease = await _asked(
            self._threads.answers_and_lease(
                run, _open(ours), wait_s=wait_s, token=token
            )
        )
        return AwaitedAnswers(state, _answers(ours, found), lease)

    async def _until_waiting(
        self,
        run: RunRef,
        runner: Runner,
        *,
        past_limits: bool = False,
        state: ThreadState | None = None,
        awaited: AwaitedAnswers | None = None,
    ) -> ThreadState:
        sent: set[str] = set()
        stale, has_run = 0, False
        state = state or await runner.probe(run.thread)
        while True:
            if awaited is not None and awaited.state == state:
                found = awaited.answers
            else:
                found = await self.answers(run, state.pending)
            # Once: after a step, others may be there as well.
            awaited = None
            fresh = found.without(sent)
            if fresh.ready:
                refused = await self._answer(run, runner, fresh, state)
                has_run = has_run or refused is None
                if refused is None or not refused.is_stale:
                    sent.update(fresh.fingerprint.values())
                elif (stale := stale + 1) > MAX_STALE:
                    raise ThreadUnavailable(
                        f"The thread {run.thread!r} changes all the time."
                    )
            elif found.ready or found.unfit:
                raise GraphError(
                    f"The thread {run.thread!r} of {run.agent!r} does not take the "
                    "answer to a question it asked; see the agent's log."
                )
            elif state.is_cut_off:
                await self._nudge(run, runner, state, past_limits=past_limits)
                has_run = True
            else:
                return state
            state = await runner.probe(run.thread)
            if state.is_cut_off and has_run:
                # Before any answer: one for another branch would run this one, too.
                self._halt_at_breakpoint(run, state)

    async def _answer(
        self, run: RunRef, runner: Runner, answers: Answers, state: ThreadState
    ) -> AnswerRefused | None:
        if state.is_cut_off and isinstance(
            halted := self._halted(run, state), AtBreakpoint
        ):
            # With any answer LangGraph runs all work that is left.
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

    async def _nudge(
        self, run: RunRef, runner: Runner, state: ThreadState, *, past_limits: bool
    ) -> None:
        halted = self._halted(run, state)
        if isinstance(halted, AtBreakpoint) or (halted and not past_limits):
            raise halted
        self._halts.pop(run, None)
        await self._step(run, runner, lambda: runner.nudge(run.thread, key=state.taken))

    async def _step(
        self, run: RunRef, runner: Runner, step: Callable[[], Awaitable[None]]
    ) -> None:
        """Take a step of a thread; mark where it stands when no retry would help."""
        try:
            await step()
        except Exception as error:
            if is_final(error):
                state = await runner.probe(run.thread)
                halted = at_limit(run.thread, name_of(error))
                self._halts[run] = (state.checkpoint, halted)
            raise

    def _halted(self, run: RunRef, state: ThreadState) -> ThreadHalted | None:
        checkpoint, halted = self._halts.get(run, ("", None))
        return halted if checkpoint == state.checkpoint else None

    def _halt_at_breakpoint(self, run: RunRef, state: ThreadState) -> None:
        halted = at_breakpoint(run.thread, is_announced=True)
        self._halts[run] = (state.checkpoint, halted)
        raise halted


def _ours(pending: Sequence[PendingInterrupt]) -> _Ours:
    asked = ((one, question_of(one)) for one in pending)
    return [(one, question) for one, question in asked if question is not None]


async def _asked(asking: Awaitable[T]) -> T:
    try:
        return await asking
    except KeyRefused:
        raise
    except NotAllowed as error:
        # Such as another name of the agent in its middleware than in the program.
        raise GraphError(str(error)) from error


def _answers(asked: _Ours, given: Iterable[Answered]) -> Answers:
    found = {(one.kind, one.item_id, one.action_hash): one for one in given}
    answers = Answers()
    for one, question in asked:
        key = (question.kind, question.item_id, question.action_hash)
        if (answered := found.get(key)) is not None:
            # The gateway is not trusted to fit the agent's own schema.
            answers.offer(question, answered.answer, one.schema, times=answered.times)
    return answers


def _open(ours: _Ours) -> list[OpenQuestion]:
    return list(dict.fromkeys(_named(question) for _, question in ours))


def _named(question: Question) -> OpenQuestion:
    is_approval = question.kind == APPROVAL_INTERRUPT
    return OpenQuestion(
        kind="twokey.approval" if is_approval else "twokey.reconcile",
        item_id=question.item_id,
        action_hash=question.action_hash,
    )
