"""A decision is written once, with its event, its audit entry and its job."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.desk import ANA, BEN, CHLOE, POLICY, Desk, still_members
from twokey.gateway.approvals.decisions import (
    Approve,
    Decision,
    Edit,
    Expired,
    Forbidden,
    Reject,
    Respond,
    Settled,
    Stale,
    Unknown,
    Voted,
)
from twokey.gateway.approvals.events import EventName
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import ProposedCall, Turn, VerdictKind
from twokey.gateway.store.outbox import audit_entries
from twokey.gateway.store.store import Store


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


async def test_a_turn_gets_one_verdict_a_call_in_order(desk: Desk) -> None:
    _, verdicts = await desk.submit(
        ("look_up_order", {}), ("process_refund", {"amount": 1}), ("drop_table", {}),
        ("unheard_of", {}),
    )  # fmt: skip

    kinds = [verdict.kind for verdict in verdicts]

    assert kinds == [
        VerdictKind.RUN,
        VerdictKind.HOLD,
        VerdictKind.DENY,
        VerdictKind.HOLD,
    ]


async def test_a_turn_submitted_twice_opens_one_approval(desk: Desk) -> None:
    turns = [
        desk.submit(("process_refund", {"amount": 899}), message_id="m1")
        for _ in range(8)
    ]

    answers = await asyncio.gather(*turns)

    assert len({verdicts for _, verdicts in answers}) == 1
    assert len(await desk.opened()) == 1


async def test_two_calls_with_one_id_are_both_denied(desk: Desk) -> None:
    ref, _ = await desk.submit(("look_up_order", {}))
    twin = ProposedCall(tool="process_refund", args={"amount": 1}, tool_call_id="c0")
    other = twin.with_(tool_call_id="c1")
    turn = Turn(ref=ref.with_(message_id="twins"), calls=(twin, other, twin))

    verdicts = await desk.agents.submit(turn)

    assert [verdict.kind for verdict in verdicts] == ["deny", "hold", "deny"]
    assert "share the id 'c0'" in verdicts[0].reason


async def test_seven_waiting_calls_are_put_on_two_cards(desk: Desk) -> None:
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": index}) for index in range(7)
    ]

    _, verdicts = await desk.submit(*calls)

    approvals = {verdict.item_id.split(".")[0] for verdict in verdicts}
    assert len(approvals) == 2
    assert len({verdict.item_id for verdict in verdicts}) == 7


@pytest.mark.parametrize(
    ("decision", "state", "event"),
    [
        (Approve(), ItemState.AUTHORIZED, EventName.ITEM_AUTHORIZED),
        (Edit(args={"amount": 5}), ItemState.AUTHORIZED, EventName.ITEM_AUTHORIZED),
        (Reject(reason="no"), ItemState.REJECTED, EventName.ITEM_REJECTED),
        (Respond(message="ask"), ItemState.ANSWERED, EventName.ITEM_ANSWERED),
    ],
)
async def test_state_event_audit_and_job_are_one_step(
    desk: Desk, decision: Decision, state: ItemState, event: EventName
) -> None:
    click, claim = await desk.refund()

    outcome = await desk.reviews.decide(click, decision, ANA)

    keys = desk.store.keys_of_tenant("default")
    audit = await audit_entries(desk.store.conn, keys)
    assert isinstance(outcome, Settled)
    assert (await desk.item(claim.item_id)).state is state
    assert audit[-1].name is event
    assert audit[-1].actor == "T0/U0ANA"
    assert await desk.jobs() == 1


async def test_no_argument_reaches_an_event(desk: Desk) -> None:
    _, verdicts = await desk.submit(("process_refund", {"card": "canary-4242"}))
    await desk.reviews.decide(await desk.click(verdicts[0]), Approve(), ANA)

    keys = desk.store.keys_of_tenant("default")
    for stream in (keys.outbox, keys.audit, keys.jobs):
        assert (
            b"canary"
            not in repr(
                await desk.store.conn.command("XRANGE", stream, "-", "+")
            ).encode()
        )


async def test_two_people_authorize_an_escalated_call(desk: Desk) -> None:
    _, verdicts = await desk.submit(("wire_money", {"amount": 1}))
    click = await desk.click(verdicts[0])

    first = await desk.reviews.decide(click, Approve(), ANA)
    jobs_between = await desk.jobs()
    second = await desk.reviews.decide(click, Approve(), CHLOE, voters=still_members)

    assert isinstance(first, Voted)
    assert jobs_between == 0
    assert isinstance(second, Settled)


async def test_voters_whom_nobody_can_resolve_complete_no_quorum(desk: Desk) -> None:
    _, verdicts = await desk.submit(("wire_money", {"amount": 1}))
    click = await desk.click(verdicts[0])
    await desk.reviews.decide(click, Approve(), ANA)

    second = await desk.reviews.decide(click, Approve(), CHLOE)

    assert isinstance(second, Forbidden)
    item = await desk.item(verdicts[0].item_id)
    assert [vote.by.user for vote in item.votes] == ["U0ANA"]


async def test_two_who_vote_at_once_are_both_heard(desk: Desk) -> None:
    """Whoever is second learns of the first only when theirs is not written."""
    for _ in range(50):
        _, verdicts = await desk.submit(("wire_money", {"amount": 1}))
        click = await desk.click(verdicts[0])

        outcomes = await asyncio.gather(
            desk.reviews.decide(click, Approve(), ANA, voters=still_members),
            desk.reviews.decide(click, Approve(), CHLOE, voters=still_members),
        )

        assert sorted(each.kind for each in outcomes) == ["settled", "voted"]


async def test_a_tightened_policy_counts_for_what_already_waits(desk: Desk) -> None:
    click, claim = await desk.refund()
    desk.policy = load_policy(
        POLICY.replace("process_refund: {tier: approve}",
                       "process_refund: {tier: escalate}"), "p",
    )  # fmt: skip

    first = await desk.reviews.decide(click, Approve(), ANA)

    assert isinstance(first, Voted)
    assert (await desk.item(claim.item_id)).tier == "escalate"


async def test_a_late_click_is_expired_by_the_stores_clock(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.overdue(click.approval)

    outcome = await desk.reviews.decide(click, Approve(), ANA)

    assert isinstance(outcome, Expired)
    assert (await desk.item(claim.item_id)).state is ItemState.EXPIRED
    assert await desk.jobs() == 1


async def test_sweepers_on_every_replica_expire_once(desk: Desk) -> None:
    clicks = [(await desk.refund(thread=f"t{n}"))[0] for n in range(20)]
    for click in clicks:
        await desk.overdue(click.approval)

    ended = await asyncio.gather(*(desk.sweeper.sweep() for _ in range(4)))

    assert sum(ended) == 20
    assert await desk.jobs() == 20
    assert await desk.sweeper.sweep() == 0


@pytest.mark.parametrize(
    "approval", ["", "ap_s0_nothex", "ap_s0_" + "0" * 32, "ap_s9999_" + "0" * 32, "é"]
)
async def test_an_unknown_approval_is_unknown_and_not_an_error(
    desk: Desk, approval: str
) -> None:
    click, _ = await desk.refund()

    outcome = await desk.reviews.decide(click.with_(approval=approval), Approve(), ANA)

    assert isinstance(outcome, Unknown)


async def test_approve_all_is_bound_to_the_batch_that_was_seen(desk: Desk) -> None:
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": n}) for n in (1, 2, 3)
    ]
    _, verdicts = await desk.submit(*calls)
    approval = await desk.approval(verdicts[0].item_id)
    seen = approval.digest
    edit = Edit(args={"amount": 9})
    await desk.reviews.decide(await desk.click(verdicts[2]), edit, BEN)
    click = await desk.click(verdicts[0])

    old = await desk.reviews.decide_pending(click, seen, Approve(), ANA)
    fresh = (await desk.approval(verdicts[0].item_id)).digest
    new = await desk.reviews.decide_pending(click, fresh, Approve(), ANA)

    assert [outcome.kind for outcome in old] == ["changed"]
    assert [outcome.kind for outcome in new] == ["settled", "settled"]


async def test_approve_all_covers_no_call_that_is_escalated_by_now(desk: Desk) -> None:
    _, (refund, mail) = await desk.submit(
        ("process_refund", {"amount": 1}), ("send_email", {})
    )
    seen = (await desk.approval(mail.item_id)).digest
    stricter = POLICY.replace(
        "send_email: {tier: approve", "send_email: {tier: escalate"
    )
    desk.policy = load_policy(stricter, "policy.yml")
    click = await desk.click(refund)

    done, refused = await desk.reviews.decide_pending(click, seen, Approve(), ANA)

    assert (done.kind, refused.kind) == ("settled", "forbidden")
    assert (await desk.item(mail.item_id)).votes == ()
    alone = await desk.reviews.decide(await desk.click(mail), Approve(), ANA)
    assert alone.kind == "voted"


async def test_a_new_turn_supersedes_what_the_old_one_waited_for(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.refund()

    outcome = await desk.reviews.decide(click, Approve(), ANA)

    assert isinstance(outcome, Stale)
    assert (await desk.item(claim.item_id)).state is ItemState.SUPERSEDED


async def test_subagents_of_one_thread_do_not_supersede_each_other(desk: Desk) -> None:
    _, one = await desk.submit(("process_refund", {"amount": 1}), ns="sub:1")
    await desk.submit(("process_refund", {"amount": 2}), ns="sub:2")

    assert (await desk.item(one[0].item_id)).state is ItemState.PENDING


async def test_policy_judges_and_describes_what_would_run(desk: Desk) -> None:
    desk.policy = load_policy(
        POLICY + '  pay: {tier: approve, description: "Pay {args.amount}"}\n', "p"
    )

    _, verdicts = await desk.submit(("pay", {"amount": 899.0}))

    assert (await desk.item(verdicts[0].item_id)).description == "Pay 899"
