"""Who names no lease on a thread, or that of another one, is late while one is held."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import LeaseLost
from keyturn.gateway.protocol import run_context
from keyturn.gateway.protocol.http_api import LeaseRef
from keyturn.gateway.protocol.records import Result, RunRef
from keyturn.gateway.protocol.wire import (
    CallProgress,
    Claimed,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
)
from keyturn.gateway.remote.program import RemoteThreads
from tests.api.api_stack import ApiStack
from tests.service.harness import ANA, claim_of

RUN = RunRef(agent="support", thread="t1")
OTHER = RunRef(agent="support", thread="t2")
REF = TurnRef(agent="support", thread="t1", message_id="m1")
INSIDE = REF.with_(thread="inner", nested_in=RUN)
MINE, OTHERS = "a" * 32, "b" * 32


def turn(ref: TurnRef, tool: str = "process_refund") -> Turn:
    call = ProposedCall(tool=tool, args={"a": 1}, tool_call_id="c1")
    return Turn(ref=ref, calls=(call,))


def begin(ref: TurnRef) -> CallProgress:
    return CallProgress(verb="begin", ref=ref, tool="get_order", tool_call_id="c1")


@contextmanager
def under(run: RunRef, token: str, fence: int) -> Generator[None]:
    text = LeaseRef(run, token, fence).text
    with run_context.under_lease(partial(str, text)):
        yield


async def approved(stack: ApiStack, gateway: HttpGateway) -> Verdict:
    (verdict,) = await gateway.submit(turn(REF))
    click = await stack.harness.click(verdict)
    await stack.harness.reviews.decide(click, Approve(), ANA)
    return verdict


Ask = Callable[[HttpGateway, Verdict], Awaitable[Any]]
ASKS: dict[str, Ask] = {
    "submit": lambda it, _: it.submit(turn(REF.with_(message_id="m2"))),
    "submit inside": lambda it, _: it.submit(turn(INSIDE)),
    "claim": lambda it, verdict: it.claim(claim_of(REF, verdict)),
    "begin": lambda it, _: it.report_progress(begin(REF)),
    "supersede": lambda it, _: it.supersede(REF),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
async def test_nobody_acts_for_a_thread_beside_the_holder_of_its_lease(
    stack: ApiStack, gateway: HttpGateway, threads: RemoteThreads, ask: Ask
) -> None:
    verdict = await approved(stack, gateway)
    held = await threads.lease_step(RUN, "take", token=MINE)
    others = await threads.lease_step(OTHER, "take", token=OTHERS)

    with pytest.raises(LeaseLost):
        await ask(gateway, verdict)
    # The lease on another thread is none on this one.
    with under(OTHER, OTHERS, others.fence), pytest.raises(LeaseLost):
        await ask(gateway, verdict)
    (outcome,) = await gateway.outcomes(REF)
    with under(RUN, MINE, held.fence):
        await ask(gateway, verdict)

    assert outcome.state == "authorized"


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
async def test_a_program_that_takes_no_leases_needs_none(
    stack: ApiStack, gateway: HttpGateway, threads: RemoteThreads, ask: Ask
) -> None:
    verdict = await approved(stack, gateway)
    await threads.lease_step(OTHER, "take", token=OTHERS)

    await ask(gateway, verdict)


async def test_a_lease_that_was_given_back_keeps_nobody_out(
    gateway: HttpGateway, threads: RemoteThreads
) -> None:
    await threads.lease_step(RUN, "take", token=MINE)
    await threads.lease_step(RUN, "free", token=MINE)

    assert await gateway.submit(turn(REF))


async def test_what_came_of_a_claim_is_told_by_its_own_fence(
    stack: ApiStack, gateway: HttpGateway, threads: RemoteThreads
) -> None:
    verdict = await approved(stack, gateway)
    claimed = await gateway.claim(claim_of(REF, verdict))
    assert isinstance(claimed, Claimed)
    await threads.lease_step(RUN, "take", token=MINE)

    kept = await gateway.heartbeat(verdict.item_id, claimed.fence)
    done = await gateway.finish(verdict.item_id, claimed.fence, Result(ok=True))

    assert (kept, done) == (True, True)
