"""Hand people's decisions over to agents that another program runs by itself.

Such a program is a `Host`. One loop serves every host: it finds the threads that wait,
asks people about their questions, and hands each complete decision over. All facts are
in the host and the gateway, so another process can continue after a crash:

- The thread is read right before an answer is sent, to check that it still asks.
- Each answer carries a mark, which is looked up before sending. So an answer is sent
  once, and a refused answer is not sent again.
- A decision counts as taken only with proof from the host.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import cast

from pydantic import JsonValue, ValidationError

from keyturn.connect.gate import Gate, open_approvals
from keyturn.connect.host import (
    PROBLEMS,
    Claim,
    Ending,
    Host,
    HostUnavailable,
    NotSent,
    Outcome,
    Position,
    Runs,
    Sent,
    Waiting,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.clock import now_s
from keyturn.gateway.dialects import dialects
from keyturn.gateway.dialects.asked import Ended, NoWord, Question, is_as_decided
from keyturn.gateway.errors import BadJson, KeyturnError, NotAllowed
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol import http_api, wire
from keyturn.gateway.protocol.approval_views import ApprovalView
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import AnswerKind, TurnRef, Verdict, VerdictKind
from keyturn.gateway.store.runs.leases import beating

logger = logging.getLogger(__name__)

LOOK_S = 15.0
"""Seconds between two checks of every open question, even without an event."""

RECOVER_S = 60.0
"""Seconds between two listings of the gateway's open approvals."""

FOLLOW_S = 30
"""Longest wait of one request for events, in seconds."""

LEASE_S = 15.0
"""Lease of an answer without claims, in seconds since its thread was read."""

GRACE_S = 2.0
"""Seconds to finish answers in delivery when the process stops."""

AT_ONCE = 16
"""Largest number of threads that are read concurrently."""

TRIES = 5
"""Most runs of a gated agent with one answer; its claim makes repeats safe."""

_CANNOT_ASK_AGAIN = (
    "The agent asks in a step with other work, which would run again. Send the agent a "
    "message instead: it then drops this question."
)


@dataclass(frozen=True)
class _Open:
    """A question for people, or its calls from the gateway's listing.

    ``question`` is None for listed calls. ``ours`` is the call of a gated agent, which
    Keyturn's middleware has submitted.
    """

    ref: TurnRef
    verdicts: tuple[Verdict, ...] = ()
    question: Question | None = None
    ours: http_api.OpenQuestion | None = None

    @property
    def name(self) -> str:
        return self.ref.message_id


@dataclass
class _Work:
    """The delivery of one answer: the claims of its calls, and the answer.

    ``ends`` is None if the thread no longer asks the question. ``dropped`` are the ids
    of calls that need no decision any more.
    """

    about: _Open
    ends: list[Ended] | None
    answer: JsonValue = None
    mark: str = ""
    claims: list[Claim] = field(default_factory=list[Claim])
    dropped: list[str] = field(default_factory=list[str])


class HandOver:
    """Asks people about a host's questions, and hands their decisions over.

    Args:
        host: the program that runs the agents.
        gate: the gateway.
        every_s: pause between two requests for waiting threads, in seconds.
    """

    def __init__(self, host: Host, gate: Gate, *, every_s: float = 2.0) -> None:
        self._host, self._gate, self._every_s = host, gate, every_s
        self._open = dict[str, dict[str, _Open]]()
        self._agents = dict[str, str]()
        self._seen = dict[str, Waiting]()
        self._changed = set[str]()
        self._wake = asyncio.Event()
        self._tasks = dict[str, asyncio.Task[None]]()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._looked_s = self._listed_s = float("-inf")

    async def run(self) -> None:
        """Serve the host until cancelled."""
        following = asyncio.create_task(self._follow())
        is_away = False
        try:
            while True:
                try:
                    await self.tick()
                    if is_away:
                        logger.info("host.back host=%s", self._host.name)
                    is_away = False
                except HostUnavailable as error:
                    if not is_away:
                        logger.warning(
                            "host.unavailable host=%s error=%s", self._host.name, error
                        )
                    is_away = True
                except any_failure() as error:
                    log_failure(logger, error, "host.failed")
                await self._pause()
        finally:
            tasks = [following, *self._tasks.values()]
            if self._tasks:
                # Otherwise the next process would wait until their leases end.
                await asyncio.wait(self._tasks.values(), timeout=GRACE_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def tick(self, *, looks_at_all: bool = False) -> None:
        """Read the host's waiting threads once, and start a task for each changed one.

        ``looks_at_all`` also starts tasks for unchanged open questions, and for those
        that only the gateway lists.
        """
        waiting = await self._host.waiting()
        changed, self._changed = self._changed, set[str]()
        due = {one for one, at in waiting.items() if self._seen.get(one) != at}
        # Also threads that are busy or no longer ask, and those with an event.
        due |= self._open.keys() - waiting.keys() | changed & self._open.keys()
        if looks_at_all or now_s() - self._listed_s >= RECOVER_S:
            due |= await self._recover()
            self._listed_s = now_s()
        if looks_at_all or now_s() - self._looked_s >= LOOK_S:
            due |= self._open.keys()
            self._looked_s = now_s()
        self._seen = {one: at for one, at in self._seen.items() if one in waiting}
        for thread in due:
            at = waiting.get(thread)
            if at is not None:
                self._agents[thread] = at.agent
            if thread not in self._tasks:
                self._start(thread, at)
            elif thread in changed:
                self._changed.add(thread)

    async def settled(self) -> None:
        """Wait until no task for a thread is left."""
        while self._tasks:
            await asyncio.wait([*self._tasks.values()])

    def _start(self, thread: str, at: Waiting | None) -> None:
        async def attend() -> None:
            try:
                await self._attend(thread, self._agents[thread])
            except KeyturnError as error:
                # Not marked as seen, so the next tick tries again.
                logger.warning("thread.unattended thread=%s error=%s", thread, error)
            except any_failure() as error:
                log_failure(logger, error, "thread.failed thread=%s", thread)
            else:
                if at is not None:
                    self._seen[thread] = at
                if not self._open.get(thread):
                    self._open.pop(thread, None)
                    self._agents.pop(thread, None)
            finally:
                self._tasks.pop(thread, None)

        self._tasks[thread] = asyncio.create_task(attend())

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._every_s):
                await self._wake.wait()
        self._wake.clear()

    async def _follow(self) -> None:
        """Wake the loop when people have decided."""
        after = ""
        while True:
            try:
                page = await self._gate.events(after=after, wait_s=FOLLOW_S)
            except KeyturnError as error:
                logger.warning("events.not_followed error=%s", error)
                await asyncio.sleep(self._every_s)
                continue
            after = page.next
            found = {event.run.thread for event in page.events}
            if any(event.name == EventName.ITEM_WANTED_AGAIN for event in page.events):
                self._listed_s = float("-inf")
                self._wake.set()
            self._changed |= {*self._open} if page.missed else found
            if self._changed & self._open.keys():
                self._wake.set()

    async def _recover(self) -> set[str]:
        """Add the gateway's open calls; return threads that are new to this process."""
        found = set[str]()
        for agent in sorted({*self._host.agents}):
            async for approval in open_approvals(self._gate, agent):
                await self._ask_again(approval)
                listed = _listed(approval, self._host.name)
                if listed is None or approval.thread in self._tasks:
                    continue
                known = self._open.setdefault(approval.thread, {})
                self._agents.setdefault(approval.thread, approval.agent)
                if known.setdefault(listed.name, listed) is listed:
                    found.add(approval.thread)
        return found

    async def _ask_again(self, approval: ApprovalView) -> None:
        """Make an agent ask again if a person pressed *Ask again*."""
        ours = [it for it in approval.calls if it.handed_to == self._host.name]
        wanted = [it.id for it in ours if it.ask_again]
        if not wanted:
            return
        runs = await self._host.runs(approval.thread)
        mark, detail = f"again {wanted[0]}", ""
        if not any(mark in it.marks for it in runs.ours):
            at = await self._host.read(approval.thread)
            if at is None:
                detail = "The conversation was deleted."
            elif approval.message_id not in _named(at.questions):
                detail = "The question is not open any more."
            elif not at.may_ask_again:
                detail = _CANNOT_ASK_AGAIN
            else:
                sent = Sent(at.thread, "", (mark,), (), at.checkpoint, runs.newest)
                reply = await self._host.ask_again(at, sent)
                if isinstance(reply, NotSent):
                    return
                detail = reply.detail if isinstance(reply, Ending) else ""
        for item in wanted:
            report = wire.AskedAgain(item_id=item, ok=not detail, detail=detail)
            await self._gate.report_asked_again(report)

    async def _attend(self, thread: str, agent: str) -> None:
        """Process one thread: ask, withdraw, hand over."""
        async with self._room:
            at = await self._host.read(thread)
            asked = _named(at.questions) if at else {}
            known = self._open.setdefault(thread, {})
            for name, question in asked.items():
                # Calls from the listing have no question yet.
                if name not in known or known[name].question is None:
                    one = await self._ask(question, name, agent, thread)
                    if one is not None:
                        known[name] = one
            work = [
                _Work(one, None) for name, one in known.items() if name not in asked
            ]
            for name in asked.keys() & known.keys():
                ready = await self._decided(known[name])
                if ready is not None:
                    work.append(ready)
        if work:
            await self._settle(thread, work)

    async def _ask(
        self, question: Question, name: str, agent: str, thread: str
    ) -> _Open | None:
        """Ask people about a question; return None if it cannot be shown to them."""
        if (ours := _of_keyturn(question)) is not None:
            ref = TurnRef(agent=agent, thread=thread, ns=question.id, message_id=name)
            return _Open(ref, question=question, ours=ours)
        asked = dialects.read(question)
        if asked is None:
            logger.warning("question.unknown thread=%s question=%s", thread, name)
            return None
        turn = dialects.turn_of(
            question, asked, agent=agent, thread=thread, handed_to=self._host.name
        )
        try:
            verdicts = await self._gate.submit(turn)
        except (NotAllowed, BadJson) as error:
            log_failure(logger, error, "question.refused thread=%s", thread)
            return None
        return _Open(turn.ref, verdicts, question)

    async def _decided(self, one: _Open) -> _Work | None:
        """Return the decisions on a question; None while one is missing."""
        run = RunRef(agent=one.ref.agent, thread=one.ref.thread)
        held = [it for it in one.verdicts if it.kind is VerdictKind.HOLD]
        asks = (one.ours,) if one.ours else tuple(map(_question_about, held))
        found = await self._gate.answers(
            http_api.AnswersQuestion(run=run, questions=asks)
        )
        if len(found) < len(asks):
            return None
        if one.ours:
            [decided] = found
            mark = f"{decided.item_id}.{decided.times}"
            return _Work(one, [], cast("JsonValue", decided.answer), mark)
        people = {it.item_id: wire.Answer.model_validate(it.answer) for it in found}
        ends = [
            people[it.item_id] if it.kind is VerdictKind.HOLD else it
            for it in one.verdicts
        ]
        return _Work(one, ends, mark=one.name)

    async def _settle(self, thread: str, work: Sequence[_Work]) -> None:
        """Look the marks up, claim, send each unsent answer, and record its end."""
        asked_s, leases_s = now_s(), [LEASE_S]
        runs = await self._host.runs(thread)
        left = [one for one in work if not await self._was_sent(one, runs)]
        if len(left) < len(work):
            # Waiting for those ends may have taken long, so read the thread again.
            self._look_again(thread)
            return
        left = [one for one in work if await self._claim(one, leases_s)]
        if not left:
            return
        claims = [claim for one in left for claim in one.claims]
        beat_s = min(leases_s) / 3
        async with AsyncExitStack() as stack:
            if claims:
                beats = beating(beat_s, lambda: self._beat(claims))
                await stack.enter_async_context(beats)
            at = await self._host.read(thread)
            named = _named(at.questions) if at else {}
            gone = Ending(Outcome.ELSEWHERE if at else Outcome.DELETED)
            for one in [one for one in left if one.about.name not in named]:
                await self._end(one, gone)
                left.remove(one)
            ready = [one for one in left if self._is_complete(one)]
            # If this process was suspended, another may have claimed and sent.
            is_late = now_s() > asked_s + beat_s
            if at and ready and not is_late:
                left = await self._send(at, runs.newest, ready)
            for one in left:
                await self._release(one)

    async def _claim(self, one: _Work, leases_s: list[float]) -> bool:
        """Claim the approved calls of a question; return False to try again later."""
        for place, call in enumerate(one.about.verdicts):
            is_claimed = call.item_id and _is_approved(one.ends, place)
            if is_claimed and not await self._claim_call(one, place, call, leases_s):
                await self._release(one)
                return False
        return True

    async def _claim_call(
        self, one: _Work, place: int, call: Verdict, leases_s: list[float]
    ) -> bool:
        request = wire.ClaimRequest(
            item_id=call.item_id,
            ref=one.about.ref,
            tool=call.tool,
            tool_call_id=call.tool_call_id,
            owner=uuid.uuid4().hex,
        )
        reply, ends = await self._gate.claim(request), one.ends
        match reply:
            case wire.Claimed():
                one.claims.append(Claim(call.item_id, reply.fence))
                leases_s.append(reply.lease_s)
                return ends is None or is_as_decided(call, ends[place], reply)
            case wire.Refused() | wire.HandedOver() if ends is None:
                if isinstance(reply, wire.Refused):
                    one.dropped.append(call.item_id)
                return True
            case wire.Refused(state=ItemState.HANDING_OVER):
                pass  # the program may have taken it: do not send a rejection
            case wire.Refused() if ends is not None:
                ends[place] = _refusal(call, reply.reason)
                one.dropped.append(call.item_id)
                return True
            case wire.HandedOver():
                # Handed over before, and asked again: only people may repeat it.
                logger.warning("question.open_again question=%s", one.about.name)
                self._forget(one)
            case _:
                pass
        return False

    async def _was_sent(self, one: _Work, runs: Runs) -> bool:
        """Record the end of an earlier answer; return False if there is none."""
        sent = [it for it in runs.ours if (one.mark or one.about.name) in it.marks]
        if not sent:
            return False
        ending = await self._ended(sent[0], one)
        # A gated agent claims by itself, so a repeated answer runs a call once.
        is_tried_again = one.about.ours is not None and len(sent) < TRIES
        if is_tried_again and ending.outcome is Outcome.FAILED:
            return False
        ids = {call.item_id for call in one.about.verdicts if call.item_id}
        one.claims = [it for it in sent[0].claims if it.item_id in ids]
        # Calls without a claim were rejected.
        one.dropped = [*(ids - {it.item_id for it in one.claims})]
        await self._end(one, ending)
        return True

    def _look_again(self, thread: str) -> None:
        self._changed.add(thread)
        self._wake.set()

    def _is_complete(self, one: _Work) -> bool:
        """Write the answer to a question; return False if its format cannot do it."""
        question = one.about.question
        if one.ends is None or question is None:
            return False
        if one.about.ours:
            return True
        try:
            one.answer = dialects.answer(question, one.ends)
        except NoWord:
            # Do not log the error's text: it may quote a person.
            logger.warning("question.unanswered question=%s", one.about.name)
            self._forget(one)
            return False
        return True

    async def _send(self, at: Position, newest: str, ready: list[_Work]) -> list[_Work]:
        """Send all answers in one request; return them if the thread is busy."""
        answers = {one.about.ref.ns: one.answer for one in ready}
        claims = tuple(it for one in ready for it in one.claims)
        marks = tuple(one.mark for one in ready)
        sent = Sent(at.thread, "", marks, claims, at.checkpoint, newest)
        reply = await self._sent(at, answers, sent)
        if isinstance(reply, NotSent):
            return ready
        for one in ready:
            if isinstance(reply, Sent):
                ending = await self._ended(reply, one)
            else:
                ending = reply
            await self._end(one, ending)
        return []

    async def _sent(
        self, at: Position, answers: Mapping[str, JsonValue], mark: Sent
    ) -> Sent | Ending | NotSent:
        try:
            return await self._host.send(at, answers, mark)
        except HostUnavailable as error:
            # The request may have arrived, so look for its mark.
            logger.warning("answer.unconfirmed thread=%s error=%s", at.thread, error)
        while True:
            await asyncio.sleep(self._every_s)
            with suppress(HostUnavailable):
                found = (await self._host.runs(at.thread)).ours
                return next((it for it in found if it.marks == mark.marks), NotSent())

    async def _ended(self, sent: Sent, one: _Work) -> Ending:
        """Wait until the host shows how an answer ended."""
        pause_s = 0.05
        while True:
            with suppress(HostUnavailable):
                ending = await self._host.ending(sent, one.about.ref.ns)
                if ending is not None:
                    return ending
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._every_s)

    async def _end(self, one: _Work, ending: Ending) -> None:
        """Record the end of a hand-over, and withdraw the dropped calls."""
        ref, problem = one.about.ref, PROBLEMS[ending.outcome]
        for claim in one.claims:
            end = wire.HandOverEnd(
                item_id=claim.item_id,
                fence=claim.fence,
                taken=not problem,
                problem=problem,
                detail=ending.detail[: wire.MAX_DETAIL],
            )
            await self._gate.hand_over(end)
        if one.dropped:
            run = RunRef(agent=ref.agent, thread=ref.thread)
            await self._gate.withdraw(run, tuple(one.dropped))
        if problem in {"refused", "failed"}:
            logger.error("answer.failed thread=%s question=%s", ref.thread, ref.ns)
        self._forget(one)

    def _forget(self, one: _Work) -> None:
        self._open.get(one.about.ref.thread, {}).pop(one.about.name, None)

    async def _release(self, one: _Work) -> None:
        """Release the claims, because nothing was sent."""
        for item_id, fence in one.claims:
            await self._gate.release(item_id, fence, has_begun=False)

    async def _beat(self, claims: Iterable[Claim]) -> None:
        for item_id, fence in claims:
            await self._gate.heartbeat(item_id, fence)


def _named(questions: Iterable[Question]) -> dict[str, Question]:
    """Return questions by message id, without those that are not strict JSON."""
    found = dict[str, Question]()
    for one in questions:
        with suppress(BadJson):
            found[dialects.message_id(one)] = one
    return found


def is_known(question: Question) -> bool:
    """Return True if Keyturn can show this question to people."""
    return _of_keyturn(question) is not None or dialects.read(question) is not None


def _of_keyturn(question: Question) -> http_api.OpenQuestion | None:
    """Return the call in a question of Keyturn's middleware; None for others."""
    value = question.value
    if not isinstance(value, dict):
        return None
    given = cast("JsonObject", value)
    names = {name: given.get(name) for name in ("item_id", "action_hash")}
    try:
        return http_api.OpenQuestion.model_validate({**names, "kind": given["type"]})
    except (KeyError, ValidationError):
        return None


def _question_about(call: Verdict) -> http_api.OpenQuestion:
    return http_api.OpenQuestion(
        kind="keyturn.approval", item_id=call.item_id, action_hash=call.action_hash
    )


def _is_approved(ends: Sequence[Ended] | None, place: int) -> bool:
    """Return True if a call must be claimed; always if its question is gone."""
    if ends is None:
        return True
    end = ends[place]
    if isinstance(end, Verdict):
        return end.kind is VerdictKind.RUN
    return end.type in {AnswerKind.APPROVE, AnswerKind.EDIT}


def _refusal(call: Verdict, reason: str) -> wire.Answer:
    return wire.Answer(
        type=AnswerKind.WITHDRAWN,
        item_id=call.item_id,
        action_hash=call.action_hash,
        message=reason,
    )


def _listed(approval: ApprovalView, host: str) -> _Open | None:
    """Return the open calls of an approval; None if another program has them."""
    is_open = any(call.state is not ItemState.NOT_TAKEN for call in approval.calls)
    if not is_open or any(call.handed_to != host for call in approval.calls):
        return None
    calls = [
        Verdict(
            kind=VerdictKind.HOLD,
            tool=call.tool,
            tool_call_id=call.tool_call_id,
            tier=call.tier,
            args_hash="",
            item_id=call.id,
            action_hash=call.action_hash,
        )
        for call in approval.calls
    ]
    ref = TurnRef(
        agent=approval.agent,
        thread=approval.thread,
        ns=approval.ns,
        message_id=approval.message_id,
    )
    return _Open(ref, tuple(calls))
