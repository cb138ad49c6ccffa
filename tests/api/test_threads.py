"""A program with an API key runs threads itself: leases, fences, pending calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import Approve, Edit
from keyturn.gateway.client.http_gateway import HttpGateway
from keyturn.gateway.errors import LeaseLost, NotAllowed
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import http_api
from keyturn.gateway.protocol.edits import edit_hash
from keyturn.gateway.protocol.http_api import (
    LEASE_HEADER,
    MAX_FENCE,
    AnswersQuestion,
    LeaseRef,
    OpenQuestion,
    RunFacts,
    RunQuestion,
    read_lease,
)
from keyturn.gateway.protocol.records import Result, RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    CallEnd,
    CallProgress,
    Claimed,
    ClaimRequest,
    Done,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.remote.program import RemoteThreads
from keyturn.gateway.store.runs.threads import REACH
from tests.api.api_stack import ApiStack, serving, under
from tests.service.harness import DAN, claim_of

RUN = RunRef(agent="support", thread="t 1/ä%")
REF = TurnRef(agent=RUN.agent, thread=RUN.thread, message_id="m1")
MINE, OTHERS = "a" * 32, "b" * 32


def turn(*ids: str, ref: TurnRef = REF, tool: str = "process_refund") -> Turn:
    calls = (
        ProposedCall(tool=tool, args={"amount": number}, tool_call_id=each)
        for number, each in enumerate(ids)
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


async def test_a_thread_that_rests_or_ends_settles_its_calls(
    stack: ApiStack, gateway: HttpGateway, threads: RemoteThreads
) -> None:
    _, approved, asked = await gateway.submit(turn("c1", "c2", "c3"))
    await stack.harness.decide(approved, Approve())

    async with leased(threads):
        await threads.settle(RUN, [asked.item_id], is_finished=False)
        resting = [one.state for one in await gateway.outcomes(REF)]
        await threads.settle(RUN, [], is_finished=True)
        finished = [one.state for one in await gateway.outcomes(REF)]

    assert resting == ["withdrawn", "authorized", "pending"]
    assert finished == ["withdrawn"] * 3


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
    await stack.harness.decide(verdict, Approve())
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


POLICY = """
version: 1
defaults: {tier: approve, channel: C0APPROVALS, needs: [U0ANA]}
tools:
  send_mail: {tier: auto}
  look_up_order: {tier: auto}
"""
FORGED = Result(ok=True, summary="forged")


async def test_people_of_another_run_join_no_other(stack: ApiStack) -> None:
    await stack.harness.submit(("process_refund", {"amount": 5}), thread="t9")
    ref = TurnRef(agent="billing", thread="t1", message_id="m1")
    outer = RunRef(agent="support", thread="t9")
    inside = turn("c1", ref=ref).with_(enclosing_run=outer)
    billing, both = stack.key(agents=["billing"]), stack.key(agents=["*"])
    async with stack.gateway(billing) as theirs, stack.gateway(both) as ours:
        with pytest.raises(NotAllowed, match="speak for the agent 'support'"):
            await theirs.submit(inside)
        (verdict,) = await theirs.submit(turn("c1", ref=ref))
        (joined,) = await ours.submit(
            inside.with_(ref=ref.with_(message_id="m2", thread="t2"))
        )

    approval = await stack.harness.approval(verdict.item_id)
    assert (approval.requester, approval.principals) == (None, ())
    assert (await stack.harness.approval(joined.item_id)).requester is not None


Trial = Callable[[HttpGateway, str, int], Coroutine[Any, Any, object]]
TRIALS: dict[str, Trial] = {
    "heartbeat": lambda it, item, fence: it.heartbeat(item, fence),
    "finish": lambda it, item, fence: it.finish(item, fence, FORGED),
    "release": lambda it, item, fence: it.release(item, fence, has_begun=False),
}


@pytest.mark.parametrize("ask", TRIALS.values(), ids=TRIALS)
async def test_a_key_ends_no_call_of_another_tool(stack: ApiStack, ask: Trial) -> None:
    mail = stack.key(tools=["send_mail"])
    async with stack.gateway() as mine, stack.gateway(mail) as theirs:
        (verdict,) = await mine.submit(turn("c1"))
        await stack.harness.decide(verdict, Approve())
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
        first = await threads.lease_step(RUN, "take", token=MINE)
        with under(RUN, MINE, first.fence):
            (verdict,) = await mine.submit(turn("c1", tool="send_mail"))
            begun = await mine.report_progress(progress("begin", "send_mail"))
            with pytest.raises(NotAllowed, match="no such call"):
                await note(theirs)
        await threads.lease_step(RUN, "free", token=MINE)
        second = await threads.lease_step(RUN, "take", token=OTHERS)
        with under(RUN, OTHERS, second.fence):
            again = await mine.report_progress(progress("begin", "send_mail"))

    assert (verdict.kind, begun.may_run) == (VerdictKind.RUN, True)
    # It was interrupted: its result is unknown, and it does not run a second time.
    assert (again.may_run, again.result) == (False, None)


REF_JSON = {"agent": "support", "thread": "t1", "message_id": "m1"}
RUN_JSON = {"agent": "support", "thread": "t1"}
OTHERS_ITEM, UNKNOWN, HASH = "$item", f"ap_default_{'0' * 32}.0", "$edit"
CLAIM = {"ref": REF_JSON, "tool": "process_refund", "tool_call_id": "c0"}
QUESTION = {"kind": "keyturn.approval", "action_hash": f"sha256:{'0' * 64}"}
ASKED: dict[str, dict[str, Any]] = {
    "edits-known": {"ref": REF_JSON, "edits": {HASH: OTHERS_ITEM}},
    "late-reports": {"ref": REF_JSON, "item_ids": [OTHERS_ITEM]},
    "heartbeat": {"item_id": OTHERS_ITEM, "fence": 1},
    "finish": {"item_id": OTHERS_ITEM, "fence": 1, "result": {"ok": True}},
    "release": {"item_id": OTHERS_ITEM, "fence": 1},
    "claim": {"item_id": OTHERS_ITEM, "owner": "0" * 32, **CLAIM},
    "withdraw": {"run": RUN_JSON, "item_ids": [OTHERS_ITEM]},
    "answers": {"run": RUN_JSON, "questions": [{"item_id": OTHERS_ITEM, **QUESTION}]},
}


def about(body: dict[str, Any], item: str, edit: str) -> Any:
    """Return a body with an item and an edit in their places."""
    return json.loads(json.dumps(body).replace(OTHERS_ITEM, item).replace(HASH, edit))


@pytest.mark.parametrize("path", ASKED)
async def test_another_agents_call_looks_like_none(stack: ApiStack, path: str) -> None:
    harness = stack.harness
    _, (verdict,) = await harness.submit(("process_refund", {"amount": 5}), agent="b")
    await harness.decide(verdict, Edit(args={"amount": 4}))
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


# A remote program waits for its answers, and lists and withdraws pending calls.


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


async def test_a_wait_ends_with_the_decision(
    stack: ApiStack, gateway: HttpGateway
) -> None:
    (verdict,) = await gateway.submit(turn("c0"))
    waiting = [
        asyncio.create_task(gateway.answers(asking(verdict, wait_s=30)))
        for _ in range(5)
    ]
    done, _ = await asyncio.wait(waiting, timeout=0.2)
    await stack.harness.decide(verdict, Approve())
    async with asyncio.timeout(30):
        found = await asyncio.gather(*waiting)

    assert not done
    assert [one.answer["type"] for (one,) in found] == ["approve"] * 5


async def test_an_agent_with_another_name_is_told_so(stack: ApiStack) -> None:
    key = stack.key(agents=["support", "billing"])
    async with stack.gateway(key) as mine:
        (verdict,) = await mine.submit(turn("c0"))
        with pytest.raises(NotAllowed, match="calls itself 'support'"):
            await mine.answers(asking(verdict, run=RUN.with_(agent="billing")))


async def test_what_waits_is_listed_and_withdrawn(
    stack: ApiStack, gateway: HttpGateway
) -> None:
    first, second = await gateway.submit(turn("c0", "c1"))
    ask = gateway.connection.ask
    listed = await ask(http_api.PENDING, RunQuestion(run=RUN))
    chosen = (first.item_id, "no such id")
    ended = await gateway.withdraw(RUN, chosen)
    again = await gateway.withdraw(RUN, chosen)
    [answered] = await gateway.answers(asking(first, second, wait_s=30))
    rest = await gateway.withdraw(RUN)
    left = await ask(http_api.PENDING, RunQuestion(run=RUN))

    assert [one.item_id for one in listed] == [first.item_id, second.item_id]
    assert [one.args for one in listed] == [{"amount": 0}, {"amount": 1}]
    assert ended == again == (first.item_id,)
    assert rest == (second.item_id,)
    assert left == ()
    assert (answered.item_id, answered.answer["type"]) == (first.item_id, "withdrawn")
    assert await stack.harness.jobs() == 0


async def test_nobody_who_asked_is_forgotten(
    stack: ApiStack, gateway: HttpGateway
) -> None:
    await gateway.remember(RunFacts(run=RUN, requester=DAN))
    ben = DAN.with_(user="U0BEN", name="Ben")
    await gateway.remember(
        RunFacts(run=RUN, requester=ben, channel="C0", thread_ts="1.2")
    )
    await gateway.remember(RunFacts(run=RUN))
    (verdict,) = await gateway.submit(turn("c0"))
    approval = await stack.harness.approval(verdict.item_id)
    with pytest.raises(NotAllowed, match="both 'channel'"):
        await gateway.remember(RunFacts(run=RUN, channel="C0"))
    ana = DAN.with_(user="ana@example.com")
    with pytest.raises(NotAllowed, match="not an id of a Slack user"):
        await gateway.remember(RunFacts(run=RUN, requester=ana))

    assert approval.requester == ben
    assert approval.origin is not None
    assert sorted(one.user for one in approval.principals) == ["U0BEN", "U0DAN"]


async def test_names_and_turns_are_bounded(gateway: HttpGateway) -> None:
    long = "n" * 2001
    claim = ClaimRequest(
        item_id=UNKNOWN,
        ref=REF,
        tool="x",
        tool_call_id="c0",
        owner="0" * 32,
    )
    ask = gateway.connection.ask
    for ref in (
        REF.with_(thread=long),
        REF.with_(ns=long),
        REF.with_(nested_in=RUN.with_(thread=long)),
    ):
        with pytest.raises(NotAllowed, match="2000 characters"):
            await ask(http_api.SUBMIT, turn("c0", ref=ref))
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
        await ask(http_api.SUBMIT, turn(*map(str, range(1001))))
    any_of: list[JsonValue] = [{"type": "string"}] * 999
    schemas: dict[str, JsonObject] = {f"t{n}": {"anyOf": any_of} for n in range(11)}
    with pytest.raises(NotAllowed, match="10000 parts"):
        await ask(http_api.SUBMIT, turn("c0").with_(schemas=schemas))
    verdicts = await ask(http_api.SUBMIT, turn("c0").with_(says="s" * 3000))

    assert [verdict.kind for verdict in verdicts] == [VerdictKind.HOLD]
