"""Ask people the questions of a graph that asks by itself, and hand it their decisions.

A stock graph pauses with LangChain's middleware, or with `interrupt`. Each of its open
questions is a turn of the gateway; the graph runs the approved calls by itself. The
caller has the thread's lease, so an earlier process that claimed a call is no longer at
work.

A decision is sent once. The checkpoints of the step that gets it name its question, so
a later process knows whether the graph took it. Only a process that dies while the
graph's own node works on a decision leaves the question open; the decision is then sent
again, as LangGraph itself runs an interrupted node again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import JsonValue

from keyturn.gateway.dialects import dialects
from keyturn.gateway.dialects.asked import Ended, NoWord, Question, is_as_decided
from keyturn.gateway.errors import GraphError, ThreadUnavailable
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.http_api import OpenQuestion
from keyturn.gateway.protocol.port import Gateway
from keyturn.gateway.protocol.records import ItemState, NotTaken, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.resume.thread_state import (
    PendingInterrupt,
    ThreadState,
    fits,
    question_of,
)

logger = logging.getLogger(__name__)

Found = Mapping[OpenQuestion, JsonObject]


class StoppedInside(GraphError):
    """A graph stopped with an error while it worked on a decision.

    A call may have run, so the decision is not sent again.
    """


CANNOT_ASK_AGAIN = (
    "This agent cannot ask again by itself. Send it a message: it then drops this "
    "question."
)
"""LangGraph would run an open question with the answer that it has, and one that is
asked anew together with the other calls of its step, which may have run.
"""


@dataclass(frozen=True)
class HandedItem:
    """A call of a graph that asks by itself, and has no end yet.

    ``name`` is that of its question's turn; ``fence`` that of its last claim.
    """

    id: str
    name: str
    state: ItemState
    fence: int


@dataclass
class Decided:
    """A question with a decision on each of its calls.

    Attributes:
        question: the open question.
        name: of its turn; also the mark of the checkpoints that follow its answer.
        value: the answer.
        claims: id and fence of the calls claimed for this answer.
    """

    question: PendingInterrupt
    name: str
    value: JsonValue = None
    claims: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])


@dataclass(frozen=True)
class _Shown:
    """A question that people are asked, and the gateway's verdicts on its calls."""

    question: PendingInterrupt
    ref: wire.TurnRef
    verdicts: tuple[wire.Verdict, ...]

    @property
    def questions(self) -> tuple[OpenQuestion, ...]:
        """Return the questions to the gateway about the calls that people decide."""
        held = wire.VerdictKind.HOLD
        return tuple(_about(one) for one in self.verdicts if one.kind is held)

    def ends(self, found: Found) -> list[Ended] | None:
        """Return what became of each call; None while people decide."""
        if any(one not in found for one in self.questions):
            return None
        held = wire.VerdictKind.HOLD
        return [
            wire.Answer.model_validate(found[_about(one)]) if one.kind is held else one
            for one in self.verdicts
        ]


class HandingGateway(Gateway, Protocol):
    """A gateway that records how hand-overs end."""

    async def hand_over(self, end: wire.HandOverEnd) -> bool:
        """Record the end of a hand-over; return False when the claim is lost."""
        ...

    async def report_asked_again(self, report: wire.AskedAgain) -> bool:
        """Record whether the agent asked again; False if nobody wants that."""
        ...


class HandedCalls(Protocol):
    """A gateway's records of the calls that threads of this process hand over."""

    @property
    def gateway(self) -> HandingGateway:
        """Return the agents' gateway."""
        ...

    async def found(
        self, run: RunRef, questions: Sequence[OpenQuestion]
    ) -> Mapping[OpenQuestion, tuple[JsonObject, int]]:
        """Return the answers to questions, each with its number of revocations."""
        ...

    async def handed(self, run: RunRef) -> Sequence[HandedItem]:
        """Return the calls of a run to hand over that have no end yet."""
        ...

    async def withdraw(
        self, run: RunRef, item_ids: Collection[str] | None = None
    ) -> tuple[str, ...]:
        """End calls of a run that the agent no longer asks about."""
        ...


class HandOver:
    """The questions of graphs that ask by themselves, as turns of a gateway.

    The caller has the lease of the thread in every method.

    Args:
        calls: the gateway's records.
    """

    def __init__(self, calls: HandedCalls) -> None:
        self._calls = calls

    async def ready(self, run: RunRef, state: ThreadState) -> list[Decided]:
        """Ask people all questions of a thread; return those to answer now, claimed.

        Raises:
            ThreadUnavailable: another process may be handing one over.
        """
        shown = await self._ask(run, state)
        if not shown:
            return []
        begun = await self._take_back(run, state)
        ready: list[Decided] = []
        for one, ends in await self._decided(run, shown):
            is_begun = one.ref.message_id in begun
            try:
                decided = await self._claim(one, ends, is_begun=is_begun)
            except NoWord:
                continue  # `unanswerable` returns it
            if decided is None:
                continue
            ready.append(decided)
            if one.question.schema is not None:
                # If one of several answers is refused, LangGraph may have run the
                # calls of the others: an answer that it checks is sent alone.
                await self.release(ready[:-1])
                return [decided]
        return ready

    async def waiting(
        self, run: RunRef, state: ThreadState
    ) -> tuple[OpenQuestion, ...]:
        """Return the questions about a thread's calls that people have to decide."""
        return tuple(
            each for one in await self._ask(run, state) for each in one.questions
        )

    async def unanswerable(
        self, run: RunRef, state: ThreadState
    ) -> dict[str, PendingInterrupt]:
        """Return the questions that no answer can come for, by id.

        They are unknown, or decided in a way that their format has no word for.
        """
        shown = await self._ask(run, state)
        known = {one.question.id for one in shown}
        left = {
            one.id: one
            for one in state.pending
            if question_of(one) is None and one.id not in known
        }
        for one, ends in await self._decided(run, shown):
            if _value(one.question, ends) is None:
                left[one.question.id] = one.question
        return left

    async def release(self, ready: Iterable[Decided]) -> None:
        """Give claims back, because nothing was sent."""
        for one in ready:
            for item_id, fence in one.claims:
                await self._gateway.release(item_id, fence, has_begun=False)
            one.claims.clear()

    async def end(
        self, decided: Decided, problem: NotTaken = "", detail: str = ""
    ) -> None:
        """Record that the graph took a decision, or why it did not."""
        for item_id, fence in decided.claims:
            await self._end(item_id, fence, problem, detail)

    async def stopped(
        self,
        run: RunRef,
        runner: Runner,
        ready: Sequence[Decided],
        error: Exception,
    ) -> None:
        """Record what became of decisions when the step that got them failed.

        Raises:
            StoppedInside: the graph failed while it worked on one of them.
        """
        asked = names_of((await runner.probe(run.thread)).pending)
        inside = [one for one in ready if one.name in asked]
        for one in ready:
            # Without its question, it failed later.
            problem: NotTaken = "failed" if one in inside else ""
            detail = f"{type(error).__name__}: {error}" if one in inside else ""
            await self.end(one, problem, detail)
        if inside or await runner.stopped_in_tools(run.thread):
            raise StoppedInside(
                f"The agent {run.agent!r} stopped with {type(error).__name__} while it "
                f"worked on a decision in its thread {run.thread!r}. A call may have "
                "run, and Try again could run it a second time: look first. Or send "
                "the agent a message, which drops the call."
            ) from error

    async def settle(self, run: RunRef, runner: Runner, state: ThreadState) -> None:
        """End the calls whose question is no longer open; the thread rests."""
        asked = names_of(state.pending)
        left = [one for one in await self._calls.handed(run) if one.name not in asked]
        for one in left:
            if one.state is ItemState.HANDING_OVER:
                is_taken = await runner.has_taken_answer(run.thread, one.name)
                problem: NotTaken = "" if is_taken else "answered_elsewhere"
                await self._end(one.id, one.fence, problem)
        dropped = [one.id for one in left if one.state is not ItemState.HANDING_OVER]
        if dropped:
            await self._calls.withdraw(run, dropped)

    @property
    def _gateway(self) -> HandingGateway:
        return self._calls.gateway

    async def _ask(self, run: RunRef, state: ThreadState) -> list[_Shown]:
        """Open a turn for each question that a dialect knows; repeating it is safe."""
        shown: list[_Shown] = []
        schemas = state.schemas or {}
        for one in state.pending if state.hands_over else ():
            asked = None if question_of(one) else dialects.read(question(one))
            if asked is None:
                continue
            turn = dialects.turn_of(
                question(one),
                asked,
                agent=run.agent,
                thread=run.thread,
                handed_to=f"agent {run.agent}",
            )
            tools = {call.tool for call in turn.calls} & schemas.keys()
            known = {tool: schemas[tool] for tool in tools}
            turn = turn.with_(schemas={**known, **turn.schemas})
            shown.append(_Shown(one, turn.ref, await self._gateway.submit(turn)))
        return shown

    async def _decided(
        self, run: RunRef, shown: Sequence[_Shown]
    ) -> list[tuple[_Shown, list[Ended]]]:
        asks = [each for one in shown for each in one.questions]
        answers: Mapping[OpenQuestion, tuple[JsonObject, int]] = {}
        if asks:
            answers = await self._calls.found(run, asks)
        found = {asked: answer for asked, (answer, _) in answers.items()}
        return [(one, ends) for one in shown if (ends := one.ends(found)) is not None]

    async def _claim(
        self, shown: _Shown, ends: list[Ended], *, is_begun: bool
    ) -> Decided | None:
        """Claim the approved calls of a question; None if it is not to be answered.

        ``is_begun``: a dead process may have sent the answer.

        Raises:
            NoWord: the format cannot say what became of a call.
        """
        decided = Decided(shown.question, shown.ref.message_id)
        if _value(shown.question, ends) is None:
            raise NoWord("The answer does not fit its question.")
        for place, call in enumerate(shown.verdicts):
            if not call.item_id or not _runs(ends[place]):
                continue
            match await self._granted(shown.ref, call):
                case wire.Claimed() as claimed:
                    decided.claims.append((call.item_id, claimed.fence))
                    if not is_as_decided(call, ends[place], claimed):
                        await self.release([decided])
                        return None
                case wire.Refused(reason=reason) if not is_begun:
                    ends[place] = _denied(call, reason)
                case reply:
                    # It went back to people, was handed over before, or may have been.
                    await self.release([decided])
                    if isinstance(reply, wire.Busy):
                        raise ThreadUnavailable("Another process hands it over.")
                    if isinstance(reply, wire.HandedOver):
                        await self._refuse_to_ask_again(call.item_id)
                    return None
        decided.value = _value(shown.question, ends)
        if decided.value is None:
            await self.release([decided])
            raise NoWord("A refusal has no word in the format of its question.")
        return decided

    async def _refuse_to_ask_again(self, item_id: str) -> None:
        """Tell people who want it that the agent does not ask again."""
        report = wire.AskedAgain(item_id=item_id, ok=False, detail=CANNOT_ASK_AGAIN)
        await self._gateway.report_asked_again(report)

    async def _granted(self, ref: wire.TurnRef, call: wire.Verdict) -> wire.ClaimReply:
        return await self._gateway.claim(
            wire.ClaimRequest(
                item_id=call.item_id,
                ref=ref,
                tool=call.tool,
                tool_call_id=call.tool_call_id,
                owner=uuid.uuid4().hex,
            )
        )

    async def _take_back(self, run: RunRef, state: ThreadState) -> set[str]:
        """Free the calls that a dead process claimed; return their open questions."""
        asked, begun = names_of(state.pending), set[str]()
        for one in await self._calls.handed(run):
            if one.state is ItemState.HANDING_OVER and one.name in asked:
                begun.add(one.name)
                await self._gateway.release(one.id, one.fence, has_begun=False)
        return begun

    async def _end(
        self, item_id: str, fence: int, problem: NotTaken, detail: str = ""
    ) -> None:
        end = wire.HandOverEnd(
            item_id=item_id,
            fence=fence,
            taken=not problem,
            problem=problem,
            detail=detail[: wire.MAX_DETAIL],
        )
        if not await self._gateway.hand_over(end):
            logger.warning("hand_over.lost item=%s", item_id)


def question(pending: PendingInterrupt) -> Question:
    """Return an open question of a thread in the form that dialects read."""
    return Question(pending.id, pending.value, pending.schema)


def names_of(pending: Iterable[PendingInterrupt]) -> set[str]:
    """Return the names of the turns of all questions of other libraries."""
    return {
        dialects.message_id(question(one))
        for one in pending
        if question_of(one) is None
    }


def _value(pending: PendingInterrupt, ends: Sequence[Ended]) -> JsonValue:
    """Return the answer to a question; None if there is none that its graph takes."""
    try:
        value = dialects.answer(question(pending), ends)
    except NoWord:
        return None
    return value if fits(value, pending.schema) else None


def _about(verdict: wire.Verdict) -> OpenQuestion:
    return OpenQuestion(
        kind=wire.APPROVAL_INTERRUPT,
        item_id=verdict.item_id,
        action_hash=verdict.action_hash,
    )


def _runs(end: Ended) -> bool:
    if isinstance(end, wire.Verdict):
        return end.kind is wire.VerdictKind.RUN
    return end.type in {wire.AnswerKind.APPROVE, wire.AnswerKind.EDIT}


def _denied(call: wire.Verdict, reason: str) -> wire.Verdict:
    return call.with_(kind=wire.VerdictKind.DENY, reason=reason)
