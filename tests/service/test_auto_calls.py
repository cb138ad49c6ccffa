"""A turn that opens unread is refused, counted and reported like every other one."""

from __future__ import annotations

import asyncio

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import Result, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    CallEnd,
    CallHint,
    ProposedCall,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.service.submit.submitting import FORBIDDEN, NEEDS_A_PERSON
from keyturn.gateway.store.store import Store
from tests.service.harness import POLICY, ServiceHarness

LOOK_UP = "look_up_order: {tier: auto}"
RULE = "[{to: deny, when: args.n > 9, because: many}]"
ORDER: JsonObject = {"id": "1"}
CALL = ("look_up_order", ORDER)


def ruled(rule: str, more: str = "", policy: str = POLICY) -> str:
    assert LOOK_UP in policy
    return policy.replace(LOOK_UP, f"look_up_order: {rule}") + more


@pytest.fixture
def readings(harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Note every reading of what a turn is evaluated by."""
    read = harness.store.agent_load.load
    made: list[object] = []

    async def noted(*args: object, **kwargs: object) -> object:
        load = await read(*args, **kwargs)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - handed on as it came
        made.append(load)
        return load

    monkeypatch.setattr(harness.store.agent_load, "load", noted)
    return made


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        (f"{{tier: auto, raise: {RULE}}}", ""),
        ("{tier: auto, args_schema: {type: object}}", ""),
        ("{tier: auto, triage: {timeout: 20s, tiers: [auto]}}", ""),
        (
            "{tier: auto}",
            "windows:\n  w: {tools: [look_up_order], sum: 1, within: 1h}\n",
        ),
        ("{tier: auto}", "spot_checks: {share: 1%, of: [support]}\n"),
        (
            "{tier: auto}",
            f"agents:\n  support: {{tools: {{look_up_order: {{raise: {RULE}}}}}}}\n",
        ),
    ],
)
async def test_what_else_has_a_say_is_read(
    harness: ServiceHarness, readings: list[object], rule: str, more: str
) -> None:
    harness.put_policy(of=ruled(rule, more))

    await harness.submit(CALL)

    assert len(readings) == 1


@pytest.mark.parametrize(
    "change",
    [{"hint": CallHint(hold=True)}, {"problem": "It does not fit."}, {"tool": ""}],
)
async def test_what_an_agent_adds_to_a_call_counts(
    harness: ServiceHarness, change: dict[str, object]
) -> None:
    call = ProposedCall(tool="look_up_order", args=ORDER, tool_call_id="c0")
    ref = TurnRef(agent="support", thread="t1", message_id="m1")

    found = await harness.agents.submit(Turn(ref=ref, calls=(call.with_(**change),)))

    assert found[0].kind is not VerdictKind.RUN


async def test_a_rejected_call_stays_rejected(harness: ServiceHarness) -> None:
    protected = POLICY.replace("same_rejected_within: 0", "same_rejected_within: 9")
    asking = ruled("{tier: approve}", policy=protected)
    harness.put_policy(of=asking)
    _, held = await harness.submit(CALL)
    no = Reject(reason="Never this one.")
    await harness.decide(held[0], no)
    harness.put_policy(of=protected)

    _, (same,) = await harness.submit(CALL)
    _, (other,) = await harness.submit(("look_up_order", {"id": "2"}))
    _, (elsewhere,) = await harness.submit(CALL, thread="t2")

    assert same.kind is VerdictKind.DENY
    assert "Never this one." in same.reason
    assert [other.kind, elsewhere.kind] == [VerdictKind.RUN, VerdictKind.RUN]


async def test_both_policies_answer_a_repeated_call(harness: ServiceHarness) -> None:
    _, before = await harness.submit(CALL, message_id="m1")
    told = len(await harness.audited())
    _, same = await harness.submit(CALL, message_id="m1")
    harness.put_policy(of=ruled("{tier: deny}"))
    _, now = await harness.submit(CALL, message_id="m1")

    assert before == same
    assert (now[0].kind, now[0].reason) == (VerdictKind.DENY, FORBIDDEN)
    assert len(await harness.audited()) == told


async def test_a_looser_policy_lifts_no_denial(harness: ServiceHarness) -> None:
    loose = harness.policy
    harness.put_policy(of=ruled("{tier: deny}"))
    _, before = await harness.submit(CALL, message_id="m1")
    harness.policy = loose

    _, now = await harness.submit(CALL, message_id="m1")

    assert now == before
    assert now[0].kind is VerdictKind.DENY


async def test_the_audit_log_is_told_the_same_of_it(harness: ServiceHarness) -> None:
    await harness.submit(CALL, message_id="m1")
    # A rule that never fires: the same call is evaluated the long way.
    harness.put_policy(of=ruled(f"{{tier: auto, raise: {RULE}}}"))
    await harness.submit(("look_up_order", {"n": 1}), message_id="m1", thread="t2")

    unread, read = [
        one.with_(policy_digest="", thread="", at_ms=0, seq="")
        for one in await harness.audited()
    ]

    assert unread == read


# An auto-approved call does not run when the policy changed.


async def cleared(harness: ServiceHarness) -> tuple[Turn, tuple[Verdict, ...]]:
    """Submit a turn with a call that runs and one that waits."""
    calls: list[tuple[str, JsonObject]] = [
        ("look_up_order", {"id": "1"}),
        ("process_refund", {"amount": 1}),
    ]
    ref, verdicts = await harness.submit(*calls)
    proposed = tuple(
        ProposedCall(tool=tool, args=args, tool_call_id=f"c{index}")
        for index, (tool, args) in enumerate(calls)
    )
    return Turn(ref=ref, calls=proposed), verdicts


@pytest.mark.parametrize(
    ("now", "reason"),
    [
        ("{tier: deny}", FORBIDDEN),
        ("{tier: approve}", NEEDS_A_PERSON),
        ("{tier: escalate}", NEEDS_A_PERSON),
    ],
)
async def test_a_cleared_call_is_refused_by_a_stricter_policy(
    harness: ServiceHarness, now: str, reason: str
) -> None:
    turn, before = await cleared(harness)
    harness.put_policy(of=ruled(now))

    run, hold = await harness.agents.submit(turn)

    assert before[0].kind is VerdictKind.RUN
    assert (run.kind, run.reason) == (VerdictKind.DENY, reason)
    assert hold == before[1]


async def test_a_looser_policy_keeps_a_call_cleared(harness: ServiceHarness) -> None:
    turn, before = await cleared(harness)
    assert await harness.agents.submit(turn) == before

    harness.put_policy(("process_refund: {tier: approve}", "pay: {tier: auto}"))

    assert await harness.agents.submit(turn) == before


# An auto-approved call takes one round trip, in any state of its thread.


@pytest.fixture
def trips(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note every round trip to the store from here on."""
    made: list[str] = []

    def noting(name: str) -> None:
        call = getattr(store.conn, name)

        async def noted(*words: object, **options: object) -> object:
            made.append(name)
            return await call(*words, **options)

        monkeypatch.setattr(store.conn, name, noted)

    for name in ("command", "transaction", "evalsha"):
        noting(name)
    return made


async def test_an_auto_call_costs_one_trip(store: Store, trips: list[str]) -> None:
    harness = ServiceHarness(store)
    await harness.submit(("look_up_order", {}))  # scripts are loaded by the first one
    trips.clear()

    _, verdicts = await harness.submit(("look_up_order", {}), thread="t2")

    assert verdicts[0].kind is VerdictKind.RUN
    # The requester is recorded first, in two; that is the desk's own.
    assert trips == ["command", "evalsha", "evalsha"]


# An auto-approved call that failed counts among the failures of its agent.

KEEPS_FAILING = """look_up_order:
    tier: auto
    raise: [{to: approve, when: recent.failures_1h > 1, because: it keeps failing}]
"""
FAILED = Result(ok=False, summary="no such order 78291")


@pytest.fixture
def failing(store: Store) -> ServiceHarness:
    harness = ServiceHarness(store)
    harness.put_policy(("look_up_order: {tier: auto}\n", KEEPS_FAILING))
    return harness


def end_of(ref: TurnRef, call: str = "c0", **changes: object) -> CallEnd:
    end = CallEnd(ref=ref, tool="look_up_order", tool_call_id=call, result=FAILED)
    return end.with_(**changes)


async def failures(failing: ServiceHarness) -> int:
    key = failing.keys.failures("support")
    count = await failing.command("ZCARD", key)
    assert isinstance(count, int)
    return count


async def test_a_rule_sees_that_calls_keep_failing(failing: ServiceHarness) -> None:
    ref, _ = await failing.submit(("look_up_order", {}), ("look_up_order", {}))
    for call in ("c0", "c1"):
        await failing.agents.ended(end_of(ref, call))

    _, (verdict,) = await failing.submit(("look_up_order", {}))

    assert verdict.tier is Tier.APPROVE


async def test_a_failure_reported_often_counts_once(failing: ServiceHarness) -> None:
    ref, _ = await failing.submit(("look_up_order", {}))

    await asyncio.gather(*(failing.agents.ended(end_of(ref)) for _ in range(8)))

    assert await failures(failing) == 1
    [told] = await failing.audited(EventName.CALL_FAILED)
    assert (told.tool, told.agent) == ("look_up_order", "support")
    assert "78291" not in told.model_dump_json()


@pytest.mark.parametrize(
    "changes",
    [
        {"result": Result(ok=True)},
        {"tool": "process_refund"},
        {"tool_call_id": "c9"},
        {"ref": TurnRef(agent="support", thread="t1", message_id="never")},
        {"ref": TurnRef(agent="other", thread="t1", message_id="m0")},
    ],
)
async def test_what_our_record_does_not_know_counts_nothing(
    failing: ServiceHarness, changes: dict[str, object]
) -> None:
    ref, _ = await failing.submit(("look_up_order", {}))

    await failing.agents.ended(end_of(ref).with_(**changes))

    assert await failures(failing) == 0
