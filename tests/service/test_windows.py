"""A window counts calls that may still run or ran, and no others, in every order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Click,
    Decision,
    Edit,
    Reconcile,
    Reject,
    Respond,
    Voted,
)
from keyturn.gateway.approvals.precedents import WindowTotal
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.windows import MICRO, window_key
from keyturn.gateway.protocol.records import Finding, ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import TurnRef, Verdict, VerdictKind
from keyturn.gateway.service.decide import reviews
from keyturn.gateway.service.submit.call_evaluation import WaitingCall, read_calls
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.lifetimes import listed
from tests.races.interleaver import Interleaver
from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    POLICY,
    ServiceHarness,
    claim_of,
    still_members,
)
from tests.service.windowed import WINDOWED, refund, refunded, windowed
from tests.stored_records import put_detail


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return windowed(store)


async def test_a_sum_catches_three_small_refunds(harness: ServiceHarness) -> None:
    tiers = [
        (await harness.submit(refund(400), thread=f"t{n}"))[1][0].tier for n in range(3)
    ]

    assert tiers == [Tier.APPROVE, Tier.APPROVE, Tier.ESCALATE]
    # Also two calls of one turn.
    _, turn = await harness.submit(refund(900, "c9"), refund(900, "c9"), thread="t4")
    assert [verdict.tier for verdict in turn] == [Tier.APPROVE, Tier.ESCALATE]


@pytest.mark.parametrize(
    ("end", "left"),
    [
        ("waits", 49),
        ("is rejected", 0),
        ("is answered", 0),
        ("is approved", 49),
        ("expires", 0),
        ("lapses", 0),
        ("is superseded", 0),
        ("is withdrawn", 0),
        ("runs", 49),
    ],
)
async def test_only_a_call_that_may_run_or_ran_counts(
    harness: ServiceHarness, end: str, left: int
) -> None:
    ref, (verdict,) = await harness.submit(refund(49))

    await ENDS[end](harness, ref, verdict)

    assert await refunded(harness) == left


async def pass_by(harness: ServiceHarness, minutes: int, *names: str) -> None:
    """Move the clock of these windows of the customer."""
    for name in names:
        window = harness.keys.window(name, window_key("c7"))
        uses = await harness.command("ZRANGE", window, 0, -1)
        for use in cast("list[bytes]", uses):
            await harness.command("ZINCRBY", window, -minutes * 60_000, use)


async def test_calls_that_may_still_run_stay_counted(harness: ServiceHarness) -> None:
    ref, verdicts = await harness.submit(
        refund(100, tool="small_refund"), refund(200), refund(300)
    )
    await harness.decide(verdicts[1], Approve())
    await pass_by(harness, 25 * 60, "refunds")
    after_one_day = await refunded(harness)
    await harness.ran(claim_of(ref, verdicts[1]))
    when_it_ran = await refunded(harness)

    await pass_by(harness, 25 * 60, "refunds")

    assert (after_one_day, when_it_ran, await refunded(harness)) == (500, 500, 300)


async def test_what_is_auto_approved_counts(harness: ServiceHarness) -> None:
    _, small = await harness.submit(refund(300, tool="small_refund"))

    _, large = await harness.submit(refund(900), thread="t2")

    assert small[0].kind is VerdictKind.RUN
    assert large[0].tier is Tier.ESCALATE


async def test_a_doubt_counts_until_it_is_reconciled(harness: ServiceHarness) -> None:
    ref, verdicts = await harness.submit(refund(900))
    await harness.decide(verdicts[0], Approve())
    await harness.agents.claim(claim_of(ref, verdicts[0]))
    await harness.doubt(verdicts[0].item_id)
    in_doubt = await refunded(harness)

    await harness.decide(verdicts[0], Reconcile(finding=Finding.RERUN))

    assert (in_doubt, await refunded(harness)) == (900, 900)


async def test_an_edit_moves_its_reservation(harness: ServiceHarness) -> None:
    ref, (verdict,) = await harness.submit(refund(900))
    edit = Edit(args={"amount": 300, "customer": "c8"})

    await harness.decide(verdict, edit)

    assert (await refunded(harness), await refunded(harness, "c8")) == (0, 300)
    await harness.ran(claim_of(ref, verdict))
    assert (await harness.item(verdict.item_id)).state is ItemState.EXECUTED


async def test_an_edit_is_evaluated_by_its_new_sum(harness: ServiceHarness) -> None:
    await harness.submit(refund(600), thread="t1")
    _, verdicts = await harness.submit(refund(100), thread="t2")
    outcome = await harness.decide(
        verdicts[0], Edit(args={"amount": 500, "customer": "c7"})
    )

    item = await harness.item(verdicts[0].item_id)
    assert isinstance(outcome, Voted)
    assert item.tier is Tier.ESCALATE
    assert await refunded(harness) == 1100


async def test_a_refused_edit_reserves_nothing(harness: ServiceHarness) -> None:
    _, verdicts = await harness.submit(refund(600))

    outcome = await harness.decide(
        verdicts[0], Edit(args={"amount": 6000, "customer": "c7"})
    )

    assert outcome.kind == "invalid"
    assert await refunded(harness) == 600


async def test_new_reservations_raise_waiting_calls(harness: ServiceHarness) -> None:
    _, first = await harness.submit(refund(900), thread="t1")
    await harness.submit(refund(900), thread="t2")
    click = await harness.click(first[0])

    one = await harness.reviews.decide(click, Approve(), ANA)
    two = await harness.reviews.decide(click, Approve(), CHLOE, voters=still_members)

    assert (one.kind, two.kind) == ("voted", "decided")


async def test_an_unknown_amount_needs_two_people(harness: ServiceHarness) -> None:
    _, verdicts = await harness.submit(
        ("process_refund", {"amount": "lots", "customer": "c7"}),
        ("process_refund", {"amount": -900, "customer": "c7"}),
        ("process_refund", {"amount": 1}),
    )

    assert [verdict.tier for verdict in verdicts] == [Tier.ESCALATE] * 3
    assert await refunded(harness) == 0


# A card shows the totals of other calls in a window, and no hidden amount.


REFUND_TOOL = "process_refund:\n    tier: approve\n"
SMALL_REFUND = "small_refund:\n    tier: auto\n"
OTHER_AGENT = """
agents: {billing: {tools: {process_refund: {redact: [args.customer]}}}}
"""


async def totals(harness: ServiceHarness) -> tuple[WindowTotal, ...]:
    """Return the text about windows on the card of the last of three refunds."""
    await harness.submit(refund(400), thread="t1")
    await harness.submit(refund(9, tool="small_refund"), thread="t2")
    _, (last,) = await harness.submit(refund(49), thread="t3")
    shown = await harness.reviews.read_as_of_now(last.item_id.partition(".")[0])
    assert shown is not None
    return shown.approval.items[0].past.totals


async def test_a_total_is_of_the_other_calls(harness: ServiceHarness) -> None:
    (found,) = await totals(harness)
    assert (found.window, found.by) == ("refunds", "args.customer")
    assert (found.others_micro, found.is_count) == (409 * MICRO, False)


@pytest.mark.parametrize(
    ("tool", "redact", "more"),
    [
        (REFUND_TOOL, "[args.amount]", ""),
        (REFUND_TOOL, "[args.customer]", ""),
        (REFUND_TOOL, "[args.amount.minor]", ""),
        (SMALL_REFUND, "[args.amount]", ""),
        (SMALL_REFUND, "[]", OTHER_AGENT),
    ],
)
async def test_a_total_of_what_any_tool_or_agent_hides_is_not_shown(
    harness: ServiceHarness, tool: str, redact: str, more: str
) -> None:
    hiding = (tool, f"{tool}    redact: {redact}\n")
    harness.put_policy(hiding, of=WINDOWED + more)
    assert await totals(harness) == ()


# The calls of one gesture are evaluated from one reading of the store.


async def round_trips(harness: ServiceHarness, size: int, thread: str) -> int:
    """Return how often the store is asked when so many calls are approved at once."""
    calls = [refund(10 + n, f"c{n}") for n in range(size)]
    _, verdicts = await harness.submit(*calls, thread=thread)
    approval = await harness.approval(verdicts[0].item_id)
    click = Click(
        approval=approval.id,
        index=0,
        version=approval.version,
        action_hash=approval.digest,
    )
    partition = dict.fromkeys(range(size), Approve())
    with pytest.MonkeyPatch.context() as patch:
        interleaver = Interleaver(harness.store.conn, patch)
        decision = harness.reviews.decide_card(approval, click, {**partition}, ANA)
        [outcome] = await interleaver.run([decision], lambda _: 0)
    assert getattr(outcome, "kind", "") == "gesturedecided"
    return interleaver.steps


async def test_deciding_many_calls_takes_two_round_trips(store: Store) -> None:
    harness = windowed(store)

    few = await round_trips(harness, 2, "t1")
    many = await round_trips(harness, 40, "t2")

    # The record, the windows, the rest, and the write.
    assert (few, many) == (4, 4)


async def test_each_call_of_a_gesture_counts_for_its_agent(store: Store) -> None:
    harness = ServiceHarness(store)
    calls: list[WaitingCall] = []
    for agent in ("support", "billing"):
        _, [verdict] = await harness.submit(
            ("process_refund", {"amount": 5}), thread=f"of-{agent}", agent=agent
        )
        approval = await harness.approval(verdict.item_id)
        calls.append(WaitingCall(approval, approval.items[0], approval.items[0].args))
    scope = FreezeScope(kind=ScopeKind.AGENT, name="billing")
    await harness.reviews.freezes.freeze(scope, "U0BEN", "stop")

    read = await read_calls(store, harness.policy, calls)

    frozen = [one.evaluated().freeze for one in read]
    assert [one.name if one else None for one in frozen] == [None, "agent billing"]


# What a waiting call needs follows its windows, and never falls below its opening.


async def shown(harness: ServiceHarness, item_id: str) -> Item:
    """Return an item as its card is to show it."""
    approval = await harness.approval(item_id)
    loaded = await harness.reviews.read_as_of_now(approval.id)
    assert loaded
    return loaded.approval.items[0]


async def two(harness: ServiceHarness) -> tuple[str, str]:
    """Open two refunds that are over the limit together."""
    found: list[str] = []
    for thread in ("t1", "t2"):
        _, verdicts = await harness.submit(refund(700), thread=thread)
        found.append(verdicts[0].item_id)
    return found[0], found[1]


async def over(harness: ServiceHarness, item_id: str) -> None:
    outcome = await harness.decide(item_id, Reject(reason="no"), BEN)
    assert outcome.kind == "decided"


async def test_a_raise_by_a_vote_ends_with_its_cause(harness: ServiceHarness) -> None:
    first, second = await two(harness)
    voted = await harness.decide(first, Approve())
    raised = await shown(harness, first)

    await over(harness, second)

    assert (voted.kind, raised.tier) == ("voted", Tier.ESCALATE)
    again = await shown(harness, first)
    assert (again.tier, again.floor, len(again.votes)) == (Tier.APPROVE, None, 1)
    decided = await harness.decide(first, Approve(), BEN)
    item = await harness.item(first)
    assert (decided.kind, item.state) == ("decided", ItemState.AUTHORIZED)
    assert [vote.by.user for vote in item.votes] == ["U0ANA", "U0BEN"]


async def test_what_is_shown_is_never_written(harness: ServiceHarness) -> None:
    first, _ = await two(harness)
    before = await harness.approval(first)

    assert (await shown(harness, first)).floor is not None

    assert await harness.approval(first) == before


async def test_only_calls_that_count_in_windows_are_evaluated_again(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harness.submit(("send_email", {}), thread="t0")
    first, second = await two(harness)

    found = await harness.reviews.reevaluated()

    ids = {loaded.approval.items[0].id for loaded in found}
    assert ids == {first, second}
    monkeypatch.setattr(reviews, "MAX_REEVALUATED", 1)
    assert len(await harness.reviews.reevaluated()) <= 1


# A corrupt record gives back what its end would have given back.


async def corrupt(
    harness: ServiceHarness, approval: str, text: str | bytes = ""
) -> None:
    """Damage a record, as a bad disk would; run the sweep.

    Without a text for its document, the tier of its first call is damaged.
    """
    keys, conn = harness.keys, harness.store.conn
    if text:
        await conn.command("SET", keys.document(approval), text)
    else:
        await put_detail(conn, keys, approval, tier="{")
    await conn.command("ZADD", keys.expiry, 1, keys.listed(approval))
    await harness.sweeper.sweep()


async def test_what_waited_in_it_leaves_its_windows(harness: ServiceHarness) -> None:
    _, (verdict, _) = await harness.submit(refund(900), refund(50, customer="c8"))
    approval = (await harness.approval(verdict.item_id)).id

    await corrupt(harness, approval)

    assert (await refunded(harness), await refunded(harness, "c8")) == (0, 0)
    waiting = harness.keys.waiting("support")
    assert await harness.command("ZCARD", waiting) == 0


@pytest.mark.parametrize("document", ["{", "[]", "{}"])
async def test_nameless_records_end(harness: ServiceHarness, document: str) -> None:
    _, (verdict,) = await harness.submit(refund(900))
    approval = (await harness.approval(verdict.item_id)).id

    await corrupt(harness, approval, document)

    state = await harness.command("HGET", harness.keys.head(approval), "0:s")
    assert state == b"withdrawn"
    assert await refunded(harness) == 0


@pytest.mark.parametrize(
    "uses", ["{", "[]", '[["tk:{default}:ev", "call 1", 1]]', "[[]]"]
)
async def test_unreadable_uses_stop_nobody(harness: ServiceHarness, uses: str) -> None:
    _, verdicts = await harness.submit(refund(100), refund(200))
    approval = (await harness.approval(verdicts[0].item_id)).id
    keys = harness.keys
    await harness.command("HSET", keys.head(approval), "0:w", uses)

    await corrupt(harness, approval)

    states = await harness.command("HMGET", keys.head(approval), "0:s", "1:s")
    assert states == [b"withdrawn", b"withdrawn"]
    assert await refunded(harness) == 100
    assert await harness.store.queue(keys).depth() == 1


@pytest.mark.parametrize("of", [b"", b"short", b"\x00" * 32, b"\xff" * 40])
async def test_its_run_is_not_open_for_ever(harness: ServiceHarness, of: bytes) -> None:
    """What names its run and its turn may be the damaged part."""
    _, (verdict,) = await harness.submit(refund(900))
    approval = await harness.approval(verdict.item_id)
    keys, conn = harness.keys, harness.store.conn
    store = harness.store.approvals
    assert await store.has_open(keys, approval.run_ref)
    await conn.command("HSET", keys.head(approval.id), "run", of)

    await corrupt(harness, approval.id)

    assert not await store.has_open(keys, approval.run_ref)
    assert await endless(harness, "turn:*", "run:*", "tm:*") == []


async def endless(harness: ServiceHarness, *kinds: str) -> list[bytes]:
    """Return the keys of these kinds that have no end."""
    conn = harness.store.conn
    found: list[bytes] = []
    for kind in kinds:
        for key in listed(await conn.command("KEYS", f"*:{kind}")):
            assert isinstance(key, bytes)
            left = await conn.command("PTTL", key)
            found += [key] if left == -1 else []
    return found


# A window of requests counts requests, also those that did not run.


RULES = """process_refund:
    tier: approve
    raise:
      - {to: escalate, when: windows.asked_sum > 1000, because: much was asked for}
      - {to: deny, when: windows.asked > 2, because: the third request in an hour}
"""
WINDOWS = """
windows:
  asked:
    {tools: process_refund, by: args.customer, sum: 1, counts: requests,
     within: 1h}
  asked_sum:
    {tools: process_refund, by: args.customer, sum: args.amount, counts: requests,
     within: 1h}
"""


@pytest.fixture
def counting(store: Store) -> ServiceHarness:
    text = POLICY.replace("process_refund: {tier: approve}\n", RULES)
    return ServiceHarness(store, load_policy(text + WINDOWS, "policy.yml"))


async def ask(
    counting: ServiceHarness, thread: str, amount: int = 49, customer: str = "c7"
) -> tuple[TurnRef, Verdict]:
    args: JsonObject = {"amount": amount, "customer": customer}
    ref, (verdict,) = await counting.submit(("process_refund", args), thread=thread)
    return ref, verdict


async def asked(
    counting: ServiceHarness, window: str = "asked", customer: str = "c7"
) -> float:
    return await counting.total(window, window_key(customer)) / MICRO


async def nothing(_desk: ServiceHarness, _ref: TurnRef, _verdict: Verdict) -> None:
    """Leave it pending."""


def decided(
    decision: Decision,
) -> Callable[[ServiceHarness, TurnRef, Verdict], Awaitable[None]]:
    async def decide(counting: ServiceHarness, _ref: TurnRef, verdict: Verdict) -> None:
        await counting.decide(verdict, decision)

    return decide


async def expired(counting: ServiceHarness, _ref: TurnRef, verdict: Verdict) -> None:
    await counting.overdue((await counting.approval(verdict.item_id)).id)
    await counting.sweeper.sweep()


async def lapsed(counting: ServiceHarness, ref: TurnRef, verdict: Verdict) -> None:
    await decided(Approve())(counting, ref, verdict)
    await counting.lapsed(verdict.item_id)
    await counting.sweeper.sweep()


async def superseded(counting: ServiceHarness, ref: TurnRef, _verdict: Verdict) -> None:
    await counting.submit(("look_up_order", {}), thread=ref.thread)


async def withdrawn(counting: ServiceHarness, _ref: TurnRef, verdict: Verdict) -> None:
    await counting.agents.withdraw_items(frozenset({verdict.item_id}))


async def claimed(counting: ServiceHarness, ref: TurnRef, verdict: Verdict) -> None:
    await decided(Approve())(counting, ref, verdict)
    await counting.agents.claim(claim_of(ref, verdict))


ENDS = {
    "waits": nothing,
    "is rejected": decided(Reject(reason="no")),
    "is answered": decided(Respond(message="why?")),
    "is approved": decided(Approve()),
    "is edited": decided(Edit(args={"amount": 10, "customer": "c8"})),
    "expires": expired,
    "lapses": lapsed,
    "is superseded": superseded,
    "is withdrawn": withdrawn,
    "runs": claimed,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_request_stays_counted_when_it(
    counting: ServiceHarness,
    end: Callable[[ServiceHarness, TurnRef, Verdict], Awaitable[None]],
) -> None:
    ref, verdict = await ask(counting, "t1")

    await end(counting, ref, verdict)
    await pass_by(counting, 55, "asked", "asked_sum")

    assert await asked(counting) == 1
    assert await asked(counting, "asked_sum") == 49


async def test_refused_requests_count_in_the_window(counting: ServiceHarness) -> None:
    for thread in ("t1", "t2"):
        ref, verdict = await ask(counting, thread)
        await decided(Reject(reason="no"))(counting, ref, verdict)

    _, third = await ask(counting, "t3")

    assert third.kind is VerdictKind.DENY
    assert "the third request in an hour" in third.reason


async def test_a_request_the_policy_refuses_counts(counting: ServiceHarness) -> None:
    for thread in ("t1", "t2", "t3", "t4"):
        await ask(counting, thread)
    await pass_by(counting, 55, "asked", "asked_sum")

    assert await asked(counting) == 4


async def test_a_request_of_a_busy_agent_counts(counting: ServiceHarness) -> None:
    one = ("process_refund", cast("JsonObject", {"amount": 1, "customer": "c7"}))
    counting.policy = counting.policy.with_(
        protect=counting.policy.protect.with_(pending_per_agent=1)
    )

    _, (held, crowded) = await counting.submit(one, one)

    assert (held.kind, crowded.kind) == (VerdictKind.HOLD, VerdictKind.DENY)
    assert await asked(counting) == 2


async def test_a_repeated_turn_counts_once(counting: ServiceHarness) -> None:
    args: JsonObject = {"amount": 1, "customer": "c7"}

    turn = [("process_refund", args)]
    await asyncio.gather(*(counting.submit(*turn, message_id="m1") for _ in "12345"))

    assert await asked(counting) == 1


async def test_two_requests_of_one_turn_see_each_other(
    counting: ServiceHarness,
) -> None:
    one = ("process_refund", cast("JsonObject", {"amount": 1, "customer": "c7"}))

    _, verdicts = await counting.submit(one, one, one)

    kinds = [verdict.kind for verdict in verdicts]
    assert kinds == [VerdictKind.HOLD, VerdictKind.HOLD, VerdictKind.DENY]


async def test_an_edit_keeps_the_place_of_its_request(counting: ServiceHarness) -> None:
    await ask(counting, "t1", amount=500)
    _, second = await ask(counting, "t2", amount=100)
    await ask(counting, "t3", amount=9000)
    click = await counting.click(second)

    fits = await counting.reviews.preview(
        await counting.approval(second.item_id), 0, {"amount": 500, "customer": "c7"}
    )
    raised = await counting.reviews.decide(
        click, Edit(args={"amount": 501, "customer": "c7"}), ANA
    )

    assert fits
    assert fits.tier is Tier.APPROVE
    assert isinstance(raised, Voted)


async def test_an_edit_counts_for_the_other_person(counting: ServiceHarness) -> None:
    for thread in ("t1", "t2"):
        await ask(counting, thread, customer="c8")
    _, mine = await ask(counting, "t3")

    evaluated = await counting.reviews.preview(
        await counting.approval(mine.item_id), 0, {"amount": 1, "customer": "c8"}
    )

    assert evaluated
    assert evaluated.tier is Tier.DENY
