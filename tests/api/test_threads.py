"""A program with an API key runs threads itself: leases, fences, pending calls."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import LeaseLost, NotAllowed
from keyturn.gateway.protocol.http_api import (
    LEASE_HEADER,
    MAX_FENCE,
    LeaseRef,
    read_lease,
)
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
from keyturn.gateway.store.runs.threads import REACH
from tests.api.api_stack import ApiStack, serving, under
from tests.service.harness import ANA, claim_of

RUN = RunRef(agent="support", thread="t 1/ä%")
REF = TurnRef(agent=RUN.agent, thread=RUN.thread, message_id="m1")
MINE, OTHERS = "a" * 32, "b" * 32


def turn(*ids: str, ref: TurnRef = REF) -> Turn:
    calls = (
        ProposedCall(tool="process_refund", args={"a": 1}, tool_call_id=each)
        for each in ids
    )
    return Turn(ref=ref, calls=tuple(calls))


@asynccontextmanager
async def leased(threads: RemoteThreads, run: RunRef = RUN) -> AsyncGenerator[None]:
    held = await threads.lease_step(run, "take", token=MINE)
    with under(run, MINE, held.fence):
        yield


async def settled_under_a_lease(threads: RemoteThreads) -> None:
    with under(RUN, MINE, 1):
        await threads.settle(RUN, [], is_finished=True)


async def test_one_process_at_a_time_runs_a_thread(threads: RemoteThreads) -> None:
    first = await threads.lease_step(RUN, "take", token=MINE)
    again = await threads.lease_step(RUN, "take", token=MINE)
    busy = await threads.lease_step(RUN, "take", token=OTHERS)
    stolen = await threads.lease_step(RUN, "free", token=OTHERS)
    kept = await threads.lease_step(RUN, "keep", token=MINE)
    above = await threads.lease_step(RUN, "renumber", token=MINE, above=50)
    free = await threads.lease_step(RUN, "free", token=MINE)
    lost = await threads.lease_step(RUN, "keep", token=MINE)
    second = await threads.lease_step(RUN, "take", token=OTHERS)

    assert (first.state, busy.state, stolen.state) == ("held", "busy", "lost")
    assert (free.state, lost.state) == ("free", "lost")
    assert again.fence == kept.fence > first.fence
    assert above.fence == 51
    assert second.fence > above.fence
    assert first.lease_s > 0
    assert first.name == second.name != ""


@pytest.mark.parametrize("above", [REACH + 10, MAX_FENCE - 2])
async def test_a_key_cannot_use_up_fences(threads: RemoteThreads, above: int) -> None:
    first = await threads.lease_step(RUN, "take", token=MINE, above=above)
    with pytest.raises(NotAllowed, match="above the newest fence"):
        await threads.lease_step(RUN, "renumber", token=MINE, above=above)
    kept = await threads.lease_step(RUN, "keep", token=MINE, above=above)
    again = await threads.lease_step(
        RUN, "renumber", token=MINE, above=first.fence + REACH
    )

    assert kept.fence == first.fence < REACH
    assert again.fence == first.fence + REACH + 1


async def test_what_a_resting_thread_does_not_ask_is_ended(
    gateway: HttpGateway, threads: RemoteThreads
) -> None:
    first, second = await gateway.submit(turn("c1", "c2"))

    async with leased(threads):
        await threads.settle(RUN, [second.item_id], is_finished=False)

    states = {one.item_id: one.state for one in await gateway.outcomes(REF)}
    assert states == {first.item_id: "withdrawn", second.item_id: "pending"}


async def test_a_finished_thread_ends_what_was_approved_as_well(
    stack: ApiStack, gateway: HttpGateway, threads: RemoteThreads
) -> None:
    await approved(stack, gateway)

    async with leased(threads):
        await threads.settle(RUN, [], is_finished=False)
        (kept,) = await gateway.outcomes(REF)
        await threads.settle(RUN, [], is_finished=True)
        (ended,) = await gateway.outcomes(REF)

    assert (kept.state, ended.state) == ("authorized", "withdrawn")


async def test_who_has_no_lease_ends_nothing_of_a_thread(
    gateway: HttpGateway, threads: RemoteThreads
) -> None:
    await gateway.submit(turn("c1"))

    with pytest.raises(LeaseLost):
        await threads.settle(RUN, [], is_finished=True)
    other = RunRef(agent=RUN.agent, thread="another")
    async with leased(threads, other):
        with pytest.raises(LeaseLost):
            await threads.settle(RUN, [], is_finished=True)
    async with leased(threads):
        await threads.lease_step(RUN, "free", token=MINE)
        await threads.lease_step(RUN, "take", token=OTHERS)
        with pytest.raises(LeaseLost):
            await threads.settle(RUN, [], is_finished=True)

    (waiting,) = await gateway.outcomes(REF)
    assert waiting.state == "pending"


Ask = Callable[[RemoteThreads], Coroutine[Any, Any, object]]
ASKS: list[Ask] = [
    lambda it: it.lease_step(RUN, "take", token=OTHERS),
    settled_under_a_lease,
]


@pytest.mark.parametrize("ask", ASKS)
async def test_a_key_of_another_agent_or_tenant_changes_nothing(
    stack: ApiStack, gateway: HttpGateway, ask: Ask
) -> None:
    await gateway.submit(turn("c1"))
    held = await RemoteThreads(gateway).lease_step(RUN, "take", token=MINE)
    other = stack.key(agents=["billing"])
    async with stack.gateway(other) as theirs:
        with pytest.raises(NotAllowed, match="does not speak for"):
            await ask(RemoteThreads(theirs))
    async with serving(stack.harness, tenant="acme") as acme, acme.gateway() as theirs:
        # Their tenant has a different thread of the same name.
        found = await ask(RemoteThreads(theirs))
        assert not found or getattr(found, "name", "") != held.name

    mine = RemoteThreads(gateway)
    (waiting,) = await gateway.outcomes(REF)
    assert waiting.state == "pending"
    assert (await mine.lease_step(RUN, "keep", token=MINE)).state == "held"


async def test_a_lease_must_be_one_of_this_agent(stack: ApiStack) -> None:
    lease = LeaseRef(RunRef(agent="billing", thread="t1"), MINE, 1).text
    async with httpx.AsyncClient(base_url=stack.url) as client:
        for text, status in ((lease, 403), ("", 400), ("x", 400), (f"{lease} x", 400)):
            reply = await client.post(
                "/v1/note",
                json={"agent": "support"},
                headers={"Authorization": f"Bearer {stack.key()}", LEASE_HEADER: text},
            )
            assert (text, reply.status_code) == (text, status)


def test_a_lease_is_read_as_it_was_written() -> None:
    ref = LeaseRef(RUN, MINE, 7)

    assert read_lease(ref.text) == ref
    assert ref.text.isascii()


@pytest.mark.parametrize(
    "text",
    [
        *("", "1", f"1 {MINE} support", f"-1 {MINE} support t1"),
        *(f"1 {MINE.upper()} support t1", f"1 {MINE[1:]} support t1"),
        *(f"1 {MINE} \udcff t1", f"1 {MINE} %ed%a0%80 t1", f"1 {MINE} %ff t1"),
        *(f"1 {MINE} support t1 x", f"99999999999999999 {MINE} support t1"),
    ],
)
def test_what_is_no_lease_names_none(text: str) -> None:
    assert read_lease(text) is None


OTHER = RunRef(agent="support", thread="t2")
INSIDE = REF.with_(thread="inner", nested_in=RUN)
BEGIN = CallProgress(verb="begin", ref=REF, tool="get_order", tool_call_id="c1")


async def approved(stack: ApiStack, gateway: HttpGateway) -> Verdict:
    (verdict,) = await gateway.submit(turn("c1"))
    click = await stack.harness.click(verdict)
    await stack.harness.reviews.decide(click, Approve(), ANA)
    return verdict


ChangeAsk = Callable[[HttpGateway, Verdict], Awaitable[Any]]
CHANGES: dict[str, ChangeAsk] = {
    "submit": lambda it, _: it.submit(turn("c1", ref=REF.with_(message_id="m2"))),
    "submit inside": lambda it, _: it.submit(turn("c1", ref=INSIDE)),
    "claim": lambda it, verdict: it.claim(claim_of(REF, verdict)),
    "begin": lambda it, _: it.report_progress(BEGIN),
    "supersede": lambda it, _: it.supersede(REF),
}


@pytest.mark.parametrize("ask", CHANGES.values(), ids=CHANGES)
async def test_nobody_acts_for_a_thread_beside_the_holder_of_its_lease(
    stack: ApiStack, gateway: HttpGateway, threads: RemoteThreads, ask: ChangeAsk
) -> None:
    verdict = await approved(stack, gateway)
    held = await threads.lease_step(RUN, "take", token=MINE)
    others = await threads.lease_step(OTHER, "take", token=OTHERS)

    with pytest.raises(LeaseLost):
        await ask(gateway, verdict)
    # The lease on another thread is none on this one.
    with under(OTHER, OTHERS, others.fence), pytest.raises(LeaseLost):
        await ask(gateway, verdict)
    # Somebody else's token, also that of an earlier holder, is none either.
    with under(RUN, OTHERS, held.fence), pytest.raises(LeaseLost):
        await ask(gateway, verdict)
    (outcome,) = await gateway.outcomes(REF)
    with under(RUN, MINE, held.fence):
        await ask(gateway, verdict)

    assert outcome.state == "authorized"


@pytest.mark.parametrize("ask", CHANGES.values(), ids=CHANGES)
async def test_a_program_that_takes_no_leases_needs_none(
    stack: ApiStack, gateway: HttpGateway, threads: RemoteThreads, ask: ChangeAsk
) -> None:
    verdict = await approved(stack, gateway)
    await threads.lease_step(OTHER, "take", token=OTHERS)
    # A lease that was given back keeps nobody out.
    await threads.lease_step(RUN, "take", token=MINE)
    await threads.lease_step(RUN, "free", token=MINE)

    await ask(gateway, verdict)


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
