"""Report third-party interrupts in Slack, and end them when they expire.

A thread rests on a question that is not ours when a tool calls LangGraph's
``interrupt``, or another human-in-the-loop middleware stands in the graph. Nobody can
answer it in Slack. So it is told in the run's thread, and the program that runs the
agent may answer it by itself until it expires; then it ends here: with an answer that
lets nothing run where there is one, else with the end of the run. The question itself
then stays in the checkpoint. What comes next into the thread drops it, and the agent is
told of its calls that did not run.

Threads that a program runs with `Keyturn.run` are left to the program, which gets the
question as a result.

Only LangChain's own human-in-the-loop format has a known rejection. Any other interrupt
may take a string as its input, such as the number of an account; so it gets no
automatic answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from keyturn.gateway.approvals.events import Event, EventName
from keyturn.gateway.approvals.evidence import redacted
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.strict_json import JsonObject, accept_object
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.resume.advancer import Advancer
from keyturn.gateway.resume.questions import fits, question_of
from keyturn.gateway.resume.runner import (
    AnswerRefused,
    PendingInterrupt,
    Runner,
    ThreadState,
)
from keyturn.gateway.resume.store_threads import RunEvents, ThreadRef
from keyturn.gateway.service.agents import AgentService
from keyturn.gateway.store.jobs import Job
from keyturn.gateway.store.store import Store

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
            until_ms = known.get(one.id)
            if until_ms is None:
                await self._ask(at, job, one, now_ms)
            elif 0 < until_ms <= now_ms:
                due.append(one)
            elif until_ms:
                await self._interrupts.arm(at.keys, job, until_ms)
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
        logger.info("question.foreign agent=%s thread=%s", at.agent, at.thread)
        await self._interrupts.ask(at.keys, job, one.id, until_ms, event, words)

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
            after = await self._advancer.forward(at.run_ref, runner)
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


MAX_CHARS = 3000
"""Longest text of a question that is passed on."""

_CALLS = 20
_NOBODY = "Nobody answered in time, so this did not run."
_REFUSING = ("reject", "respond")

Redact = Callable[[str], Iterable[str]]
"""Returns the paths of a tool's arguments that people do not get to see."""


def question_text(pending: PendingInterrupt, redact: Redact) -> str:
    """Return a question for people: bounded, and without what the policy redacts."""
    calls = _calls(pending.value)
    if calls:
        lines = [_call(one, redact) for one in calls[:_CALLS]]
        if len(calls) > _CALLS:
            lines.append(f"… and {len(calls) - _CALLS} more calls")
        text = "\n".join(["Should this run?", *lines])
    elif isinstance(pending.value, str):
        text = pending.value  # written as a question to people: ``interrupt("Go on?")``
    else:
        # Data of unknown shape: no redaction rule applies to it, so only names show.
        text = _names(pending.value)
    return text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…"


def rejection(pending: PendingInterrupt) -> JsonObject | None:
    """Return the answer that nobody answered; None when there is no safe one."""
    value = _object(pending.value)
    if value.get("type") == "tool_approval":
        return {"type": "reject", "message": _NOBODY} if pending.schema else None
    requests, rules = value.get("action_requests"), value.get("review_configs")
    if not isinstance(requests, list) or not isinstance(rules, list):
        return None
    allowed = {
        str(_object(rule).get("action_name")): _object(rule).get("allowed_decisions")
        for rule in cast("list[object]", rules)
    }
    decisions: list[JsonObject] = []
    for request in cast("list[object]", requests):
        found = allowed.get(str(_object(request).get("name")))
        words = cast("list[object]", found) if isinstance(found, list) else []
        word = next((one for one in _REFUSING if one in words), None)
        # One call without a safe answer leaves the whole question without one:
        # LangChain takes a decision for each call or none.
        if word is None:
            return None
        decisions.append({"type": word, "message": _NOBODY})
    return {"decisions": list(decisions)} if decisions else None


def _calls(value: object) -> list[Mapping[str, object]]:
    """Return the calls that a question of LangChain's middleware is about."""
    found = _object(value)
    if found.get("type") == "tool_approval":
        return [found]
    requests = found.get("action_requests")
    if not isinstance(requests, list):
        return []
    return [_object(one) for one in cast("list[object]", requests)]


def _call(call: Mapping[str, object], redact: Redact) -> str:
    tool = str(call.get("name", ""))
    try:
        shown = redacted(accept_object(call.get("args")), redact(tool))
    except BadJson:
        return f"{tool} (its arguments cannot be shown)"
    return f"{tool} {json.dumps(shown, ensure_ascii=False, sort_keys=True)}"


def _names(value: object) -> str:
    if isinstance(value, Mapping):
        names = ", ".join(map(str, cast("Mapping[object, object]", value)))
        return f"A question with these parts: {names or 'none'}."
    if isinstance(value, Sequence):
        return f"A question with {len(cast('Sequence[object]', value))} parts."
    return f"A question that is a {type(value).__name__}."


def _object(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
