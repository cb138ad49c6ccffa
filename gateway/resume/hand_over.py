"""Hand people's decisions over to agents that run their calls by themselves.

Each question of such an agent is one turn of the gateway. Once every call of a question
is decided, the approved calls are claimed, and the caller sends one answer to the
agent's program: a graph in this process (`keyturn.gateway.resume.own_gates`), or a
server (`keyturn.connect.hand_over`). Last, the end of the claims is recorded. A
decision counts as taken only with proof.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jsonschema import Draft202012Validator
from pydantic import JsonValue
from referencing import Registry

from keyturn.gateway.dialects import dialects
from keyturn.gateway.dialects.asked import Ended, NoWord, Question, is_as_decided
from keyturn.gateway.protocol import wire
from keyturn.gateway.protocol.http_api import HandingGateway, OpenQuestion
from keyturn.gateway.protocol.records import ItemState, NotTaken, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import AnswerKind, TurnRef, Verdict, VerdictKind

logger = logging.getLogger(__name__)


class Ending(NamedTuple):
    """The end of an answer: "" if it was taken, or the problem and the program's error.

    ``refused``: nothing has begun. ``failed``: the agent failed with the answer, at any
    point, or the run was deleted after the answer was sent.
    """

    problem: NotTaken = ""
    detail: str = ""


class Claim(NamedTuple):
    """A claimed call, with the fencing token of its claim."""

    item_id: str
    fence: int


Find = Callable[
    [RunRef, Sequence[OpenQuestion]],
    Awaitable[Mapping[OpenQuestion, tuple[JsonObject, int]]],
]
"""Return the answers to questions, each with its number of revocations."""

Withdraw = Callable[[RunRef, tuple[str, ...]], Awaitable[object]]
"""End calls of a run that the agent no longer asks about."""


@dataclass(frozen=True)
class Shown:
    """A question that people are asked, and the gateway's verdicts on its calls.

    ``question`` is None for calls from the gateway's listing. ``ours`` is the call of a
    gated agent, which Keyturn's middleware has submitted.
    """

    ref: TurnRef
    verdicts: tuple[Verdict, ...] = ()
    question: Question | None = None
    ours: OpenQuestion | None = None

    @property
    def name(self) -> str:
        """Return the name of the question's turn."""
        return self.ref.message_id

    @property
    def asks(self) -> tuple[OpenQuestion, ...]:
        """Return the questions to the gateway about the calls that people decide."""
        held = [one for one in self.verdicts if one.kind is VerdictKind.HOLD]
        return (self.ours,) if self.ours else tuple(map(OpenQuestion.about, held))


@dataclass
class Delivery:
    """The delivery of one answer: the claims of its calls, and the answer.

    Attributes:
        about: the question.
        ends: what became of its calls; None if the thread no longer asks it.
        mark: marks the answer in its thread.
        is_begun: a dead process may have sent the answer.
        answer: the answer, once it is written.
        claims: the claimed calls.
        lease_s: shortest lease of the claims, in seconds.
        dropped: ids of the calls that need no decision any more.
    """

    about: Shown
    ends: list[Ended] | None
    mark: str = ""
    is_begun: bool = False
    answer: JsonValue = None
    claims: list[Claim] = field(default_factory=list[Claim])
    lease_s: float = float("inf")
    dropped: list[str] = field(default_factory=list[str])

    def is_approved(self, place: int) -> bool:
        """Return True if a call must be claimed; always if its question is gone."""
        if self.ends is None:
            return True
        end = self.ends[place]
        if isinstance(end, Verdict):
            return end.kind is VerdictKind.RUN
        return end.type in {AnswerKind.APPROVE, AnswerKind.EDIT}

    def takes(self, place: int, reply: wire.ClaimReply) -> bool:
        """Note the reply to a claim; return False if nothing may be sent."""
        call, ends = self.about.verdicts[place], self.ends
        match reply:
            case wire.Claimed():
                self.claims.append(Claim(call.item_id, reply.fence))
                self.lease_s = min(self.lease_s, reply.lease_s)
                return ends is None or is_as_decided(call, ends[place], reply)
            case wire.HandedOver():
                # Handed over before, and asked again: only people may repeat it.
                return ends is None
            case wire.Refused(state=state, reason=reason):
                if ends is not None:
                    if self.is_begun or state is ItemState.HANDING_OVER:
                        # The program may have taken it: do not send a rejection.
                        return False
                    ends[place] = _refusal(call, reason)
                self.dropped.append(call.item_id)
                return True
            case _:
                return False

    def is_written(self) -> bool:
        """Write the answer; return False if the question takes no such answer."""
        question = self.about.question
        if self.ends is None or question is None:
            return False
        if self.about.ours is None:
            try:
                self.answer = dialects.answer(question, self.ends)
            except NoWord:
                return False
        return fits(self.answer, question.schema)


def fits(answer: JsonValue, schema: JsonObject | None) -> bool:
    """Return True if the agent's schema accepts an answer.

    The schema itself is not checked first, because that is the most expensive step. An
    invalid schema leaves the check to the agent. An empty registry prevents a schema
    from fetching anything.
    """
    if schema is None:
        return True
    validator: Any = Draft202012Validator(schema, registry=Registry())
    try:
        return bool(validator.is_valid(answer))
    except Exception:  # noqa: BLE001 - a foreign value may be no schema at all
        return True


class HandOver:
    """Turns questions into turns of a gateway, and decisions into answers.

    Args:
        gateway: the gateway.
        find: returns the decisions of people.
        withdraw: ends calls.
    """

    def __init__(self, gateway: HandingGateway, find: Find, withdraw: Withdraw) -> None:
        self._gateway, self._find, self._withdraw = gateway, find, withdraw

    async def ask(
        self,
        question: Question,
        run: RunRef,
        program: str,
        schemas: Mapping[str, JsonObject] | None = None,
    ) -> Shown | None:
        """Put a question to people; None if no dialect knows it. Repeating it is safe.

        Args:
            question: a question of another library.
            run: the run of its thread.
            program: name of the program that runs the calls, for people.
            schemas: schemas of tools whose calls the question describes without one.
        """
        asked = dialects.read(question)
        if asked is None:
            return None
        turn = dialects.turn_of(
            question, asked, agent=run.agent, thread=run.thread, handed_to=program
        )
        tools = {call.tool for call in turn.calls}
        known = {tool: one for tool, one in (schemas or {}).items() if tool in tools}
        turn = turn.with_(schemas={**known, **turn.schemas})
        return Shown(turn.ref, await self._gateway.submit(turn), question)

    async def decided(self, about: Shown) -> Delivery | None:
        """Return the decisions on a question; None while one is missing."""
        asks = about.asks
        found: Mapping[OpenQuestion, tuple[JsonObject, int]] = {}
        if asks:
            found = await self._find(about.ref.run_ref, asks)
        if any(one not in found for one in asks):
            return None
        if about.ours is not None:
            answer, times = found[about.ours]
            mark = f"{about.ours.item_id}.{times}"
            return Delivery(about, [], mark, answer=answer)
        ends = [
            wire.Answer.model_validate(found[OpenQuestion.about(one)][0])
            if one.kind is VerdictKind.HOLD
            else one
            for one in about.verdicts
        ]
        return Delivery(about, ends, about.name)

    async def claim(self, one: Delivery) -> wire.ClaimReply | None:
        """Claim the approved calls of a question; None if all claims were granted.

        Otherwise the granted ones are released, and the reply that stopped it is
        returned.
        """
        for place, call in enumerate(one.about.verdicts):
            if not call.item_id or not one.is_approved(place):
                continue
            reply = await self._gateway.claim(
                wire.ClaimRequest(
                    item_id=call.item_id,
                    ref=one.about.ref,
                    tool=call.tool,
                    tool_call_id=call.tool_call_id,
                    owner=uuid.uuid4().hex,
                )
            )
            if not one.takes(place, reply):
                await self.release([one])
                return reply
        return None

    async def end(self, one: Delivery, ending: Ending) -> None:
        """Record the end of a hand-over, and withdraw the dropped calls."""
        ref = one.about.ref
        if not await self.report(one.claims, ending):
            # The answer arrived after its claims were given back: claim again.
            one.claims.clear()
            await self.claim(one)
            await self.report(one.claims, ending)
        if one.dropped:
            await self._withdraw(ref.run_ref, tuple(one.dropped))
        if ending.problem in {"refused", "failed"}:
            logger.error("answer.failed thread=%s question=%s", ref.thread, ref.ns)

    async def report(self, claims: Iterable[Claim], ending: Ending) -> bool:
        """Record the end of claims; return False if one of them is lost."""
        are_recorded = True
        for claim in claims:
            end = wire.HandOverEnd(
                item_id=claim.item_id,
                fence=claim.fence,
                taken=not ending.problem,
                problem=ending.problem,
                detail=ending.detail[: wire.MAX_DETAIL],
            )
            if not await self._gateway.hand_over(end):
                logger.warning("hand_over.lost item=%s", claim.item_id)
                are_recorded = False
        return are_recorded

    async def release(self, each: Iterable[Delivery]) -> None:
        """Release the claims, because nothing was sent."""
        for one in each:
            for item_id, fence in one.claims:
                await self._gateway.release(item_id, fence, has_begun=False)
            one.claims.clear()


def _refusal(call: Verdict, reason: str) -> wire.Answer:
    return wire.Answer(
        type=AnswerKind.WITHDRAWN,
        item_id=call.item_id,
        action_hash=call.action_hash,
        message=reason,
    )
