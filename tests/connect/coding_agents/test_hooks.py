"""Each row of the hooks' specification, over HTTP, with people who decide."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from keyturn.connect import hooks as answering
from keyturn.gateway.api.rate_limits import RateLimits
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.http_api import Scope
from keyturn.gateway.protocol.http_problems import TOO_MANY
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.http.left_calls import LeftCalls
from keyturn.gateway.store.store import Store
from tests.connect.coding_agents.conftest import GATED, POLICY, Hooks


@pytest.mark.parametrize("of", ["claude-code", "codex"])
async def test_concurrent_calls_replace_none(hooks: Hooks, of: str) -> None:
    bodies = [hooks.body(f"make {n}") for n in range(3)]
    asked = [await hooks.asking(body, of=of) for body in bodies]

    for at, decision in ((2, Approve()), (0, Reject()), (1, Approve())):
        await hooks.decide(decision, at)

    found = [(await task).get("permissionDecision") for task in asked]
    runs = "allow" if of == "claude-code" else None
    assert found == ["deny", runs, runs]


@pytest.mark.parametrize("tool", ["Read", "Glob"])
async def test_an_auto_call_follows_the_users_rules(hooks: Hooks, tool: str) -> None:
    assert await hooks.ask(hooks.body(tool_name=tool)) == {}


async def test_a_call_of_tier_notify_is_handed_over_once(hooks: Hooks) -> None:
    body = hooks.body(tool_name="Glob")

    assert [await hooks.ask(body), await hooks.ask(body)] == [{}, {}]

    assert len(await hooks.people.announced(EventName.ITEM_HANDED_OVER)) == 1


async def test_an_approved_call_is_allowed_and_handed_over(hooks: Hooks) -> None:
    asked = await hooks.asking()
    await hooks.decide(Approve())

    assert (await asked)["permissionDecision"] == "allow"
    assert "updatedInput" not in await asked
    assert await hooks.state() == "handed_over"
    assert (await hooks.approval()).items[0].handed_to == "Claude Code"


async def test_an_edit_runs_the_whole_changed_input_and_is_told(hooks: Hooks) -> None:
    asked = await hooks.asking(hooks.body(timeout=7.0))
    change: JsonObject = {"command": "make -n", "description": "Build"}
    await hooks.decide(Edit(args=change, reason="look first"))

    answer = await asked
    assert answer["permissionDecision"] == "allow"
    assert answer["updatedInput"] == change
    assert [*answer["updatedInput"]] == ["command", "description"]
    assert "look first" in answer["additionalContext"]
    assert "make -n" in answer["additionalContext"]


async def test_an_agent_that_floods_people_is_told_to_wait(hooks: Hooks) -> None:
    flood = ("protect: {", "protect: {flood_per_10m: 1, ")
    hooks.people.put_policy(flood, of=POLICY)
    await hooks.asking(hooks.body("make"))
    asked = await hooks.asking(hooks.body("make install"))
    await hooks.decide(Reject(reason="no"))

    assert "or combine several calls" in (await asked)["permissionDecisionReason"]


# Calls that outlast their request.


async def test_a_request_that_waited_too_long_is_denied(hooks: Hooks) -> None:
    answer = await hooks.ask(wait_s=0)

    assert answer["permissionDecision"] == "deny"
    assert "same call again" in answer["permissionDecisionReason"]
    assert await hooks.state() == "pending"


@pytest.mark.parametrize("decides_before", [True, False])
async def test_a_repeated_call_joins_it(hooks: Hooks, *, decides_before: bool) -> None:
    await hooks.ask(wait_s=0)
    if decides_before:
        await hooks.decide(Approve())
        answer = await hooks.ask()
    else:
        task = asyncio.create_task(hooks.ask())
        await hooks.decide(Approve())
        answer = await task

    assert answer["permissionDecision"] == "allow"
    assert len(await hooks.opened()) == 1


async def test_a_rejection_reaches_the_same_call_again(hooks: Hooks) -> None:
    await hooks.ask(wait_s=0)
    await hooks.decide(Reject(reason="no"))

    assert "rejected" in (await hooks.ask())["permissionDecisionReason"]
    assert len(await hooks.opened()) == 1


@pytest.mark.parametrize("later_s", [0, 120])
async def test_the_same_call_after_its_answer_is_a_new_call(
    hooks: Hooks, later_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await hooks.asking()
    await hooks.decide(Approve())
    await first

    clock = hooks.people.store.conn.clock
    monkeypatch.setattr(clock, "now_s", _later(clock.now_s, later_s))
    await hooks.ask(wait_s=0)

    assert len(await hooks.opened()) == 2
    assert await hooks.state() == "pending"


async def test_two_callers_of_the_same_call_get_two_approvals(hooks: Hooks) -> None:
    tasks = [await hooks.asking(), await hooks.asking()]

    await hooks.decide(Approve(), 0)
    await hooks.decide(Reject(), 1)

    found = [(await task)["permissionDecision"] for task in tasks]
    assert found == ["allow", "deny"]


async def test_two_retries_of_two_left_calls_join_one_each(hooks: Hooks) -> None:
    await asyncio.gather(*(hooks.ask(wait_s=0) for _ in range(2)))
    for at in range(2):
        await hooks.decide(Approve(), at)

    answers = await asyncio.gather(*(hooks.ask() for _ in range(2)))

    assert [one["permissionDecision"] for one in answers] == ["allow", "allow"]
    assert [await hooks.state(at) for at in range(2)] == ["handed_over"] * 2
    assert len(await hooks.opened()) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"session_id": "other"},
        {"cwd": "/home/dan/other"},
        {"tool_input": {"command": "make -j"}},
    ],
)
async def test_only_the_same_call_joins(hooks: Hooks, change: dict[str, Any]) -> None:
    await hooks.ask(wait_s=0)
    await hooks.ask(hooks.body(**change), wait_s=0)

    assert len(await hooks.opened()) == 2


async def test_an_approval_counts_in_its_folder_only(hooks: Hooks) -> None:
    body = hooks.body()
    await hooks.ask(body, wait_s=0)
    await hooks.decide(Approve())

    found = await hooks.ask({**body, "cwd": "/etc"}, wait_s=0)

    assert found["permissionDecision"] == "deny"
    assert [await hooks.state(at) for at in range(2)] == ["authorized", "pending"]
    assert (await hooks.ask(body))["permissionDecision"] == "allow"


async def test_a_call_joins_at_another_gateway_too(hooks: Hooks) -> None:
    await hooks.ask(wait_s=0)
    await hooks.decide(Approve())
    # Another process has the store and no memory of the first request.
    routes = answering.hook_routes(hooks.people.store)
    hooks.stack.api.routes = routes(hooks.stack.api.tenant, hooks.stack.api.limits)

    assert (await hooks.ask())["permissionDecision"] == "allow"
    assert len(await hooks.opened()) == 1


async def test_a_call_that_a_dead_gateway_held_can_be_joined_later(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(LeftCalls, "hold", _hold_once(LeftCalls.hold))
        await hooks.ask(wait_s=0)
    clock = hooks.people.store.conn.clock
    monkeypatch.setattr(clock, "now_s", _later(clock.now_s))
    await hooks.ask(wait_s=0)

    assert len(await hooks.opened()) == 1


def _hold_once(hold: Any) -> Any:
    async def only_at_first(self: Any, place: str, call: str, wait_s: float) -> None:
        if wait_s:
            await hold(self, place, call, wait_s)

    return only_at_first


def _later(now_s: Callable[[], float], by_s: float = 120) -> Callable[[], float]:
    return lambda: now_s() + by_s


async def test_nothing_is_handed_to_a_caller_that_has_gone(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = asyncio.Event()
    hold = LeftCalls.hold

    async def noticed(self: Any, place: str, call: str, wait_s: float) -> None:
        await hold(self, place, call, wait_s)
        if not wait_s:
            left.set()

    monkeypatch.setattr(LeftCalls, "hold", noticed)
    asked = await hooks.asking()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await hooks.decide(Approve())
    # Long before the end of its wait.
    async with asyncio.timeout(20):
        await left.wait()

    assert (await hooks.ask())["permissionDecision"] == "allow"

    assert await hooks.state() == "handed_over"
    assert len(await hooks.people.announced(EventName.ITEM_HANDED_OVER)) == 1
    assert len(await hooks.opened()) == 1


async def test_the_same_request_again_gets_the_same_answer_for_ten_minutes(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = hooks.body()
    asked = await hooks.asking(body)
    await hooks.decide(Edit(args={"command": "make -n"}))
    first = await asked

    assert await hooks.ask(body) == first
    monkeypatch.setattr(answering, "REPEATED_WITHIN", timedelta(seconds=-60))
    later = await hooks.ask(body)
    assert later["permissionDecision"] == "deny"
    assert "handed over before" in later["permissionDecisionReason"]
    assert len(await hooks.people.announced(EventName.ITEM_HANDED_OVER)) == 1


async def test_a_joined_call_answers_its_requests_alike(hooks: Hooks) -> None:
    await hooks.ask(wait_s=0)
    await hooks.decide(Approve())
    again = hooks.body()

    assert await hooks.ask(again) == await hooks.ask(again)
    assert len(await hooks.opened()) == 1


@pytest.mark.parametrize("forges", ["list", "join"])
async def test_the_store_alone_repeats_no_decision(hooks: Hooks, forges: str) -> None:
    body, again = hooks.body(), hooks.body()
    asked = await hooks.asking(body)
    store, session = hooks.people.store, json.dumps(["coder", "claude-code", "5d1c"])
    [listed] = await _command(store, "KEYS", "*:left:*")
    [member] = await _command(store, "ZRANGE", listed, 0, -1)
    await hooks.decide(Approve())
    assert (await asked)["permissionDecision"] == "allow"

    if forges == "list":
        await _command(store, "ZADD", listed, 0, member)
        await _command(store, "PEXPIRE", listed, 1000)
    else:
        at = store.keys_of_tenant("default").joined_call(
            f"{session} {again['tool_use_id']}"
        )
        await _command(store, "SET", at, body["tool_use_id"], "PX", 1000)

    for _ in range(2):
        assert (await hooks.ask(again, wait_s=0))["permissionDecision"] == "deny"


async def test_the_store_alone_moves_no_decision_elsewhere(hooks: Hooks) -> None:
    await hooks.ask(wait_s=0)
    store = hooks.people.store
    [listed] = await _command(store, "KEYS", "*:left:*")
    [member] = await _command(store, "ZRANGE", listed, 0, -1)
    other = hooks.body(cwd="/etc")
    await hooks.ask(other, wait_s=0)
    [there] = set(await _command(store, "KEYS", "*:left:*")) - {listed}
    await _command(store, "ZREMRANGEBYRANK", there, 0, -1)
    await _command(store, "ZADD", there, 0, member)
    await _command(store, "PEXPIRE", there, 1000)

    await hooks.decide(Approve(), 0)
    found = await hooks.ask(hooks.body(cwd="/etc"), wait_s=0)
    assert found["permissionDecision"] == "deny"
    assert await hooks.state(0) == "authorized"


async def _command(store: Store, *parts: Any) -> Any:
    return await store.conn.command(*parts)


async def test_replays_at_once_hand_the_decision_over_once(hooks: Hooks) -> None:
    body = hooks.body()
    await hooks.ask(body, wait_s=0)
    await hooks.decide(Approve())

    answers = await asyncio.gather(*(hooks.ask(body) for _ in range(8)))

    assert {one["permissionDecision"] for one in answers} == {"allow"}
    assert len(await hooks.people.announced(EventName.ITEM_HANDED_OVER)) == 1


@pytest.mark.parametrize(
    ("mode", "decision"), [("default", "defer"), ("bypassPermissions", "deny")]
)
async def test_settings_may_defer_calls(hooks: Hooks, mode: str, decision: str) -> None:
    body = hooks.body(permission_mode=mode)

    assert (await hooks.ask(body, wait_s=0))["permissionDecision"] == "deny"
    found = await hooks.ask(body, wait_s=0, params={"defer": "1"})
    assert found["permissionDecision"] == decision

    await hooks.decide(Approve())
    # `--resume` asks again with the same id.
    assert (await hooks.ask(body, params={"defer": "1"}))["permissionDecision"] == (
        "allow"
    )


# Failures.


@pytest.mark.parametrize("place", ["submit", "claim", "hand_over"])
@pytest.mark.parametrize(
    "error", [StoreUnavailable("The store is away."), RuntimeError("bug")]
)
async def test_every_failure_of_the_gateway_is_a_denial(
    hooks: Hooks, place: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = hooks.body()
    await hooks.ask(body, wait_s=0)
    await hooks.decide(Approve())

    async def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as failing:
        failing.setattr(type(hooks.stack.api.tenant.port), place, fails)
        answer = await hooks.ask(body)

    assert answer["permissionDecision"] == "deny"
    assert answer["permissionDecisionReason"]
    assert await hooks.state() != "handed_over"


async def test_a_call_is_not_allowed_if_the_hand_over_is_not_recorded(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = hooks.body()
    await hooks.ask(body, wait_s=0)
    await hooks.decide(Approve())

    async def lost(*_: object) -> bool:
        return False

    monkeypatch.setattr(type(hooks.stack.api.tenant.port), "hand_over", lost)

    assert (await hooks.ask(body, wait_s=0))["permissionDecision"] == "deny"


async def test_a_body_that_is_too_large_is_no_answer(hooks: Hooks) -> None:
    body = hooks.body("x" * 4 * 1024 * 1024)

    assert (await hooks.post(body)).status_code == 413


@pytest.mark.parametrize("place", ["take", "store", "waiting"])
async def test_a_limit_of_the_key_is_a_denial(
    hooks: Hooks, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise Refusal(TOO_MANY, "This key waits too often.")

    with monkeypatch.context() as limited:
        limited.setattr(RateLimits, place, refuses)
        answer = await hooks.ask()

    assert answer["permissionDecision"] == "deny"
    assert "waits too often" in answer["permissionDecisionReason"]
    # A call that was opened before the refusal is joined, not opened twice.
    await hooks.ask(wait_s=0)
    assert len(await hooks.opened()) == 1


async def test_a_requester_that_is_no_slack_id_is_a_denial(hooks: Hooks) -> None:
    answer = await hooks.ask(headers={"Keyturn-Requester": "dan"})

    assert answer["permissionDecision"] == "deny"
    assert "Slack user" in answer["permissionDecisionReason"]


async def test_a_call_that_could_not_be_joined_can_be_joined_later(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    await hooks.ask(wait_s=0)

    async def fails(*_: object) -> None:
        raise StoreUnavailable("The store is away.")

    with monkeypatch.context() as failing:
        failing.setattr(type(hooks.stack.api.tenant.port), "submit", fails)
        assert (await hooks.ask())["permissionDecision"] == "deny"
    clock = hooks.people.store.conn.clock
    monkeypatch.setattr(clock, "now_s", _later(clock.now_s))
    await hooks.ask(wait_s=0)

    assert len(await hooks.opened()) == 1


async def test_sessions_with_blanks_are_kept_apart(hooks: Hooks) -> None:
    other = hooks.stack.key(agents=["coder claude-code 1"])
    await hooks.ask(hooks.body(session_id="1 claude-code 2"), wait_s=0)
    await hooks.ask(hooks.body(session_id="2"), wait_s=0, key=other)
    # The second one must not take the first one's place.
    await hooks.decide(Approve(), 0)
    answer = await hooks.ask(hooks.body(session_id="1 claude-code 2"))

    assert answer["permissionDecision"] == "allow"
    assert len(await hooks.opened()) == 2


async def test_a_stopping_process_is_a_denial(hooks: Hooks) -> None:
    hooks.stack.api.is_stopping = True

    answer = await hooks.ask()

    assert answer["permissionDecision"] == "deny"
    assert "stopping" in answer["permissionDecisionReason"]


async def test_a_key_that_cannot_be_checked_is_a_denial(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_: str) -> None:
        raise StoreUnavailable("The store is away.")

    monkeypatch.setattr(hooks.stack.api.keys, "_find", away)

    assert (await hooks.ask())["permissionDecision"] == "deny"


async def test_a_tool_that_the_key_excludes_is_a_denial(hooks: Hooks) -> None:
    key = hooks.stack.key(agents=["coder"], tools=["Read"])

    answer = await hooks.ask(key=key)

    assert answer["permissionDecision"] == "deny"
    assert "may not use the tool 'Bash'" in answer["permissionDecisionReason"]


async def test_a_number_that_programs_round_is_a_denial(hooks: Hooks) -> None:
    answer = await hooks.ask(hooks.body(tool_input={"command": "x", "id": 2**70}))

    assert answer["permissionDecision"] == "deny"
    assert "/tool_input/id" in answer["permissionDecisionReason"]


async def test_an_invalid_key_is_no_answer(hooks: Hooks) -> None:
    assert (await hooks.post(key="tk_wrong")).status_code == 401


@pytest.mark.parametrize("scope", list(Scope))
async def test_the_key_needs_every_scope(hooks: Hooks, scope: Scope) -> None:
    key = hooks.stack.key(agents=["coder"], scopes={*Scope} - {scope})

    assert (await hooks.post(key=key)).status_code == 403


@pytest.mark.parametrize("agents", [["*"], ["coder", "other"]])
async def test_the_key_names_the_agent(hooks: Hooks, agents: list[str]) -> None:
    response = await hooks.post(key=hooks.stack.key(agents=agents))

    assert response.status_code == 403
    assert "exactly one agent" in response.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"hook_event_name": "Stop"}', b"<html>"],
)
async def test_a_malformed_body_is_no_answer(hooks: Hooks, body: bytes) -> None:
    async with hooks.stack.client(hooks.key) as client:
        response = await client.post("/v1/hooks/claude-code", content=body)

    assert response.status_code == 400


@pytest.mark.parametrize("given", ["soon", "nan", ""])
async def test_a_wait_that_is_no_number_is_no_answer(hooks: Hooks, given: str) -> None:
    response = await hooks.post(headers={"Keyturn-Hook-Wait": given})

    assert response.status_code == 400


# The rest.


async def test_calls_of_a_gated_server_are_not_asked_about_twice(hooks: Hooks) -> None:
    gated = hooks.body(tool_name=f"mcp__{GATED}__pay")
    other = hooks.body(tool_name=f"mcp__{GATED}2__pay")

    assert await hooks.ask(gated) == {}
    assert (await hooks.ask(other, wait_s=0))["permissionDecision"] == "deny"


async def test_a_requester_of_the_settings_cannot_approve(hooks: Hooks) -> None:
    headers = {"Keyturn-Requester": "U0ANA"}
    await hooks.ask(wait_s=0, headers=headers)

    await hooks.decide(Approve())

    assert await hooks.state() == "pending"
    requester = (await hooks.approval()).requester
    assert requester is not None
    assert requester.user == "U0ANA"


@pytest.mark.parametrize(
    ("event", "ok"), [("PostToolUse", True), ("PostToolUseFailure", False)]
)
@pytest.mark.parametrize("joins", [True, False])
async def test_a_later_hook_reports_how_the_call_ended(
    hooks: Hooks, event: str, *, ok: bool, joins: bool
) -> None:
    body = hooks.body()
    await hooks.ask(hooks.body() if joins else body, wait_s=0)
    await hooks.decide(Approve())
    await hooks.ask(body)
    error = {} if ok else {"error": "exit 2"}

    # The call may have changed the folder.
    report = {**body, "hook_event_name": event, "cwd": "/home/dan/app/src", **error}
    assert await hooks.ask(report) == {}

    reported = (await hooks.approval()).items[0].handed.reported
    assert reported is not None
    assert (reported.ok, reported.summary) == (ok, error.get("error", ""))
    assert await hooks.state() == "handed_over"


async def test_a_report_of_an_unknown_call_is_ignored(hooks: Hooks) -> None:
    assert await hooks.ask(hooks.body(hook_event_name="PostToolUse")) == {}


async def test_codex_is_offered_no_edit_and_no_permission(hooks: Hooks) -> None:
    asked = await hooks.asking(of="codex")
    [item] = (await hooks.approval()).items
    await hooks.decide(Approve())

    # Codex takes a plain "allow" as an unsupported answer.
    assert await asked == {}
    assert "edit" not in {verb.value for verb in item.allow}
    assert (await hooks.approval()).items[0].handed_to == "Codex"
