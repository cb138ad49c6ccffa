"""People and rules learn how earlier calls with the same effect ended."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Changed,
    Decided,
    Edit,
    Outcome,
    Reject,
    Repeated,
    Voted,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.precedents import MOST_KEPT, Past, PrecedentKind
from keyturn.gateway.policy.evaluate import effect_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.records import ItemState, Result, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, Verdict, VerdictKind
from keyturn.gateway.store.store import Store
from tests.service.harness import (
    BEN,
    CHLOE,
    POLICY,
    ServiceHarness,
    claim_of,
)

RULES = """
  ship: {tier: approve, same_by: args.order}
  tell:
    tier: notify
    raise: [{to: approve, when: recent.same_done_24h > 0, because: told before}]
  look_up:
    tier: auto
    raise: [{to: approve, when: recent.same_done_24h > 1, because: looked up twice}]
  pay:
    tier: approve
    same_by: [args.order, args.customer]
    raise:
      - {to: escalate, when: recent.same_done_24h > 0, because: it was paid before}
      - {to: deny, when: recent.same_rejected_24h > 1, because: rejected twice today}
"""
NAMED = POLICY.replace(
    "process_refund: {tier: approve}",
    "process_refund: {tier: approve, same_by: [args.order, args.amount]}",
).replace(
    "wire_money: {tier: escalate}", "wire_money: {tier: escalate, same_by: args.amount}"
)
PRECEDENTS = load_policy(NAMED + RULES, "policy.yml")
REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 899, "order": "7"})


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store, PRECEDENTS)


async def ask(
    harness: ServiceHarness,
    tool: str,
    args: JsonObject,
    *,
    thread: str = "t1",
    agent: str = "support",
) -> Verdict:
    """Submit one call."""
    _, (verdict,) = await harness.submit((tool, args), thread=thread, agent=agent)
    return verdict


async def past(harness: ServiceHarness, verdict: Verdict) -> Past:
    """Return what a card would show of earlier calls."""
    approval, index = verdict.item_id.rsplit(".", 1)
    shown = await harness.reviews.read_as_of_now(approval)
    assert shown is not None
    return shown.approval.items[int(index)].past


async def approved(harness: ServiceHarness, verdict: Verdict) -> Outcome:
    """Approve a call as Ana in its current version."""
    return await harness.decide(verdict, Approve())


async def done(
    harness: ServiceHarness, tool: str, args: JsonObject, *, agent: str = "support"
) -> Verdict:
    """Request, approve and execute a call."""
    ref, (verdict,) = await harness.submit((tool, args), thread="t0", agent=agent)
    assert isinstance(await approved(harness, verdict), Decided)
    await harness.ran(claim_of(ref, verdict))
    return verdict


async def test_a_card_names_an_earlier_rejection(harness: ServiceHarness) -> None:
    first = await ask(harness, *REFUND)
    no = Reject(reason="already got a replacement")
    await harness.decide(first, no, BEN)

    again = await ask(harness, *REFUND, thread="t2")

    (found,) = (await past(harness, again)).of_kind(PrecedentKind.REJECTED)
    assert (found.by[0].user, found.reason) == ("U0BEN", no.reason)


async def test_other_arguments_tools_tenants_differ(harness: ServiceHarness) -> None:
    await done(harness, *REFUND)

    other = await ask(harness, "process_refund", {"amount": 898, "order": "7"})
    email = await ask(harness, "send_email", REFUND[1], thread="t2")
    keys, others = map(harness.store.keys_of_tenant, ("default", "other"))
    effect = effect_of(PRECEDENTS, agent="support", tool=REFUND[0], args=REFUND[1])

    assert (await past(harness, other)).precedents == ()
    assert (await past(harness, email)).precedents == ()
    assert keys.precedents(effect) != others.precedents(effect)


async def test_a_policy_says_which_calls_are_equal(harness: ServiceHarness) -> None:
    await done(harness, "ship", {"order": "7", "by": "air"})

    same = await ask(harness, "ship", {"order": 7, "by": "sea"})
    other = await ask(harness, "ship", {"order": "8", "by": "air"}, thread="t2")
    nameless = await ask(harness, "ship", {"by": "air"}, thread="t3")

    assert len((await past(harness, same)).precedents) == 1
    assert (await past(harness, other)).precedents == ()
    assert (await past(harness, nameless)).precedents == ()


async def test_a_click_does_not_repeat_a_call_that_ran(harness: ServiceHarness) -> None:
    waits = await ask(harness, *REFUND)
    click = await harness.click(waits)
    before = await done(harness, *REFUND)

    first = await harness.reviews.decide(click, Approve(), BEN)
    stale = await harness.reviews.decide(click, Approve(), BEN)
    second = await harness.decide(waits, Approve(), BEN)

    assert isinstance(first, Repeated)
    assert first.precedent.state is ItemState.EXECUTED
    assert isinstance(stale, Changed)
    assert isinstance(second, Decided)
    # The audit log names the precedent, and no argument.
    [told] = await harness.audited(EventName.ITEM_REPEATED)
    assert (told.item, told.data["precedent"]) == (waits.item_id, before.item_id)
    # A hash may have any digits.
    assert "899" not in told.model_dump_json(
        exclude={"at_ms", "seq", "data", "item", "action_hash", "policy_digest"}
    )


async def test_a_later_rejection_stops_no_click(harness: ServiceHarness) -> None:
    waits, other = await ask(harness, *REFUND), await ask(harness, *REFUND, thread="t2")
    await harness.decide(other, Reject(reason="no"))

    outcome = await approved(harness, waits)

    assert isinstance(outcome, Decided)


async def test_an_old_vote_does_not_count_for_a_repeat(harness: ServiceHarness) -> None:
    wire: tuple[str, JsonObject] = ("wire_money", {"amount": 5})
    waits, other = await ask(harness, *wire), await ask(harness, *wire, thread="t2")
    voted = await approved(harness, waits)
    await approved(harness, other)
    await harness.decide(other, Approve(), CHLOE)

    first = await harness.decide(waits, Approve(), CHLOE)

    assert isinstance(voted, Voted)
    assert isinstance(first, Repeated)
    assert (await harness.item(waits.item_id)).votes == ()


async def test_a_repeating_edit_is_shown_first(harness: ServiceHarness) -> None:
    await done(harness, *REFUND)
    waits = await ask(harness, "process_refund", {"amount": 50, "order": "7"})
    edit = Edit(args=REFUND[1])

    first = await harness.decide(waits, edit)
    item = await harness.item(waits.item_id)
    second = await approved(harness, waits)

    assert isinstance(first, Repeated)
    assert (item.args, item.is_pending) == (REFUND[1], True)
    assert isinstance(second, Decided)


async def test_a_rule_may_ask_more_after_a_rejection(harness: ServiceHarness) -> None:
    args: JsonObject = {"order": "7", "customer": "c1"}
    for thread in ("t1", "t2"):
        verdict = await ask(harness, "pay", args, thread=thread)
        await harness.decide(verdict, Reject(reason="no"))

    again = await ask(harness, "pay", args, thread="t3")

    assert again.kind is VerdictKind.DENY
    assert "rejected twice today" in again.reason


async def test_a_rule_counts_approvals_of_the_wait(harness: ServiceHarness) -> None:
    args: JsonObject = {"order": "7", "customer": "c1"}
    waits, other = (
        await ask(harness, "pay", args),
        await ask(harness, "pay", args, thread="t2"),
    )
    await approved(harness, other)

    await approved(harness, waits)
    outcome = await approved(harness, waits)

    assert isinstance(outcome, Voted)
    assert outcome.need == 2


async def test_the_first_of_two_approved_calls_runs(harness: ServiceHarness) -> None:
    args: JsonObject = {"order": "7", "customer": "c1"}
    ref, (first,) = await harness.submit(("pay", args))
    second = await ask(harness, "pay", args, thread="t2")
    await approved(harness, first)
    await approved(harness, second)
    await approved(harness, second)
    await harness.decide(second, Approve(), CHLOE)

    claimed = await harness.agents.claim(claim_of(ref, first))

    assert (await harness.item(second.item_id)).state is ItemState.AUTHORIZED
    assert isinstance(claimed, Claimed)


async def test_auto_calls_count_within_one_turn(harness: ServiceHarness) -> None:
    call: tuple[str, JsonObject] = ("look_up", {"order": "7"})
    _, one_turn = await harness.submit(call, call, call)
    _, (later,) = await harness.submit(call, thread="t2")
    _, (other,) = await harness.submit(("look_up", {"order": "8"}), thread="t3")

    assert [one.tier for one in one_turn] == [Tier.AUTO, Tier.AUTO, Tier.APPROVE]
    assert (later.tier, other.tier) == (Tier.APPROVE, Tier.AUTO)
    states = {one.state for one in (await past(harness, later)).precedents}
    assert states == {ItemState.AUTHORIZED, ItemState.PENDING}


async def test_a_notification_counts_from_its_opening(harness: ServiceHarness) -> None:
    call: tuple[str, JsonObject] = ("tell", {"order": "7"})
    first = await ask(harness, *call)

    again = await ask(harness, *call, thread="t2")

    assert (first.tier, again.tier) == (Tier.NOTIFY, Tier.APPROVE)


async def test_a_call_that_did_not_run_is_no_precedent(harness: ServiceHarness) -> None:
    first = await ask(harness, *REFUND, thread="t9")
    await approved(harness, first)
    await harness.lapsed(first.item_id)
    await harness.sweeper.sweep()

    again = await ask(harness, *REFUND)

    assert (await harness.item(first.item_id)).state is ItemState.LAPSED
    assert (await past(harness, again)).precedents == ()


async def test_a_failed_call_is_no_precedent(harness: ServiceHarness) -> None:
    ref, (failed, doubtful) = await harness.submit(REFUND, ("ship", {"order": 1}))
    for verdict in (failed, doubtful):
        await approved(harness, verdict)
        granted = await harness.granted(claim_of(ref, verdict))
        if verdict is failed:
            await harness.agents.finish(failed.item_id, granted.fence, Result(ok=False))
    await harness.doubt(doubtful.item_id)

    again = await ask(harness, *REFUND, thread="t2")
    like = await ask(harness, "ship", {"order": 1}, thread="t3")

    assert (await past(harness, again)).precedents == ()
    (found,) = (await past(harness, like)).precedents
    assert found.state is ItemState.IN_DOUBT


async def test_a_precedent_begins_before_its_change(harness: ServiceHarness) -> None:
    ref, (first,) = await harness.submit(REFUND)
    await approved(harness, first)
    effect = effect_of(PRECEDENTS, agent="support", tool=REFUND[0], args=REFUND[1])
    key = harness.keys.precedents(effect)
    # As by a server whose clock was an hour ahead.
    stored = await harness.command("HGET", key, first.item_id)
    assert isinstance(stored, bytes)
    at, rest = stored.split(b" ", 1)
    ahead = b"%d %b" % (int(at) + 3_600_000, rest)
    await harness.command("HSET", key, first.item_id, ahead)

    await harness.granted(claim_of(ref, first))
    again = await ask(harness, *REFUND, thread="t2")

    (found,) = (await past(harness, again)).precedents
    assert found.since_ms <= found.at_ms


async def test_a_frequent_effect_keeps_newest_calls(harness: ServiceHarness) -> None:
    call: tuple[str, JsonObject] = ("look_up_order", {"order": "7"})
    for n in range(MOST_KEPT + 5):
        await harness.submit(call, thread=f"t{n}")
    first = await ask(harness, *REFUND)
    effect = effect_of(PRECEDENTS, agent="support", tool=call[0], args=call[1])
    key = harness.keys.precedents(effect)

    kept = await harness.command("HLEN", key)
    left_ms = await harness.command("PTTL", key)

    assert first.item_id
    assert kept == MOST_KEPT + 1  # and the number of the newest change
    assert isinstance(left_ms, int)
    assert 0 < left_ms <= 24 * 3_600_000
