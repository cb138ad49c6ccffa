"""A key for some tools changes no calls of other tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import NotAllowed
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.records import Result, RunRef
from keyturn.gateway.protocol.wire import (
    CallEnd,
    CallProgress,
    Claimed,
    Done,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from keyturn.gateway.remote.program import RemoteThreads
from tests.api.api_stack import ApiStack, under
from tests.service.harness import ANA, claim_of

POLICY = """
version: 1
defaults: {tier: approve, channel: C0APPROVALS, needs: [U0ANA]}
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


async def test_people_of_another_run_join_no_other(stack: ApiStack) -> None:
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
async def test_a_key_ends_no_call_of_another_tool(stack: ApiStack, ask: Ask) -> None:
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


def end(tool: str, result: Result) -> CallEnd:
    return CallEnd(ref=REF, tool=tool, tool_call_id="c1", result=result)


NOTES: dict[str, Callable[[HttpGateway], Coroutine[Any, Any, object]]] = {
    "begin": lambda it: it.report_progress(progress("begin", "look_up_order")),
    "end": lambda it: it.ended(end("look_up_order", FORGED)),
}


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
async def test_a_call_without_a_record_is_noted_by_keys_of_its_tool(
    stack: ApiStack, note: Callable[[HttpGateway], Coroutine[Any, Any, object]]
) -> None:
    stack.harness.policy = load_policy(POLICY, "policy.yml")
    orders = stack.key(tools=["look_up_order"])
    mails = stack.key(tools=["send_mail"])
    async with stack.gateway(mails) as mine, stack.gateway(orders) as theirs:
        threads = RemoteThreads(mine)
        first = await threads.lease_step(RUN, "take", token=FIRST)
        with under(RUN, FIRST, first.fence):
            (verdict,) = await mine.submit(turn("send_mail"))
            begun = await mine.report_progress(progress("begin", "send_mail"))
            with pytest.raises(NotAllowed, match="no such call"):
                await note(theirs)
        await threads.lease_step(RUN, "free", token=FIRST)
        second = await threads.lease_step(RUN, "take", token=SECOND)
        with under(RUN, SECOND, second.fence):
            again = await mine.report_progress(progress("begin", "send_mail"))

    assert (verdict.kind, begun.may_run) == (VerdictKind.RUN, True)
    # It was interrupted: its result is unknown, and it does not run a second time.
    assert (again.may_run, again.result) == (False, None)


REF_JSON = {"agent": "support", "thread": "t1", "message_id": "m1"}
RUN_JSON = {"agent": "support", "thread": "t1"}
OTHERS, UNKNOWN, HASH = "$item", f"ap_default_{'0' * 32}.0", "$edit"
CLAIM = {"ref": REF_JSON, "tool": "process_refund", "tool_call_id": "c0"}
QUESTION = {"kind": "keyturn.approval", "action_hash": f"sha256:{'0' * 64}"}
ASKED: dict[str, dict[str, Any]] = {
    "edits-known": {"ref": REF_JSON, "edits": {HASH: OTHERS}},
    "late-reports": {"ref": REF_JSON, "item_ids": [OTHERS]},
    "heartbeat": {"item_id": OTHERS, "fence": 1},
    "finish": {"item_id": OTHERS, "fence": 1, "result": {"ok": True}},
    "release": {"item_id": OTHERS, "fence": 1},
    "claim": {"item_id": OTHERS, "owner": "0" * 32, **CLAIM},
    "withdraw": {"run": RUN_JSON, "item_ids": [OTHERS]},
    "answers": {"run": RUN_JSON, "questions": [{"item_id": OTHERS, **QUESTION}]},
}


def about(body: dict[str, Any], item: str, edit: str) -> Any:
    """Return a body with an item and an edit in their places."""
    return json.loads(json.dumps(body).replace(OTHERS, item).replace(HASH, edit))


@pytest.mark.parametrize("path", ASKED)
async def test_another_agents_call_looks_like_none(stack: ApiStack, path: str) -> None:
    harness = stack.harness
    _, (verdict,) = await harness.submit(("process_refund", {"amount": 5}), agent="b")
    click = await harness.click(verdict)
    await harness.reviews.decide(click, Edit(args={"amount": 4}), ANA)
    record = (await harness.item(verdict.item_id)).edit
    assert record is not None
    async with stack.client() as client:
        theirs, none = [
            await client.post(
                f"/v1/{path}", json=about(ASKED[path], item, edit_hash(record))
            )
            for item in (verdict.item_id, UNKNOWN)
        ]

    told = [
        reply.text.replace(item, "it")
        for reply, item in ((theirs, verdict.item_id), (none, UNKNOWN))
    ]
    assert (theirs.status_code, told[0]) == (none.status_code, told[1])
    assert theirs.status_code in {200, 404}, theirs.text
