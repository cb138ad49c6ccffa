"""An agent that asks too much, or again after a rejection, has to slow down or stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import RunRef
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, Verdict, VerdictKind
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.limits.history import AgentLoad
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.store import Store
from tests.service.harness import BEN, POLICY, ServiceHarness, claim_of

AGENT = FreezeScope(kind=ScopeKind.AGENT, name="support")


def guarded(store: Store, **limits: int) -> ServiceHarness:
    """Return a desk that protects attention by these limits."""
    given = {
        "pending_per_agent": 100,
        "requests_per_10m": 100,
        "same_rejected_within": 0,
        "pause_after_rejections": 100,
    } | limits
    before, _, after = POLICY.partition("protect:")
    rows = "".join(f"  {name}: {value}\n" for name, value in given.items())
    text = f"{before}protect:\n{rows}tools:{after.partition('tools:')[2]}"
    return ServiceHarness(store, load_policy(text, "policy.yml"))


def kinds(verdicts: tuple[Verdict, ...]) -> list[VerdictKind]:
    return [one.kind for one in verdicts]


async def load(harness: ServiceHarness) -> AgentLoad:
    return await harness.store.agent_load.load(
        harness.keys,
        "support",
        "t1",
        RunRef(agent="support", thread="t1"),
        turn_key="none",
    )


HOLD, DENY, RUN = VerdictKind.HOLD, VerdictKind.DENY, VerdictKind.RUN


async def test_no_more_than_the_cap_of_an_agent_waits(store: Store) -> None:
    harness = guarded(store, pending_per_agent=3)

    _, first = await harness.submit(("send_email", {"n": 1}), ("send_email", {"n": 2}))
    _, second = await harness.submit(
        ("send_email", {"n": 3}), ("look_up_order", {}), ("send_email", {"n": 4}),
        thread="t2",
    )  # fmt: skip

    assert kinds(first) == [HOLD, HOLD]
    assert kinds(second) == [HOLD, RUN, DENY]
    assert "3 of your calls wait" in second[2].reason
    assert "Slow down" in second[2].reason


@pytest.mark.parametrize("end", ["reject", "expire", "move_on"])
async def test_what_waits_no_longer_makes_room(store: Store, end: str) -> None:
    harness = guarded(store, pending_per_agent=1)
    ref, verdicts = await harness.submit(("send_email", {}))

    match end:
        case "reject":
            await harness.decide(verdicts[0], Reject())
        case "expire":
            await harness.overdue((await harness.approval(verdicts[0].item_id)).id)
            await harness.sweeper.sweep()
        case _:
            await harness.agents.supersede(ref)

    _, next_ = await harness.submit(("send_email", {}), thread="t2")
    assert kinds(next_) == [HOLD]


async def test_at_once_no_more_than_the_cap_gets_through(store: Store) -> None:
    harness = guarded(store, pending_per_agent=5)

    answers = await asyncio.gather(
        *(harness.submit(("send_email", {"n": n}), thread=f"t{n}") for n in range(30))
    )

    held = [verdicts for _, verdicts in answers if kinds(verdicts) == [HOLD]]
    assert len(held) == 5


async def test_a_flood_is_put_to_people_only_up_to_the_rate(store: Store) -> None:
    harness = guarded(store, requests_per_10m=4)
    for n in range(4):
        _, verdicts = await harness.submit(("send_email", {"n": n}), thread=f"t{n}")
        await harness.decide(verdicts[0], Approve())

    _, fifth = await harness.submit(("send_email", {}), ("look_up_order", {}))

    assert kinds(fifth) == [DENY, RUN]
    assert "4 of your calls came in 10 minutes" in fifth[0].reason


async def test_an_agent_that_floods_people_is_asked_to_wait(store: Store) -> None:
    harness = guarded(store, flood_per_10m=2)
    _, before = await harness.submit(("send_email", {"n": 1}), ("send_email", {}))
    ref, beyond = await harness.submit(
        ("send_email", {"n": 2}), ("look_up_order", {}), thread="t2"
    )
    _, again = await harness.submit(
        ("send_email", {"n": 2}),
        ("look_up_order", {}),
        thread="t2",
        message_id=ref.message_id,
    )

    pauses = [(one.retry_after_s, one.waiting) for one in (*before, *beyond)]
    assert pauses == [(0, 0), (0, 0), (600, 3), (0, 0)]
    assert again == beyond


async def test_a_card_says_the_how_manyth_request_it_is(store: Store) -> None:
    harness = guarded(store)
    await harness.submit(("send_email", {}), ("look_up_order", {}), ("send_email", {}))

    _, verdicts = await harness.submit(("send_email", {}), thread="t2")

    assert (await harness.approval(verdicts[0].item_id)).recent_requests == 3


async def test_the_same_call_is_not_asked_again_within_its_turns(store: Store) -> None:
    harness = guarded(store, same_rejected_within=2)
    call: tuple[str, JsonObject] = ("process_refund", {"amount": 899})
    _, verdicts = await harness.submit(call)
    no = Reject(reason="Wrong customer.")
    await harness.decide(verdicts[0], no)

    _, again = await harness.submit(call)
    _, other = await harness.submit(("process_refund", {"amount": 900}))
    _, third = await harness.submit(call)

    assert kinds(again) == [DENY]
    assert "ANA rejected exactly this call" in again[0].reason
    assert "Wrong customer." in again[0].reason
    assert kinds(other) == [HOLD]
    assert kinds(third) == [HOLD]


async def rejected(harness: ServiceHarness, times: int) -> None:
    for n in range(times):
        _, verdicts = await harness.submit(("send_email", {"n": n}), thread=f"r{n}")
        await harness.decide(verdicts[0], Reject())


async def test_an_agent_rejected_again_and_again_is_paused(store: Store) -> None:
    harness = guarded(store, pause_after_rejections=3)
    ref, waiting = await harness.submit(("process_refund", {}))
    click = await harness.click(waiting[0])
    await rejected(harness, 3)
    _, new = await harness.submit(
        ("send_email", {}), ("look_up_order", {}), thread="t9"
    )

    await harness.reviews.decide(click, Approve(), BEN)
    claim = await harness.agents.claim(claim_of(ref, waiting[0]))

    [paused] = await harness.audited(EventName.AGENT_PAUSED)
    assert kinds(new) == [DENY, DENY]
    assert "paused: its calls were rejected in a row" in new[0].reason
    assert isinstance(claim, Claimed)
    assert (paused.agent, paused.actor) == ("support", "keyturn")


async def test_unfreezing_an_agent_ends_its_pause(store: Store) -> None:
    harness = guarded(store, pause_after_rejections=2)
    await rejected(harness, 2)
    frozen = await harness.reviews.freezes.frozen()

    await harness.reviews.freezes.unfreeze(AGENT, "T0/U0ANA", "mended")

    _, verdicts = await harness.submit(("send_email", {}))
    assert [one.is_pause for one in frozen] == [True]
    assert kinds(verdicts) == [HOLD]
    assert await harness.reviews.freezes.frozen() == ()


@pytest.mark.parametrize(
    ("rule", "is_raised"),
    [
        ("recent.requests_10m >= 2", True),
        ("recent.requests_10m > 2", False),
        ("recent.rejections_in_row == 1", True),
        ("recent.failures_1h > 0", False),
    ],
)
async def test_policy_is_told_how_the_agent_fared(
    store: Store, rule: str, *, is_raised: bool
) -> None:
    harness = guarded(store)
    await rejected(harness, 1)
    raise_ = f'{{to: escalate, when: "{rule}", because: "busy"}}'
    tool = f"process_refund: {{tier: approve, raise: [{raise_}]}}"
    harness.put_policy(("process_refund: {tier: approve}", tool))

    _, verdicts = await harness.submit(("process_refund", {"amount": 1}))

    assert (verdicts[0].tier == "escalate") is is_raised


MAKERS = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: maker}
roles: {support: {users: [U0ANA, U0BEN]}}
requirements: {maker: {of: [support], editor_may_vote: false}}
attention: {per_person: 1}
tools: {mail: {tier: approve, args_schema: {properties: {to: {type: string}}}}}
"""


async def test_a_person_who_may_not_vote_is_not_notified(store: Store) -> None:
    harness = ServiceHarness(store, load_policy(MAKERS, "policy.yml"))
    _, (verdict,) = await harness.submit(("mail", {"to": "a"}))
    approval = await harness.approval(verdict.item_id)
    before_ms = approval.created_at_ms - 1
    await store.cards.note_notified(harness.keys, "ap_x", ["U0ANA"], before_ms)

    # Now only Ana may approve, and she had enough cards.
    await harness.decide(verdict, Edit(args={"to": "b"}), BEN)

    loaded = await harness.reviews.read_as_of_now(approval.id)
    assert loaded is not None
    (role,) = loaded.approval.items[0].requirement.roles
    assert (role.asked.users, role.asked.silent) == (("U0BEN",), "enough")


async def test_a_card_counts_the_same_when_it_is_drawn_again(store: Store) -> None:
    cards, keys, hour_ms = store.cards, store.keys_of_tenant("default"), 3_600_000
    drawn_ms = await store.conn.now_ms(keys.outbox)
    within = timedelta(hours=24)
    await cards.note_notified(keys, "ap_1", ["U0ANA"], drawn_ms - 23 * hour_ms)
    before = await cards.notified(keys, "U0ANA", drawn_ms, within)

    await cards.note_notified(keys, "ap_2", ["U0ANA"], drawn_ms + 2 * hour_ms)

    assert before == 1
    assert await cards.notified(keys, "U0ANA", drawn_ms, within) == before


async def test_only_an_agents_own_calls_are_read_to_count_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, read = guarded(store), list[str]()
    load_each = store.approvals.load_each

    async def noting(approvals: Iterable[str]) -> list[Loaded]:
        read.extend(ids := [*approvals])
        return await load_each(ids)

    await harness.submit(("refund", {"n": 1}), agent="other", thread="t0")
    _, verdicts = await harness.submit(("refund", {"n": 1}), ("wire_money", {"n": 1}))
    _, (ended,) = await harness.submit(("refund", {"n": 3}), thread="t2")
    await harness.decide(ended, Reject(), BEN)
    monkeypatch.setattr(store.approvals, "load_each", noting)

    queue, channel = harness.reviews.queue, harness.policy.defaults.channel
    counts = await queue.waiting_by_tool("support", channel)

    assert counts == ({"refund": 1, "wire_money": 1}, 0)
    assert await queue.waiting_by_tool("support", "#other") == ({}, 2)
    assert {*read} == {(await harness.approval(one.item_id)).id for one in verdicts}
