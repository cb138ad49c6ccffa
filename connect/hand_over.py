"""Hand people's decisions over to the agents of an Agent Server.

One loop serves a server: it finds the threads that wait, asks people about their
questions, and hands each complete decision over. All facts are in the server and the
gateway, so another process can continue after a crash:

- The thread is read right before an answer is sent, to check that it still asks.
- Each answer carries a mark, which is looked up before sending. So an answer is sent
  once, and a refused answer is not sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from keyturn.connect.agent_server import (
    AgentServer,
    HostUnavailable,
    Position,
    Runs,
    Sent,
    Waiting,
)
from keyturn.connect.gate import Following, Gate, Listing, each_listed
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.clock import now_s
from keyturn.gateway.dialects import dialects
from keyturn.gateway.dialects.asked import Question
from keyturn.gateway.errors import BadJson, KeyturnError, NotAllowed
from keyturn.gateway.failures import Outage, any_failure, log_failure
from keyturn.gateway.protocol import http_api, wire
from keyturn.gateway.protocol.approval_views import ApprovalView
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import TurnRef, Verdict, VerdictKind
from keyturn.gateway.resume.hand_over import Delivery, Ending, HandOver, Shown
from keyturn.gateway.resume.threads import question_of
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

_NO_WORD = "The agent's question takes no such answer."
_CANNOT_ASK_AGAIN = (
    "The agent asks in a step with other work, which would run again. Send the agent a "
    "message instead: it then drops this question."
)


class Connector:
    """Asks people about a server's questions, and hands their decisions over.

    Args:
        host: the server that runs the agents.
        gate: the gateway.
        every_s: pause between two requests for waiting threads, in seconds.
    """

    def __init__(self, host: AgentServer, gate: Gate, *, every_s: float = 2.0) -> None:
        self._host, self._gate, self._every_s = host, gate, every_s
        self._hand_over = HandOver(gate, self._found, gate.withdraw)
        self._open = dict[str, dict[str, Shown]]()
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
        outage = Outage(logger, self._host.name)
        try:
            while True:
                try:
                    await self.tick()
                    outage.ends()
                except HostUnavailable as error:
                    outage.goes_on(error)
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
        after, outage = "", Outage(logger, "the gateway")
        while True:
            try:
                page = await self._gate.events(Following(after=after, wait_s=FOLLOW_S))
                outage.ends()
            except KeyturnError as error:
                outage.goes_on(error)
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
            async for approval in each_listed(self._gate, Listing(agent, limit=200)):
                try:
                    await self._ask_again(approval)
                except KeyturnError as error:
                    # Tried again later; the other threads do not wait for this one.
                    thread = approval.thread
                    logger.warning("thread.unasked thread=%s error=%s", thread, error)
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
                if reply is None:
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
                Delivery(one, None, name)
                for name, one in known.items()
                if name not in asked
            ]
            for name in asked.keys() & known.keys():
                ready = await self._hand_over.decided(known[name])
                if ready is not None:
                    work.append(ready)
        if work:
            await self._settle(thread, work)

    async def _ask(
        self, question: Question, name: str, agent: str, thread: str
    ) -> Shown | None:
        """Ask people about a question; return None if it cannot be shown to them."""
        run = RunRef(agent=agent, thread=thread)
        if (ours := question_of(question)) is not None:
            ref = TurnRef(agent=agent, thread=thread, ns=question.id, message_id=name)
            return Shown(ref, question=question, ours=ours)
        try:
            shown = await self._hand_over.ask(question, run, self._host.name)
        except (NotAllowed, BadJson) as error:
            log_failure(logger, error, "question.refused thread=%s", thread)
            return None
        if shown is None:
            logger.warning("question.unknown thread=%s question=%s", thread, name)
        return shown

    async def _found(
        self, run: RunRef, questions: Sequence[http_api.OpenQuestion]
    ) -> Mapping[http_api.OpenQuestion, tuple[JsonObject, int]]:
        asked = http_api.AnswersQuestion(run=run, questions=tuple(questions))
        found = await self._gate.answers(asked)
        return {one.question: (one.answer, one.times) for one in found}

    async def _settle(self, thread: str, work: Sequence[Delivery]) -> None:
        """Look the marks up, claim, send each unsent answer, and record its end."""
        asked_s = now_s()
        runs = await self._host.runs(thread)
        left = [one for one in work if not await self._was_sent(one, runs)]
        if len(left) < len(work):
            # Waiting for those ends may have taken long, so read the thread again.
            self._changed.add(thread)
            self._wake.set()
            return
        left = [one for one in work if await self._is_claimed(one)]
        if not left:
            return
        lease_s = min([LEASE_S, *(one.lease_s for one in left)])
        async with beating(lease_s / 3, partial(self._beat, [*left])):
            at = await self._host.read(thread)
            named = _named(at.questions) if at else {}
            gone = Ending("answered_elsewhere" if at else "deleted")
            for one in [one for one in left if one.about.name not in named]:
                await self._end(one, gone)
                left.remove(one)
            ready = [one for one in left if await self._is_written(one)]
            await self._hand_over.release(one for one in left if one not in ready)
            if at is None or not ready:
                return
            # If this process was suspended, another may have claimed and sent.
            if now_s() > asked_s + lease_s or not await self._beat(ready):
                logger.warning("answer.late thread=%s", thread)
                await self._hand_over.release(ready)
                return
            await self._send(at, runs.newest, ready)

    async def _is_claimed(self, one: Delivery) -> bool:
        """Claim the approved calls of a question; return False to try again later."""
        reply = await self._hand_over.claim(one)
        if isinstance(reply, wire.HandedOver):
            logger.warning("question.open_again question=%s", one.about.name)
            self._forget(one)
        return reply is None

    async def _was_sent(self, one: Delivery, runs: Runs) -> bool:
        """Record the end of an earlier answer; return False if there is none."""
        sent = [it for it in runs.ours if one.mark in it.marks]
        if not sent:
            return False
        ending = await self._ended(sent[0], one)
        # A gated agent claims by itself, so a repeated answer runs a call once.
        is_tried_again = one.about.ours is not None and len(sent) < TRIES
        if is_tried_again and ending.problem == "failed":
            return False
        ids = {call.item_id for call in one.about.verdicts if call.item_id}
        one.claims = [it for it in sent[0].claims if it.item_id in ids]
        # Calls without a claim were rejected.
        one.dropped = [*(ids - {it.item_id for it in one.claims})]
        await self._end(one, ending)
        return True

    async def _is_written(self, one: Delivery) -> bool:
        """Write the answer to a question; return False if its format cannot do it."""
        if one.is_written():
            return True
        if one.ends is not None:
            # Do not log why: it may quote a person.
            logger.warning("question.unanswered question=%s", one.about.name)
            # People approved its calls, and learn that the agent did not take it.
            await self._end(one, Ending("refused" if one.claims else "", _NO_WORD))
            one.claims.clear()
        return False

    async def _send(self, at: Position, newest: str, ready: Sequence[Delivery]) -> None:
        """Send all answers in one request, and record their ends."""
        answers = {one.about.ref.ns: one.answer for one in ready}
        claims = tuple(claim for one in ready for claim in one.claims)
        marks = tuple(one.mark for one in ready)
        mark = Sent(at.thread, "", marks, claims, at.checkpoint, newest)
        try:
            sent = await self._host.send(at, answers, mark)
        except HostUnavailable as error:
            logger.warning("answer.unconfirmed thread=%s error=%s", at.thread, error)
            sent = await self._arrived(mark)
        if sent is None:
            await self._hand_over.release(ready)
            return
        for one in ready:
            if isinstance(sent, Sent):
                await self._end(one, await self._ended(sent, one))
            else:
                await self._end(one, sent)

    async def _arrived(self, mark: Sent) -> Sent | None:
        """Look for the marks of an answer that the server did not confirm."""
        while True:
            await asyncio.sleep(self._every_s)
            with suppress(HostUnavailable):
                found = (await self._host.runs(mark.thread)).ours
                return next((it for it in found if it.marks == mark.marks), None)

    async def _ended(self, sent: Sent, one: Delivery) -> Ending:
        """Wait until the server shows how an answer ended."""
        pause_s = 0.05
        while True:
            with suppress(HostUnavailable):
                ending = await self._host.ending(sent, one.about.ref.ns)
                if ending is not None:
                    return ending
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, self._every_s)

    async def _end(self, one: Delivery, ending: Ending) -> None:
        await self._hand_over.end(one, ending)
        self._forget(one)

    def _forget(self, one: Delivery) -> None:
        self._open.get(one.about.ref.thread, {}).pop(one.about.name, None)

    async def _beat(self, each: Iterable[Delivery]) -> bool:
        """Keep the claims; return False if one of them is lost."""
        claims = [claim for one in each for claim in one.claims]
        return all([await self._gate.heartbeat(*claim) for claim in claims])


def _named(questions: Iterable[Question]) -> dict[str, Question]:
    return {dialects.message_id(one): one for one in questions}


def _listed(approval: ApprovalView, host: str) -> Shown | None:
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
    return Shown(ref, tuple(calls))
