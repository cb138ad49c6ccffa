"""A remote program waits for its answers, and lists and withdraws pending calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.client.http_connection import HttpConnection
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.protocol import http_api
from keyturn.gateway.protocol.http_api import (
    Answered,
    AnswersQuestion,
    OpenQuestion,
    RunFacts,
    RunQuestion,
    Withdrawal,
)
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    ClaimRequest,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from tests.api.api_stack import ApiStack
from tests.service.harness import ANA, DAN, ServiceHarness

REF = TurnRef(agent="support", thread="t1", message_id="m1")
RUN = REF.run_ref
NEVER = OpenQuestion(
    kind="keyturn.approval", item_id=f"ap_default_{'0' * 32}.0", action_hash="sha256:0"
)


def turn(ref: TurnRef = REF, calls: int = 1) -> Turn:
    return Turn(
        ref=ref,
        calls=tuple(
            ProposedCall(
                tool="process_refund", args={"amount": n}, tool_call_id=f"c{n}"
            )
            for n in range(calls)
        ),
    )


def question(verdict: Verdict) -> OpenQuestion:
    return OpenQuestion(
        kind="keyturn.approval",
        item_id=verdict.item_id,
        action_hash=verdict.action_hash,
    )


def asking(*verdicts: Verdict, run: RunRef = RUN, wait_s: float = 0) -> AnswersQuestion:
    return AnswersQuestion(
        run=run, questions=tuple(map(question, verdicts)), wait_s=wait_s
    )


@dataclass
class Program:
    """A program with a key."""

    stack: ApiStack
    connection: HttpConnection

    async def submit(self, submitted: Turn) -> tuple[Verdict, ...]:
        return await self.connection.ask(http_api.SUBMIT, submitted)

    async def answers(self, asked: AnswersQuestion) -> tuple[Answered, ...]:
        return await self.connection.ask(http_api.ANSWERS, asked, wait_s=asked.wait_s)

    @property
    def harness(self) -> ServiceHarness:
        return self.stack.harness

    async def approve(self, verdict: Verdict) -> object:
        click = await self.harness.click(verdict)
        return await self.harness.reviews.decide(click, Approve(), ANA)


@asynccontextmanager
async def program(stack: ApiStack, key: str | None = None) -> AsyncGenerator[Program]:
    connection = HttpConnection(stack.url, key or stack.key())
    try:
        yield Program(stack, connection)
    finally:
        await connection.aclose()


async def test_a_wait_ends_with_the_decision(stack: ApiStack) -> None:
    async with program(stack) as mine:
        (verdict,) = await mine.submit(turn())
        waiting = [
            asyncio.create_task(mine.answers(asking(verdict, wait_s=30)))
            for _ in range(5)
        ]
        done, _ = await asyncio.wait(waiting, timeout=0.2)
        await mine.approve(verdict)
        async with asyncio.timeout(30):
            found = await asyncio.gather(*waiting)

    assert not done
    assert [one.answer["type"] for (one,) in found] == ["approve"] * 5


async def test_a_question_that_nobody_knows_is_answered(stack: ApiStack) -> None:
    async with program(stack) as mine:
        [answered] = await mine.answers(
            AnswersQuestion(run=RUN, questions=(NEVER,), wait_s=30)
        )

    assert answered.answer["type"] == "withdrawn"


async def test_an_agent_with_another_name_is_told_so(stack: ApiStack) -> None:
    key = stack.key(agents=["support", "billing"])
    async with program(stack, key) as mine:
        (verdict,) = await mine.submit(turn())
        with pytest.raises(NotAllowed, match="calls itself 'support'"):
            await mine.answers(
                asking(verdict, run=RunRef(agent="billing", thread="t1"))
            )


async def test_what_waits_is_listed_and_withdrawn(stack: ApiStack) -> None:
    async with program(stack) as mine:
        first, second = await mine.submit(turn(calls=2))
        ask = mine.connection.ask
        listed = await ask(http_api.PENDING, RunQuestion(run=RUN))
        chosen = Withdrawal(run=RUN, item_ids=(first.item_id, "no such id"))
        ended = await ask(http_api.WITHDRAW, chosen)
        again = await ask(http_api.WITHDRAW, chosen)
        [answered] = await mine.answers(asking(first, second, wait_s=30))
        rest = await ask(http_api.WITHDRAW, Withdrawal(run=RUN))
        left = await ask(http_api.PENDING, RunQuestion(run=RUN))

    assert [one.item_id for one in listed] == [first.item_id, second.item_id]
    assert [one.args for one in listed] == [{"amount": 0}, {"amount": 1}]
    assert ended == again == (first.item_id,)
    assert rest == (second.item_id,)
    assert left == ()
    assert (answered.item_id, answered.answer["type"]) == (first.item_id, "withdrawn")
    assert await stack.harness.jobs() == 0


async def test_nobody_who_asked_is_forgotten(stack: ApiStack) -> None:
    async with program(stack) as mine:
        ask = mine.connection.ask
        await ask(http_api.REMEMBER, RunFacts(run=RUN, requester=DAN))
        ben = DAN.with_(user="U0BEN", name="Ben")
        await ask(
            http_api.REMEMBER,
            RunFacts(run=RUN, requester=ben, channel="C0", thread_ts="1.2"),
        )
        await ask(http_api.REMEMBER, RunFacts(run=RUN))
        (verdict,) = await mine.submit(turn())
        approval = await mine.harness.approval(verdict.item_id)
        with pytest.raises(NotAllowed, match="both 'channel'"):
            await ask(http_api.REMEMBER, RunFacts(run=RUN, channel="C0"))
        ana = DAN.with_(user="ana@example.com")
        with pytest.raises(NotAllowed, match="not an id of a Slack user"):
            await ask(http_api.REMEMBER, RunFacts(run=RUN, requester=ana))

    assert approval.requester == ben
    assert approval.origin is not None
    assert sorted(one.user for one in approval.principals) == ["U0BEN", "U0DAN"]


async def test_names_and_turns_are_bounded(stack: ApiStack) -> None:
    long = "n" * 2001
    claim = ClaimRequest(
        item_id=NEVER.item_id, ref=REF, tool="x", tool_call_id="c0", owner="0" * 32
    )
    async with program(stack) as mine:
        ask = mine.connection.ask
        for ref in (
            REF.with_(thread=long),
            REF.with_(ns=long),
            REF.with_(nested_in=RUN.with_(thread=long)),
        ):
            with pytest.raises(NotAllowed, match="2000 characters"):
                await ask(http_api.SUBMIT, turn(ref))
        with pytest.raises(NotAllowed, match="2000 characters"):
            await ask(http_api.SUPERSEDE, REF.with_(message_id=long))
        with pytest.raises(NotAllowed, match="does not fit at owner"):
            await ask(http_api.CLAIM, claim.with_(owner=long))
        for facts in (
            RunFacts(run=RUN, requester=DAN.with_(user="U" * 201)),
            RunFacts(run=RUN, channel="C" * 201, thread_ts="1.2"),
        ):
            with pytest.raises(NotAllowed, match="200 characters at most"):
                await ask(http_api.REMEMBER, facts)
        with pytest.raises(NotAllowed, match="1000 calls"):
            await ask(http_api.SUBMIT, turn(calls=1001))
        any_of: list[JsonValue] = [{"type": "string"}] * 999
        schemas: dict[str, JsonObject] = {f"t{n}": {"anyOf": any_of} for n in range(11)}
        with pytest.raises(NotAllowed, match="10000 parts"):
            await ask(http_api.SUBMIT, turn().with_(schemas=schemas))
        verdicts = await ask(http_api.SUBMIT, turn().with_(says="s" * 3000))

    assert [verdict.kind for verdict in verdicts] == [VerdictKind.HOLD]
