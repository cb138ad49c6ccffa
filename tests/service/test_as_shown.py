"""A click is decided by what was shown only while all that it was made from holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from pydantic import JsonValue

from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    EVE,
    POLICY,
    ServiceHarness,
)
from tests.service.showing import Ways, at_once, shown, shown_again
from tests.service.windowed import refund, windowed
from tests.streams import audit_entries
from twokey.gateway.approvals.decisions import (
    Approve,
    Changed,
    Decided,
    Edit,
    Forbidden,
    Invalid,
    Reject,
    Repeated,
    Reviewer,
    Stale,
    Unknown,
    Voted,
)
from twokey.gateway.approvals.events import EventName
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.service.reviews import ReviewService
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

KEYS = Keys("s0")
LARGE = POLICY.replace(
    "process_refund: {tier: approve}",
    """process_refund:
    tier: approve
    raise: [{to: escalate, when: args.amount > 1000, because: over 1000}]""",
)


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


@pytest.fixture(autouse=True, params=["as it comes", "precomputed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was shown is decided alike, whether it was precomputed or not."""
    monkeypatch.setattr(Ways, "precomputes", request.param == "precomputed")


@pytest.fixture
def readings(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the approvals that are read from here on."""
    read, plain = list[str](), store.approvals.load

    async def load(approval_id: str) -> object:
        read.append(approval_id)
        return await plain(approval_id)

    monkeypatch.setattr(store.approvals, "load", load)
    return read


async def test_what_was_shown_is_decided_without_a_reading(
    harness: ServiceHarness, readings: list[str]
) -> None:
    click = await shown(harness)
    readings.clear()

    outcome = await harness.reviews.decide(click, Approve(reason="fine"), ANA)

    assert isinstance(outcome, Decided)
    assert readings == []
    item = (await harness.approval(f"{click.approval}.0")).items[0]
    assert item == outcome.approval.items[0]
    assert item.state is ItemState.AUTHORIZED
    assert await harness.jobs() == harness.jobs_of(1)


async def test_the_record_is_that_of_a_decision_over_a_reading(
    harness: ServiceHarness,
) -> None:
    """But for its ids, hashes and times; so are its events."""
    first, second = await shown(harness), await shown(harness)
    elsewhere = ReviewService(harness.store, lambda: harness.policy)

    assert await at_once(harness.reviews, first)
    assert isinstance(await elsewhere.decide(second, Approve(), ANA), Decided)

    kept = [
        (await harness.approval(f"{one.approval}.0")).model_dump(mode="json")
        for one in (first, second)
    ]
    events = [
        entry.with_(
            **dict.fromkeys(("approval", "thread", "item", "action_hash", "seq"), ""),
            request_digest="",
            at_ms=0,
            data={},
        )
        for entry in await audit_entries(harness.store.conn, KEYS)
        if entry.name is EventName.ITEM_AUTHORIZED
    ]
    assert _without_ids(kept[0]) == _without_ids(kept[1])
    assert len(events) == 2
    assert events[0] == events[1]


def _without_ids(tree: JsonValue) -> JsonValue:
    hidden = {"id", "thread", "message_id", "requested", "action", "action_hash"}
    hidden |= {"effect", "recent_requests", "sig", "request"}
    match tree:
        case dict():
            return {
                name: _without_ids(one)
                for name, one in tree.items()
                if name not in hidden and not name.endswith("_ms")
            }
        case list():
            return [_without_ids(one) for one in tree]
        case _:
            return tree


async def test_one_step_takes_one_round_trip(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    click = await shown(harness)
    sent, conn = list[str](), harness.store.conn
    for name in ("command", "transaction", "evalsha"):
        monkeypatch.setattr(conn, name, _noting(name, getattr(conn, name), sent))

    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)

    assert sent == ["evalsha"]


def _noting(
    name: str, plain: Callable[..., Awaitable[object]], sent: list[str]
) -> Callable[..., Awaitable[object]]:
    async def noting(*words: object, **named: object) -> object:
        sent.append(name)
        return await plain(*words, **named)

    return noting


async def test_what_another_process_edited_is_read_again(
    harness: ServiceHarness,
) -> None:
    click = await shown(harness, ("wire_money", {"amount": 9}))
    elsewhere = ReviewService(harness.store, lambda: harness.policy)
    await elsewhere.decide(click, Edit(args={"amount": 10}), BEN)

    assert await at_once(harness.reviews, click) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Changed)


async def test_what_another_process_decided_is_decided_once(
    harness: ServiceHarness,
) -> None:
    click = await shown(harness)
    elsewhere = ReviewService(harness.store, lambda: harness.policy)
    await elsewhere.read_as_of_now(click.approval)
    await elsewhere.decide(click, Reject(reason="no"), BEN)

    assert await at_once(harness.reviews, click) is None
    outcome = await harness.reviews.decide(click, Approve(), ANA)

    assert isinstance(outcome, Stale)
    assert outcome.state is ItemState.REJECTED


async def test_a_newer_reading_of_the_caller_is_not_overruled(store: Store) -> None:
    """What was evaluated when it was shown are the arguments of before."""
    # No window: the store compares what it would hold, and would notice by itself.
    harness = ServiceHarness(store, load_policy(LARGE, "policy.yml"))
    click = await shown(harness, refund(600))
    elsewhere = ReviewService(harness.store, lambda: harness.policy)
    larger: JsonObject = {"amount": 1500, "customer": "c7"}
    assert isinstance(await elsewhere.decide(click, Edit(args=larger), BEN), Voted)
    seen = await elsewhere.read(click.approval)
    newer = await harness.click_on(f"{click.approval}.0")

    found = await harness.reviews.as_shown.decide(newer, Approve(), ANA, seen=seen)

    assert found is None


@pytest.mark.parametrize(
    "scope",
    [
        FreezeScope(kind=ScopeKind.TENANT),
        FreezeScope(kind=ScopeKind.AGENT, name="support"),
        FreezeScope(kind=ScopeKind.TOOL, name="process_refund"),
    ],
    ids=str,
)
async def test_a_freeze_after_it_was_shown_stops_it(
    harness: ServiceHarness, scope: FreezeScope
) -> None:
    click = await shown(harness)
    await harness.reviews.freezes.freeze(scope, "T0/U0BEN", "wrong refunds")

    assert await at_once(harness.reviews, click) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Forbidden)


async def test_a_freeze_that_was_lifted_since_stops_nothing(
    harness: ServiceHarness,
) -> None:
    scope = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
    _, (verdict,) = await harness.submit(("process_refund", {"amount": 9}))
    await harness.reviews.freezes.freeze(scope, "T0/U0BEN", "wrong refunds")
    click = await shown_again(harness, verdict)
    await harness.reviews.freezes.unfreeze(scope, "T0/U0BEN")

    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)


async def test_a_window_that_filled_up_since_asks_for_more(store: Store) -> None:
    harness = windowed(store)
    click = await shown(harness, refund(600))
    await harness.submit(refund(500), thread="t2")

    assert await at_once(harness.reviews, click) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Voted)


async def test_a_window_that_emptied_since_asks_for_less(store: Store) -> None:
    harness = windowed(store)
    _, (verdict,) = await harness.submit(refund(600))
    _, (other,) = await harness.submit(refund(500), thread="t2")
    click = await shown_again(harness, verdict)
    await harness.reviews.decide(await harness.click(other), Reject(reason="no"), BEN)

    assert await at_once(harness.reviews, click) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)


async def test_a_window_of_others_is_none_of_its_business(store: Store) -> None:
    harness = windowed(store)
    click = await shown(harness, refund(600))
    await harness.submit(refund(500, customer="c8"), thread="t2")

    assert isinstance(await at_once(harness.reviews, click), Decided)


async def test_the_same_call_approved_since_is_seen_first(store: Store) -> None:
    same = "process_refund: {tier: approve, same_by: args.amount}"
    policy = load_policy(
        POLICY.replace("process_refund: {tier: approve}", same), "policy.yml"
    )
    harness = ServiceHarness(store, policy)
    first, second = [
        await shown(harness, ("process_refund", {"amount": 9})) for _ in range(2)
    ]

    assert isinstance(await at_once(harness.reviews, first), Decided)
    assert await at_once(harness.reviews, second) is None
    assert isinstance(await harness.reviews.decide(second, Approve(), ANA), Repeated)


async def test_another_policy_is_asked_for_itself(harness: ServiceHarness) -> None:
    click = await shown(harness)
    stricter = POLICY.replace(
        "process_refund: {tier: approve}", "process_refund: {tier: escalate}"
    )
    harness.policy = load_policy(stricter, "policy.yml")

    assert harness.reviews.as_shown.find(click.approval) is None
    assert await at_once(harness.reviews, click) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Voted)


@pytest.mark.parametrize(
    "when",
    [
        "now.getFullYear() > 3000",
        "recent.requests_10m > 50",
        "recent.failures_1h > 5",
        "recent.rejections_in_row > 5",
        "recent.same_done_24h > 5",
    ],
)
async def test_what_depends_on_the_moment_is_evaluated_at_the_moment(
    store: Store, when: str
) -> None:
    rule = f'[{{to: escalate, when: "{when}", because: "odd"}}]'
    tool = f"process_refund: {{tier: approve, raise: {rule}}}"
    policy = load_policy(
        POLICY.replace("process_refund: {tier: approve}", tool), "policy.yml"
    )
    harness = ServiceHarness(store, policy)

    click = await shown(harness)

    assert harness.reviews.as_shown.find(click.approval) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)


async def test_a_window_of_requests_is_evaluated_at_the_moment(store: Store) -> None:
    rule = '[{to: escalate, when: "windows.asked > 50.0", because: "many"}]'
    asked = (
        "windows:\n"
        "  asked: {tools: process_refund, count: true, counts: requests, within: 1h}\n"
    )
    text = POLICY.replace(
        "process_refund: {tier: approve}",
        f"process_refund: {{tier: approve, raise: {rule}}}",
    )
    harness = ServiceHarness(store, load_policy(text + asked, "policy.yml"))

    click = await shown(harness)

    assert harness.reviews.as_shown.find(click.approval) is None


async def test_a_rule_about_arguments_holds_as_long_as_they_do(store: Store) -> None:
    rule = '[{to: escalate, when: "args.amount > 500.0", because: "much"}]'
    tool = f"process_refund: {{tier: approve, raise: {rule}}}"
    policy = load_policy(
        POLICY.replace("process_refund: {tier: approve}", tool), "policy.yml"
    )
    harness = ServiceHarness(store, policy)
    low = await shown(harness, ("process_refund", {"amount": 9}))
    high = await shown(harness, ("process_refund", {"amount": 900}))

    assert isinstance(await at_once(harness.reviews, low), Decided)
    assert isinstance(await at_once(harness.reviews, high), Voted)
    item = await harness.item(f"{high.approval}.0")
    assert item.tier is Tier.ESCALATE


@pytest.mark.parametrize("decision", [Reject(reason="no"), Edit(args={"amount": 8})])
async def test_anything_but_an_approval_is_decided_over_a_reading(
    harness: ServiceHarness, decision: Reject | Edit, readings: list[str]
) -> None:
    click = await shown(harness)
    readings.clear()

    assert await harness.reviews.as_shown.decide(click, decision, ANA) is None
    assert not isinstance(
        await harness.reviews.decide(click, decision, ANA), Stale | Forbidden
    )

    assert readings == [click.approval]


@pytest.mark.parametrize("who", [EVE, ANA.with_(user="U0DAN")], ids=["eve", "dan"])
async def test_a_refusal_is_that_of_a_reading(
    harness: ServiceHarness, who: Reviewer, readings: list[str]
) -> None:
    click = await shown(harness)
    readings.clear()

    assert isinstance(await harness.reviews.decide(click, Approve(), who), Forbidden)

    assert readings == [click.approval]


async def test_a_missing_reason_is_asked_for_by_a_reading(store: Store) -> None:
    tool = "process_refund: {tier: approve, requires_reason: [approve]}"
    text = POLICY.replace("process_refund: {tier: approve}", tool)
    harness = ServiceHarness(store, load_policy(text, "policy.yml"))
    click = await shown(harness)

    assert Verb.APPROVE in (await harness.item(f"{click.approval}.0")).requires_reason
    assert await at_once(harness.reviews, click) is None
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Invalid)


async def test_the_second_vote_counts_with_the_first_as_it_is_now(
    harness: ServiceHarness,
) -> None:
    _, (verdict,) = await harness.submit(("wire_money", {"amount": 9}))
    first = await at_once(harness.reviews, await shown_again(harness, verdict))
    assert isinstance(first, Voted)
    click = await shown_again(harness, verdict)

    # Nobody knows of the first voter: no vote is complete by guess.
    unknown = await harness.reviews.as_shown.decide(click, Approve(), CHLOE)
    known = await at_once(harness.reviews, click, CHLOE)

    assert unknown is None
    assert isinstance(known, Decided)


async def test_of_sixteen_in_two_processes_one_wins(harness: ServiceHarness) -> None:
    for _ in range(10):
        click = await shown(harness)
        elsewhere = ReviewService(harness.store, lambda: harness.policy)
        assert await elsewhere.read_as_of_now(click.approval)
        before = len(await audit_entries(harness.store.conn, KEYS))

        outcomes = await asyncio.gather(
            *(
                service.decide(click, Approve(reason=str(number)), who)
                for number in range(4)
                for who in (ANA, BEN)
                for service in (harness.reviews, elsewhere)
            )
        )

        assert sum(isinstance(one, Decided) for one in outcomes) == 1
        assert sum(isinstance(one, Stale) for one in outcomes) == 15
        assert len(await audit_entries(harness.store.conn, KEYS)) == before + 1
    assert await harness.jobs() == harness.jobs_of(10)


async def test_calls_of_one_card_are_decided_one_after_the_other(
    harness: ServiceHarness,
) -> None:
    """The first decision makes a rev that nobody has shown yet."""
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": amount}) for amount in (1, 2, 3)
    ]
    _, verdicts = await harness.submit(*calls)
    clicks = [await shown_again(harness, one) for one in verdicts]

    outcomes = [await harness.reviews.decide(click, Approve(), ANA) for click in clicks]

    assert all(isinstance(one, Decided) for one in outcomes)
    approval = await harness.approval(verdicts[0].item_id)
    assert {item.state for item in approval.items} == {ItemState.AUTHORIZED}


async def test_an_outage_says_that_nothing_is_known(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not decided again from a reading: it may be written."""
    click = await shown(harness)

    async def fails(*_: object) -> bool:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(harness.store.approvals, "write_once", fails)

    with pytest.raises(StoreUnavailable):
        await harness.reviews.decide(click, Approve(), ANA)
    monkeypatch.undo()
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Decided)


async def test_another_tenants_approval_is_unknown(harness: ServiceHarness) -> None:
    click = await shown(harness)
    loaded = await harness.reviews.read(click.approval)
    assert loaded
    other = ReviewService(harness.store, lambda: harness.policy, tenant="other")

    await other.as_of_now(loaded)

    assert other.as_shown.find(click.approval) is None
    assert isinstance(await other.decide(click, Approve(), ANA), Unknown)
