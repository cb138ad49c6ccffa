"""Agents' owners read open and ended calls, and follow the events."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from keyturn.gateway.api import operations
from keyturn.gateway.approvals.decisions import Approve, Decided, Edit, Reject
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.digest import BusinessState
from keyturn.gateway.protocol.http_api import AnswersQuestion, OpenQuestion, Scope
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, Verdict
from tests.api.api_stack import NOW, ApiStack, serving
from tests.conftest import eventually
from tests.loop_watch import watched
from tests.service.harness import ANA, BEN, CHLOE, POLICY, claim_of


async def refund(
    stack: ApiStack, *, thread: str = "t1", agent: str = "support", amount: int = 5
) -> tuple[TurnRef, Verdict]:
    ref, (verdict,) = await stack.harness.submit(
        ("process_refund", {"amount": amount}), thread=thread, agent=agent
    )
    return ref, verdict


async def decide(stack: ApiStack, verdict: Verdict, what: Any = None) -> None:
    await stack.harness.decide(verdict, what or Approve())


async def test_an_approval_says_what_became_of_it(stack: ApiStack) -> None:
    _, verdict = await refund(stack)
    approval = verdict.item_id.partition(".")[0]
    async with stack.client() as client:
        before = (await client.get(f"/v1/approvals/{approval}")).json()
        await decide(stack, verdict, Reject(reason="wrong order"))
        after = (await client.get(f"/v1/approvals/{approval}")).json()

    assert before["is_waiting"]
    assert not after["is_waiting"]
    [call] = before["calls"]
    assert (call["state"], call["args"]) == ("pending", {"amount": 5})
    assert call["action_hash"] == verdict.action_hash
    [call] = after["calls"]
    assert call["state"] == "rejected"
    assert call["decision"]["by"]["user"] == "U0ANA"
    assert call["decision"]["text"] == "wrong order"


async def test_others_approvals_are_not_told_apart_from_none(stack: ApiStack) -> None:
    _, verdict = await refund(stack)
    approval = verdict.item_id.partition(".")[0]
    async with serving(stack.harness, tenant="acme") as acme:
        for other, agent in ((stack, "billing"), (acme, "*")):
            async with other.client(other.key(agents=[agent])) as client:
                there = await client.get(f"/v1/approvals/{approval}")
                never = await client.get(f"/v1/approvals/ap_default_{'0' * 32}")
                junk = await client.get("/v1/approvals/x")
                queue = (await client.get("/v1/approvals")).json()
            assert there.status_code == never.status_code == junk.status_code == 404
            assert there.content == never.content == junk.content
            assert queue["approvals"] == []


async def test_the_queue_is_read_by_pages(stack: ApiStack) -> None:
    verdicts = [(await refund(stack, thread=f"t{n}"))[1] for n in range(7)]
    for _ in range(3):
        await refund(stack, agent="billing")
    found: list[str] = []
    async with stack.client() as client:
        cursor, pages = "", 0
        while True:
            query = {"limit": "3", "cursor": cursor}
            page = (await client.get("/v1/approvals", params=query)).json()
            found += [one["calls"][0]["id"] for one in page["approvals"]]
            pages += 1
            cursor = page["next"]
            if not cursor:
                break

    assert found == [one.item_id for one in verdicts]
    assert pages < 10


async def test_the_queue_is_read_by_agent_and_state(stack: ApiStack) -> None:
    _, first = await refund(stack)
    _, second = await refund(stack, thread="t2")
    await refund(stack, agent="billing", thread="t3")
    await decide(stack, second)
    key = stack.key(agents=["support", "billing"])

    async with stack.client(key) as client:

        async def read(**query: str) -> list[str]:
            reply = await client.get("/v1/approvals", params=query)
            return [one["thread"] for one in reply.json()["approvals"]]

        assert set(await read()) == {"t1", "t3"}
        assert await read(agent="support") == ["t1"]
        assert await read(agent="support", state="authorized") == ["t2"]
        assert set(await read(state="open")) == {"t1", "t2", "t3"}
        assert await read(state="executing") == []
    assert first


async def test_reading_needs_its_scope_and_agent(stack: ApiStack) -> None:
    key = stack.key(scopes=[Scope.SUBMIT, Scope.EXECUTE])
    async with stack.client(key) as client:
        for path in ("/v1/approvals", "/v1/approvals/ap_1", "/v1/events"):
            assert (await client.get(path)).status_code == 403
    async with stack.client() as client:
        for path in ("/v1/approvals", "/v1/events"):
            reply = await client.get(path, params={"agent": "billing"})
            assert reply.status_code == 403


async def test_events_are_read_from_a_place_on(stack: ApiStack) -> None:
    await refund(stack, thread="before")
    async with stack.client() as client:
        start = (await client.get("/v1/events")).json()
        ref, verdict = await refund(stack)
        await refund(stack, agent="billing")
        await decide(stack, verdict)
        await stack.harness.agents.claim(claim_of(ref, verdict))
        page = (await client.get("/v1/events", params={"after": start["next"]})).json()
        rest = (
            await client.get("/v1/events", params={"after": page["events"][0]["id"]})
        ).json()
        end = (await client.get("/v1/events", params={"after": page["next"]})).json()

    assert start["events"] == end["events"] == []
    names = [one["name"] for one in page["events"]]
    assert names == ["item.authorized", "item.executing"]
    assert page["events"][0]["item"] == verdict.item_id
    assert page["events"][0]["run"] == {"agent": "support", "thread": "t1"}
    assert [one["name"] for one in rest["events"]] == ["item.executing"]
    assert not page["missed"]
    assert "amount" not in json.dumps(page)


async def test_a_wait_for_events_ends_with_the_first(stack: ApiStack) -> None:
    _, verdict = await refund(stack)
    async with stack.client() as client:
        waiting = asyncio.create_task(
            client.get("/v1/events", params={"wait": 30}, timeout=40)
        )
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        await decide(stack, verdict)
        async with asyncio.timeout(30):
            page = (await waiting).json()

    assert not done
    assert [one["state"] for one in page["events"]] == ["authorized"]


async def lines(reply: httpx.Response, count: int) -> list[dict[str, str]]:
    """Read so many server-sent events."""
    found: list[dict[str, str]] = []
    now: dict[str, str] = {}
    async for line in reply.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            now[name] = value
        elif "event" in now:
            found.append(now)
            now = {}
            if len(found) == count:
                break
        else:
            now = {}
    return found


async def test_a_stream_goes_on_where_it_was_cut_off(stack: ApiStack) -> None:
    _, first = await refund(stack)
    _, second = await refund(stack, thread="t2")
    _, third = await refund(stack, thread="t3")
    accept = {"Accept": "text/event-stream"}
    async with stack.client() as client, asyncio.timeout(20):
        async with client.stream("GET", "/v1/events", headers=accept) as reply:
            assert reply.headers["Content-Type"].startswith("text/event-stream")
            deciding = asyncio.create_task(decide(stack, first))
            begun, authorized = await lines(reply, 2)
            await deciding
        await decide(stack, second)
        again = {**accept, "Last-Event-ID": authorized["id"]}
        async with client.stream("GET", "/v1/events", headers=again) as reply:
            (missed,) = await lines(reply, 1)
            await decide(stack, third)
        from_start = {**accept, "Last-Event-ID": begun["id"]}
        async with client.stream("GET", "/v1/events", headers=from_start) as reply:
            everything = await lines(reply, 3)

    assert begun["event"] == "begun"
    assert authorized["event"] == "item.authorized"
    assert json.loads(authorized["data"])["item"] == first.item_id
    assert json.loads(missed["data"])["item"] == second.item_id
    threads = [json.loads(one["data"])["thread"] for one in everything]
    assert threads == ["t1", "t2", "t3"]


async def test_a_stream_ends_when_the_gateway_stops(stack: ApiStack) -> None:
    accept = {"Accept": "text/event-stream"}
    async with (
        stack.client() as client,
        asyncio.timeout(20),
        client.stream("GET", "/v1/events", headers=accept) as reply,
    ):
        asyncio.get_running_loop().call_later(0.3, stack.api.tenant.events.end_waits)
        assert [one["event"] for one in await lines(reply, 2)] == ["begun"]


@pytest.mark.parametrize("something_happens", [True, False])
async def test_a_stream_ends_with_its_key(
    stack: ApiStack, monkeypatch: pytest.MonkeyPatch, *, something_happens: bool
) -> None:
    if not something_happens:
        monkeypatch.setattr(operations, "KEEPALIVE_S", 0.5)
    _, verdict = await refund(stack)
    async with (
        stack.client() as client,
        asyncio.timeout(30),
        client.stream(
            "GET", "/v1/events", headers={"Accept": "text/event-stream"}
        ) as reply,
    ):
        told = reply.aiter_lines()
        begun = [await anext(told) for _ in range(4)]
        stack.now += timedelta(hours=1)
        if something_happens:
            await decide(stack, verdict)
        after = [line async for line in told]

    assert "event: begun" in begun
    assert "item.authorized" not in "".join(after)


async def test_what_is_not_kept_any_more_is_said(stack: ApiStack) -> None:
    keys = stack.harness.store.keys_of_tenant("default")
    async with stack.client() as client:
        await decide(stack, (await refund(stack))[1])
        start = (await client.get("/v1/events")).json()["next"]
        await decide(stack, (await refund(stack, thread="t2"))[1])
        await stack.harness.store.conn.command("XTRIM", keys.audit, "MAXLEN", 1)
        page = (await client.get("/v1/events", params={"after": start})).json()

    assert page["missed"]


@pytest.mark.parametrize("after", ["x", "1-1,1-1", f"{'9' * 20}-1"])
async def test_a_place_that_is_none_is_refused(stack: ApiStack, after: str) -> None:
    async with stack.client() as client:
        by_query = await client.get("/v1/events", params={"after": after})
        by_header = await client.get("/v1/events", headers={"Last-Event-ID": after})

    assert by_query.status_code == by_header.status_code == 400


async def test_another_tenants_events_are_not_told(stack: ApiStack) -> None:
    async with (
        serving(stack.harness, tenant="acme") as acme,
        stack.client(stack.key(agents=["*"])) as client,
    ):
        start = (await client.get("/v1/events")).json()["next"]
        await decide(stack, (await refund(stack))[1])
        async with acme.client(acme.key(agents=["*"])) as theirs:
            page = (await theirs.get("/v1/events", params={"after": start})).json()
        mine = (await client.get("/v1/events", params={"after": start})).json()

    assert page["events"] == []
    assert len(mine["events"]) == 1


RULES = POLICY.replace(
    "wire_money: {tier: escalate}",
    """wire_money:
    tier: escalate
    description: "Send {args.amount}"
    link: "https://bank.example/{args.to}"
    effect: reversible
    redact: [args.pin]
    same_by: [args.to]""",
).replace("channel:", "link_hosts: [bank.example], channel:")
REF = TurnRef(agent="support", thread="t1", message_id="m1")
# No hash, id or time has "pin" before its digits.
ARGS: JsonObject = {"amount": 120, "to": "ada", "pin": "pin1234"}


async def wire(stack: ApiStack, message_id: str = "m1", agent: str = "support") -> str:
    """Ask for a transfer; return the approval."""
    stack.harness.policy = load_policy(RULES, "policy.yml")
    call = ProposedCall(
        tool="wire_money",
        args=ARGS,
        tool_call_id="c0",
        original_args={"amount": "120.0", "to": "ada", "pin": "pin1234"},
        state=BusinessState(value={"balance": 500}),
    )
    ref = REF.with_(message_id=message_id, thread=message_id, agent=agent)
    turn = Turn(ref=ref, calls=(call,), says="Trust me.")
    (verdict,) = await stack.harness.agents.submit(turn)
    return verdict.item_id.partition(".")[0]


async def read(stack: ApiStack, approval: str) -> dict[str, Any]:
    """Read an approval over HTTP."""
    async with stack.client() as client:
        reply = await client.get(f"/v1/approvals/{approval}")
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json()
    return found


async def test_a_reading_has_words_rule_effect_link_and_state(stack: ApiStack) -> None:
    approval = await wire(stack)

    found = await read(stack, approval)

    [call] = found["calls"]
    record = await stack.harness.approval(f"{approval}.0")
    assert found["digest"] == record.digest
    assert found["policy_digest"] == record.policy_digest
    assert found["agent_says"] == "Trust me."
    assert "120.0" in call["agent_wrote"]
    assert call["description"] == "Send 120"
    assert call["link"] == "https://bank.example/ada"
    assert call["effect"] == "reversible"
    assert call["reasons"]
    assert call["state_asked"] == call["state_now"] == {"value": {"balance": 500}}
    assert "pin1234" not in str(found)


async def test_a_missing_role_is_named_also_with_enough_people(stack: ApiStack) -> None:
    approval = await wire(stack)
    for person in (ANA, BEN):
        await stack.harness.decide(f"{approval}.0", Approve(reason="fine"), person)

    [call] = (await read(stack, approval))["calls"]

    assert [vote["by"]["user"] for vote in call["votes"]] == ["U0ANA", "U0BEN"]
    assert {vote["reason"] for vote in call["votes"]} == {"fine"}
    assert call["needs"] == [
        {"votes": 2, "of": ["senior", "support"]},
        {"votes": 1, "of": ["senior"]},
    ]
    assert call["missing"] == [{"votes": 1, "of": ["senior"]}]
    [senior] = [role for role in call["roles"] if role["name"] == "senior"]
    assert senior["users"] == ["U0CHLOE"]


async def test_an_edit_is_in_it_with_its_person_and_reason(stack: ApiStack) -> None:
    approval = await wire(stack)
    edit = Edit(args={**ARGS, "amount": 80, "pin": "pin5678"}, reason="the agreed part")
    await stack.harness.decide(f"{approval}.0", edit)

    found = await read(stack, approval)

    [call] = found["calls"]
    assert call["edit"]["by"]["user"] == "U0ANA"
    assert call["edit"]["reason"] == "the agreed part"
    rows = {
        row["name"]: (row["before"], row["after"]) for row in call["edit"]["changes"]
    }
    assert rows["amount"] == (120, 80)
    assert "pin1234" not in str(found)
    assert "pin5678" not in str(found)


@pytest.mark.parametrize("earlier_agent", ["support", "billing"])
async def test_precedents_of_other_agents_name_nobody(
    stack: ApiStack, earlier_agent: str
) -> None:
    earlier = await wire(stack, "m0", earlier_agent)
    await stack.harness.decide(f"{earlier}.0", Approve())
    await stack.harness.decide(f"{earlier}.0", Approve(), CHLOE)

    [call] = (await read(stack, await wire(stack)))["calls"]

    [precedent] = call["precedents"]
    assert call["same_by"]
    assert precedent["state"] == "authorized"
    is_own = earlier_agent == "support"
    assert precedent["agent"] == ("support" if is_own else "")
    assert bool(precedent["by"]) is is_own


ARGUMENTS: dict[str, dict[str, Any]] = {
    "numbers": {"a": [1.5e-7] * 6000},
    "names": {f"k{n}": n for n in range(4000)},
    "nested": {"a": [[{"b": [1.5] * 4}] * 3] * 500},
}


@pytest.mark.parametrize(
    ("tool", "kind"),
    [*(("process_refund", kind) for kind in ARGUMENTS), ("look_up", "nested")],
)
async def test_no_step_of_a_call_walks_them_on_the_event_loop(
    stack: ApiStack, monkeypatch: pytest.MonkeyPatch, kind: str, tool: str
) -> None:
    args = ARGUMENTS[kind]
    ref = {"agent": "support", "thread": "t1", "message_id": "m1"}
    call = {"tool": tool, "args": args, "tool_call_id": "c1"}
    headers = {"Authorization": f"Bearer {stack.key()}"}
    found = watched(monkeypatch)
    async with httpx.AsyncClient(base_url=stack.url, headers=headers) as client:
        turn = {"ref": ref, "calls": [call]}
        (verdict,) = (await client.post("/v1/submit", json=turn)).json()
        if verdict["kind"] == "run":
            assert not found, "\n".join(found)
            return
        path = f"/v1/approvals/{approval_of(verdict['item_id'])[0]}"
        assert (await client.get(path)).status_code == 200
        assert (await client.get("/v1/approvals")).status_code == 200
        edit = Edit(args={**args, "added": 1})
        outcome = await stack.harness.decide(verdict["item_id"], edit)
        assert isinstance(outcome, Decided)

    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", ["events", "answers"])
async def test_a_key_that_is_revoked_during_a_wait_reads_nothing(
    stack: ApiStack, path: str
) -> None:
    ref, verdict = await refund(stack)
    key = stack.key()
    id_ = key.split("_")[1]
    async with stack.client(key) as client:
        if path == "events":
            asked = client.get("/v1/events", params={"wait": 30})
        else:
            question = AnswersQuestion(
                run=ref.run_ref, questions=(OpenQuestion.about(verdict),), wait_s=30
            )
            asked = client.post("/v1/answers", content=question.model_dump_json())
        waiting = asyncio.create_task(asked)
        limits = stack.api.limits
        await eventually(lambda: limits._waits[id_] == 1)  # pyright: ignore[reportPrivateUsage] - shows that the request waits now
        stack.kept[id_] = stack.kept[id_].with_(revoked_at=NOW)

        await decide(stack, verdict)

        assert (await waiting).status_code == 401
