"""A turn that opens unread is refused, counted and reported like every other one."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Reject
from keyturn.gateway.approvals.events import Event
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    CallHint,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from keyturn.gateway.service.submit.submitting import FORBIDDEN
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind, paused
from tests.service.harness import ANA, POLICY, ServiceHarness

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


async def audited(harness: ServiceHarness) -> list[Event]:
    return await harness.audited()


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
    harness.policy = load_policy(ruled(rule, more), "policy.yml")

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


@pytest.mark.parametrize(
    "scope",
    [
        FreezeScope(kind=ScopeKind.TENANT),
        FreezeScope(kind=ScopeKind.AGENT, name="support"),
        FreezeScope(kind=ScopeKind.TOOL, name="look_up_order"),
    ],
    ids=str,
)
async def test_a_freeze_stops_it(harness: ServiceHarness, scope: FreezeScope) -> None:
    await harness.reviews.freezes.freeze(scope, "T0/U0ANA", "wrong orders")

    _, verdicts = await harness.submit(CALL)

    assert verdicts[0].kind is VerdictKind.DENY
    assert "wrong orders" in verdicts[0].reason


async def test_a_pause_of_the_agent_stops_it(harness: ServiceHarness) -> None:
    policy = POLICY.replace("pause_after_rejections: 1000", "pause_after_rejections: 1")
    harness.policy = load_policy(policy, "policy.yml")
    click, _ = await harness.refund()
    await harness.reviews.decide(click, Reject(), ANA)
    frozen = harness.keys.frozen
    assert await harness.command("HEXISTS", frozen, paused("support"))

    _, verdicts = await harness.submit(CALL)

    assert verdicts[0].kind is VerdictKind.DENY
    assert "paused" in verdicts[0].reason


async def test_a_call_that_was_rejected_under_another_policy_is_not_run(
    harness: ServiceHarness,
) -> None:
    protected = POLICY.replace("same_rejected_within: 0", "same_rejected_within: 9")
    asking = ruled("{tier: approve}", policy=protected)
    harness.policy = load_policy(asking, "policy.yml")
    _, held = await harness.submit(CALL)
    no = Reject(reason="Never this one.")
    await harness.decide(held[0], no)
    harness.policy = load_policy(protected, "policy.yml")

    _, (same,) = await harness.submit(CALL)
    _, (other,) = await harness.submit(("look_up_order", {"id": "2"}))
    _, (elsewhere,) = await harness.submit(CALL, thread="t2")

    assert same.kind is VerdictKind.DENY
    assert "Never this one." in same.reason
    assert [other.kind, elsewhere.kind] == [VerdictKind.RUN, VerdictKind.RUN]


async def test_it_is_answered_again_by_the_policy_of_then_and_now(
    harness: ServiceHarness,
) -> None:
    _, before = await harness.submit(CALL, message_id="m1")
    told = len(await audited(harness))
    _, same = await harness.submit(CALL, message_id="m1")
    harness.policy = load_policy(ruled("{tier: deny}"), "policy.yml")
    _, now = await harness.submit(CALL, message_id="m1")

    assert before == same
    assert (now[0].kind, now[0].reason) == (VerdictKind.DENY, FORBIDDEN)
    assert len(await audited(harness)) == told


async def test_a_stored_denial_is_not_lifted_by_a_looser_policy(
    harness: ServiceHarness,
) -> None:
    loose = harness.policy
    harness.policy = load_policy(ruled("{tier: deny}"), "policy.yml")
    _, before = await harness.submit(CALL, message_id="m1")
    harness.policy = loose

    _, now = await harness.submit(CALL, message_id="m1")

    assert now == before
    assert now[0].kind is VerdictKind.DENY


async def test_the_audit_log_is_told_the_same_of_it(harness: ServiceHarness) -> None:
    await harness.submit(CALL, message_id="m1")
    # A rule that never fires: the same call is evaluated the long way.
    harness.policy = load_policy(ruled(f"{{tier: auto, raise: {RULE}}}"), "policy.yml")
    await harness.submit(("look_up_order", {"n": 1}), message_id="m1", thread="t2")

    unread, read = [
        one.with_(policy_digest="", thread="", at_ms=0, seq="")
        for one in await audited(harness)
    ]

    assert unread == read


async def test_it_is_a_precedent_of_a_later_call(harness: ServiceHarness) -> None:
    await harness.submit(CALL)
    repeated = "{to: deny, when: recent.same_done_24h > 0, because: done}"
    rule = f"{{tier: auto, raise: [{repeated}]}}"
    harness.policy = load_policy(ruled(rule), "policy.yml")

    _, (again,) = await harness.submit(CALL)
    _, (other,) = await harness.submit(("look_up_order", {"id": "2"}))

    assert [again.kind, other.kind] == [VerdictKind.DENY, VerdictKind.RUN]
