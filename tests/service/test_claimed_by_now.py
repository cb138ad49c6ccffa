"""The claim asks the policy of now: what it forbids or asks more for does not run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.desk import ANA, BEN, CHLOE, POLICY, Desk, still_members
from twokey.gateway.approvals.answering import answer_for
from twokey.gateway.approvals.decisions import Approve, Changed, Edit, Reject
from twokey.gateway.approvals.events import Event, EventName
from twokey.gateway.approvals.revoking import FORBIDDEN, NEEDS_MORE, NOBODY, TOO_OLD
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import (
    AnswerKind,
    Claimed,
    ClaimRequest,
    Refused,
    Reopened,
)
from twokey.gateway.store.outbox import announced
from twokey.gateway.store.store import Store

REFUND = "process_refund: {tier: approve}"
SUPPORT = "support: {users: [U0ANA, U0BEN, U0DAN]}"
RAISING = "raise: [{to: escalate, when: args.amount > 500, because: large}]"
ESCALATED = "process_refund: {tier: escalate}"


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store)


def change(desk: Desk, *pairs: tuple[str, str]) -> None:
    """Put another policy in force."""
    text = POLICY
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    desk.policy = load_policy(text, "policy.yml")


async def approved(desk: Desk, thread: str = "t1") -> ClaimRequest:
    """Return the claim of a refund that Ana approved."""
    click, claim = await desk.refund(thread=thread)
    assert (await desk.reviews.decide(click, Approve(), ANA)).kind == "settled"
    return claim


async def events(desk: Desk, name: EventName) -> list[Event]:
    keys = desk.store.keys_of_tenant("default")
    found = await announced(desk.store.conn, keys)
    return [event for event in found if event.name is name]


@pytest.mark.parametrize(
    "now",
    ["{tier: deny}", "{tier: approve, allow: [reject, respond]}"],
)
async def test_what_the_policy_forbids_by_now_ends_with_the_reason(
    desk: Desk, now: str
) -> None:
    claim = await approved(desk)
    change(desk, (REFUND, f"process_refund: {now}"))

    reply = await desk.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.reason == f"{FORBIDDEN[:-1]}, so the call did not run."
    item = await desk.item(claim.item_id)
    assert item.state is ItemState.LAPSED
    [event] = await events(desk, EventName.ITEM_LAPSED)
    assert (event.reason, event.actor) == (FORBIDDEN, "twokey")
    assert event.policy_digest == desk.policy.digest
    answer = answer_for(item)
    assert answer
    assert answer.message == reply.reason
    assert await desk.agents.claim(claim) == reply, "and it stays so"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (REFUND, ESCALATED),
        (SUPPORT, "support: {users: [U0BEN, U0DAN]}"),
        (REFUND, "process_refund: {tier: approve, reviewers: senior}"),
        (REFUND, f"{REFUND[:-1]}, {RAISING}}}"),
    ],
    ids=["tier", "approver", "reviewers", "rule"],
)
async def test_what_needs_more_people_by_now_goes_back_to_them(
    desk: Desk, old: str, new: str
) -> None:
    claim = await approved(desk)
    before = await desk.approval(claim.item_id)
    change(desk, (old, new))

    reply = await desk.agents.claim(claim)

    assert reply == Reopened(reason=NEEDS_MORE)
    after = await desk.approval(claim.item_id)
    item = after.items[0]
    assert item.state is ItemState.PENDING
    assert item.settlement is None
    assert after.version == before.version + 1
    assert after.expires_at_ms >= before.expires_at_ms
    [event] = await events(desk, EventName.ITEM_REOPENED)
    assert (event.reason, event.actor) == (NEEDS_MORE, "twokey")
    assert await desk.agents.claim(claim) == reply, "it waits, and is asked about again"


async def test_what_nobody_may_approve_by_both_policies_ends(desk: Desk) -> None:
    claim = await approved(desk)
    change(desk, (SUPPORT, "support: {users: [U0EVE]}"))

    reply = await desk.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.reason == f"{NOBODY[:-1]}, so the call did not run."
    assert (await desk.item(claim.item_id)).state is ItemState.LAPSED


async def test_a_vote_that_still_counts_is_kept(desk: Desk) -> None:
    claim = await approved(desk)
    change(desk, (REFUND, ESCALATED))
    await desk.agents.claim(claim)
    item = await desk.item(claim.item_id)
    click = await desk.click_on(claim.item_id)

    again = await desk.reviews.decide(click, Approve(), ANA, voters=still_members)
    second = await desk.reviews.decide(click, Approve(), CHLOE, voters=still_members)

    assert [vote.by.user for vote in item.votes] == ["U0ANA"]
    assert again.kind == "forbidden", "Ana's word is used up"
    assert second.kind == "settled"
    assert isinstance(await desk.agents.claim(claim), Claimed)


async def test_the_vote_of_who_lost_the_role_is_gone(desk: Desk) -> None:
    claim = await approved(desk)
    change(desk, (SUPPORT, "support: {users: [U0BEN, U0DAN]}"))
    await desk.agents.claim(claim)
    click = await desk.click_on(claim.item_id)

    gone = await desk.reviews.decide(click, Approve(), ANA)
    other = await desk.reviews.decide(click, Approve(), BEN)

    votes = (await desk.item(claim.item_id)).votes
    assert [vote.by.user for vote in votes] == ["U0BEN"]
    assert (gone.kind, other.kind) == ("forbidden", "settled")
    assert isinstance(await desk.agents.claim(claim), Claimed)


async def test_a_click_on_a_card_from_before_counts_for_nothing(desk: Desk) -> None:
    claim = await approved(desk)
    old = await desk.click_on(claim.item_id)
    change(desk, (REFUND, ESCALATED))
    await desk.agents.claim(claim)

    outcome = await desk.reviews.decide(old, Approve(), CHLOE, voters=still_members)

    assert isinstance(outcome, Changed)


async def test_an_edited_call_that_went_back_runs_as_it_was_edited(desk: Desk) -> None:
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Edit(args={"amount": 5}, reason="less"), ANA)
    change(desk, (SUPPORT, "support: {users: [U0BEN, U0DAN]}"))
    assert isinstance(await desk.agents.claim(claim), Reopened)

    again = await desk.click_on(claim.item_id)
    await desk.reviews.decide(again, Approve(), BEN)
    answer = answer_for(await desk.item(claim.item_id))
    reply = await desk.agents.claim(claim)

    assert answer
    assert (answer.type, answer.args) == (AnswerKind.EDIT, {"amount": 5})
    assert isinstance(reply, Claimed)
    assert reply.edit
    assert reply.edit.executed == {"amount": 5}


async def test_what_went_back_can_be_rejected_or_expire(desk: Desk) -> None:
    claims = [await approved(desk, thread) for thread in ("t1", "t2")]
    change(desk, (REFUND, ESCALATED))
    for claim in claims:
        await desk.agents.claim(claim)

    no = await desk.reviews.decide(
        await desk.click_on(claims[0].item_id), Reject(reason="no"), BEN
    )
    await desk.overdue(claims[1].item_id.rpartition(".")[0])
    await desk.sweeper.sweep()

    assert no.kind == "settled"
    assert (await desk.item(claims[1].item_id)).state is ItemState.EXPIRED
    for claim in claims:
        assert isinstance(await desk.agents.claim(claim), Refused)


async def test_what_went_back_counts_as_waiting_again(desk: Desk) -> None:
    claim = await approved(desk)
    keys = desk.store.keys_of_tenant("default")
    waiting = keys.waiting("default", "support")
    assert await desk.store.conn.command("ZCARD", waiting) == 0
    change(desk, (REFUND, ESCALATED))

    await desk.agents.claim(claim)

    assert await desk.store.conn.command("ZCARD", waiting) == 1
    assert [one.approval.id for one in await desk.reviews.waiting()] == [
        claim.item_id.rpartition(".")[0]
    ]


async def test_a_looser_policy_changes_nothing_for_a_claim(desk: Desk) -> None:
    claim = await approved(desk)
    change(desk, (REFUND, "process_refund: {tier: auto}"))

    assert isinstance(await desk.agents.claim(claim), Claimed)


async def test_an_authorization_lapses_as_the_policy_says(desk: Desk) -> None:
    change(desk, (REFUND, "process_refund: {tier: approve, authorization: 15m}"))
    claim = await approved(desk)
    item = await desk.item(claim.item_id)

    assert item.lapses_at_ms - item.changed_at_ms == 15 * 60_000


async def test_the_shorter_authorization_of_then_and_now_counts(desk: Desk) -> None:
    change(desk, (REFUND, "process_refund: {tier: approve, authorization: 15m}"))
    click, claim = await desk.refund()
    change(desk, (REFUND, "process_refund: {tier: approve, authorization: 2h}"))
    await desk.reviews.decide(click, Approve(), ANA)
    item = await desk.item(claim.item_id)

    assert item.lapses_at_ms - item.changed_at_ms == 15 * 60_000


async def test_an_authorization_older_than_the_policy_lets_it_be_ends(
    desk: Desk,
) -> None:
    claim = await approved(desk)
    await desk.authorized_ago(claim.item_id, 10 * 60_000)
    change(desk, (REFUND, "process_refund: {tier: approve, authorization: 5m}"))

    reply = await desk.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.reason == f"{TOO_OLD[:-1]}, so the call did not run."
    assert (await desk.item(claim.item_id)).state is ItemState.LAPSED


async def test_a_lapsed_authorization_says_that_it_lapsed(desk: Desk) -> None:
    claim = await approved(desk)
    await desk.lapsed(claim.item_id)

    reply = await desk.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.reason.startswith("The authorization was not used in time")


async def test_a_dead_attempt_is_not_repeated_when_the_policy_forbids_it(
    desk: Desk,
) -> None:
    ref, (verdict,) = await desk.submit(("send_email", {"to": "ana@example.org"}))
    await desk.reviews.decide(await desk.click(verdict), Approve(), ANA)
    claim = ClaimRequest(
        item_id=verdict.item_id,
        ref=ref,
        tool="send_email",
        tool_call_id=verdict.tool_call_id,
        owner="w1",
    )
    assert isinstance(await desk.agents.claim(claim), Claimed)
    await desk.owner_dies(verdict.item_id)
    change(desk, ("send_email: {tier: approve", "send_email: {tier: deny"))

    reply = await desk.agents.claim(claim.with_(owner="w2"))

    assert reply.kind == "in_doubt"


async def test_a_call_that_was_given_back_meanwhile_is_judged_before_it_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(store)
    click, claim = await desk.refund()
    await desk.reviews.decide(click, Approve(), ANA)
    first = await desk.agents.claim(claim)
    assert isinstance(first, Claimed)
    change(desk, (REFUND, "process_refund: {tier: deny}"))
    evalsha = store.conn.evalsha

    async def given_back_before(*args: Any) -> Any:
        monkeypatch.setattr(store.conn, "evalsha", evalsha)
        await desk.agents.release(claim.item_id, first.fence)
        return await evalsha(*args)

    await desk.owner_dies(claim.item_id)
    monkeypatch.setattr(store.conn, "evalsha", given_back_before)
    between = await desk.agents.claim(claim.with_(owner="w2"))
    after = await desk.agents.claim(claim.with_(owner="w2"))

    assert isinstance(between, Refused)
    assert isinstance(after, Refused)
