"""A key with some tools does nothing to calls of others, whatever it says of them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.api.api_stack import ApiStack
from tests.service.harness import ANA, claim_of
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.client.http_gateway import HttpGateway
from twokey.gateway.client.http_threads import HttpThreads
from twokey.gateway.errors import NotAllowed
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol import run_context
from twokey.gateway.protocol.call_progress import CallEnd, CallProgress
from twokey.gateway.protocol.records import Result, RunRef
from twokey.gateway.protocol.thread_api import LeaseRef
from twokey.gateway.protocol.wire import (
    Claimed,
    Done,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)

POLICY = """
version: 1
defaults: {tier: approve, channel: C0APPROVALS, reviewers: [U0ANA]}
tools:
  send_mail: {tier: auto}
  look_up_order: {tier: auto}
"""
RUN = RunRef(agent="support", thread="t1")
REF = TurnRef(agent=RUN.agent, thread=RUN.thread, message_id="m1")
FIRST, SECOND = "a" * 32, "b" * 32
FORGED = Result(ok=True, summary="forged")


def turn(tool: str, ref: TurnRef = REF) -> Turn:
    call = ProposedCall(tool=tool, args={"amount": 899}, tool_call_id="c1")
    return Turn(ref=ref, calls=(call,))


async def test_people_of_anothers_run_are_joined_to_no_other_run(
    stack: ApiStack,
) -> None:
    await stack.harness.submit(("process_refund", {"amount": 5}), thread="t9")
    ref = TurnRef(agent="billing", thread="t1", message_id="m1")
    outer = RunRef(agent="support", thread="t9")
    inside = turn("process_refund", ref).with_(enclosing_run=outer)
    billing, both = stack.key(agents=["billing"]), stack.key(agents=["*"])
    async with stack.gateway(billing) as theirs, stack.gateway(both) as ours:
        with pytest.raises(NotAllowed, match="speak for the agent 'support'"):
            await theirs.submit(inside)
        (verdict,) = await theirs.submit(turn("process_refund", ref))
        (joined,) = await ours.submit(
            inside.with_(ref=ref.with_(message_id="m2", thread="t2"))
        )

    approval = await stack.harness.approval(verdict.item_id)
    assert (approval.requester, approval.principals) == (None, ())
    assert (await stack.harness.approval(joined.item_id)).requester is not None


Ask = Callable[[HttpGateway, str, int], Coroutine[Any, Any, object]]
ASKS: dict[str, Ask] = {
    "heartbeat": lambda it, item, fence: it.heartbeat(item, fence),
    "finish": lambda it, item, fence: it.finish(item, fence, FORGED),
    "release": lambda it, item, fence: it.release(item, fence, has_begun=False),
}


@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
async def test_a_call_of_another_tool_is_not_ended_by_a_key(
    stack: ApiStack, ask: Ask
) -> None:
    mail = stack.key(tools=["send_mail"])
    async with stack.gateway() as mine, stack.gateway(mail) as theirs:
        (verdict,) = await mine.submit(turn("process_refund"))
        click = await stack.harness.click(verdict)
        await stack.harness.reviews.decide(click, Approve(), ANA)
        claimed = await mine.claim(claim_of(REF, verdict))
        assert isinstance(claimed, Claimed)
        with pytest.raises(NotAllowed, match="no such call"):
            await ask(theirs, verdict.item_id, claimed.fence)
        result = Result(ok=True, summary="refunded")
        assert await mine.finish(verdict.item_id, claimed.fence, result)
        done = await mine.claim(claim_of(REF, verdict))

    assert isinstance(done, Done)
    assert done.result == result


def progress(verb: Any, tool: str) -> CallProgress:
    return CallProgress(verb=verb, ref=REF, tool=tool, tool_call_id="c1")


def end(tool: str, result: Result, *, is_over: bool = True) -> CallEnd:
    return CallEnd(
        ref=REF, tool=tool, tool_call_id="c1", result=result, is_over=is_over
    )


NOTES: dict[str, Callable[[HttpGateway], Coroutine[Any, Any, object]]] = {
    "begin": lambda it: it.report_progress(progress("begin", "look_up_order")),
    "enter": lambda it: it.report_progress(progress("enter", "look_up_order")),
    "give_back": lambda it: it.report_progress(progress("give_back", "look_up_order")),
    "end": lambda it: it.ended(end("look_up_order", FORGED)),
    "raised": lambda it: it.ended(end("look_up_order", FORGED, is_over=False)),
}


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
async def test_a_call_without_a_record_is_noted_by_keys_of_its_tool(
    stack: ApiStack, note: Callable[[HttpGateway], Coroutine[Any, Any, object]]
) -> None:
    stack.harness.policy = load_policy(POLICY, "policy.yml")
    orders = stack.key(tools=["look_up_order"])
    mails = stack.key(tools=["send_mail"])
    async with stack.gateway(mails) as mine, stack.gateway(orders) as theirs:
        threads = HttpThreads(mine.connection)
        first = await threads.lease(RUN, "take", token=FIRST)
        with run_context.under_lease(lambda: LeaseRef(RUN, FIRST, first.fence).text):
            (verdict,) = await mine.submit(turn("send_mail"))
            begun = await mine.report_progress(progress("begin", "send_mail"))
            with pytest.raises(NotAllowed, match="no such call"):
                await note(theirs)
        await threads.lease(RUN, "free", token=FIRST)
        second = await threads.lease(RUN, "take", token=SECOND)
        with run_context.under_lease(lambda: LeaseRef(RUN, SECOND, second.fence).text):
            again = await mine.report_progress(progress("begin", "send_mail"))

    assert (verdict.kind, begun.may_run) == (VerdictKind.RUN, True)
    # It was cut off: nobody knows what it came to, and it does not run a second time.
    assert (again.may_run, again.result) == (False, None)


async def test_a_key_notes_the_calls_of_its_own_tools(stack: ApiStack) -> None:
    stack.harness.policy = load_policy(POLICY, "policy.yml")
    sent = Result(ok=True, summary="sent")
    async with stack.gateway(stack.key(tools=["send_mail"])) as mine:
        threads = HttpThreads(mine.connection)
        first = await threads.lease(RUN, "take", token=FIRST)
        with run_context.under_lease(lambda: LeaseRef(RUN, FIRST, first.fence).text):
            await mine.submit(turn("send_mail"))
            await mine.report_progress(progress("begin", "send_mail"))
            await mine.ended(end("send_mail", sent))
        await threads.lease(RUN, "free", token=FIRST)
        second = await threads.lease(RUN, "take", token=SECOND)
        with run_context.under_lease(lambda: LeaseRef(RUN, SECOND, second.fence).text):
            again = await mine.report_progress(progress("begin", "send_mail"))

    assert (again.may_run, again.result) == (False, sent)
