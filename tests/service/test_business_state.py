"""A claim is given in the business state that people approved, and in no other."""

from __future__ import annotations

import json

import pytest
from pydantic import JsonValue

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.call_rows import needs_full_view
from keyturn.bot.modals.details import pages
from keyturn.gateway.approvals.decisions import Approve, Changed, Click, Edit
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.revoking import STATE_CHANGED
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.digest import BusinessState, state_in
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import (
    CheckState,
    Claimed,
    ClaimReply,
    ClaimRequest,
    ProposedCall,
    Refused,
    Reopened,
    StateNow,
    Turn,
    TurnRef,
)
from tests.bot.samples import frame
from tests.service.harness import ANA, BEN, ServiceHarness, claim_of

REFUND: dict[str, JsonValue] = {"order_id": "78291", "amount": 899.0}
OPEN: JsonValue = {"status": "open", "version": 3}
CLOSED: JsonValue = {"status": "closed", "version": 4}


async def asked(
    harness: ServiceHarness, state: JsonValue = OPEN
) -> tuple[Click, ClaimRequest]:
    """Ask for a refund that depends on a state; return a click on it and its claim."""
    ref = TurnRef(agent="support", thread="t1", message_id="m1")
    call = ProposedCall(
        tool="process_refund",
        args=REFUND,
        tool_call_id="c0",
        state=BusinessState(value=state),
    )
    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
    return await harness.click_on(verdict.item_id), claim_of(ref, verdict)


async def claimed(
    harness: ServiceHarness, claim: ClaimRequest, state: JsonValue
) -> ClaimReply:
    """Claim as an agent does that finds this state."""
    reply = await harness.agents.claim(claim)
    assert isinstance(reply, CheckState)
    assert digest.action_hash(reply.action) == reply.action_hash
    return await harness.agents.claim(claim.with_(state=now(reply.action_hash, state)))


def now(action_hash: str, state: JsonValue) -> StateNow:
    return StateNow(action_hash=action_hash, state=BusinessState(value=state))


@pytest.mark.parametrize("state", [CLOSED, None, {}])
async def test_another_state_reopens(harness: ServiceHarness, state: JsonValue) -> None:
    click, claim = await asked(harness)
    await harness.reviews.decide(click, Approve(), ANA)
    before = await harness.item(claim.item_id)

    reply = await claimed(harness, claim, state)

    assert reply == Reopened(reason=STATE_CHANGED)
    item = await harness.item(claim.item_id)
    assert (item.state, item.votes) == (ItemState.PENDING, ())
    assert item.action_hash != before.action_hash
    assert item.requested == before.requested
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Changed)
    [event] = await harness.announced(EventName.ITEM_REOPENED)
    assert event.reason == STATE_CHANGED
    again = await harness.click_on(claim.item_id)
    assert (await harness.reviews.decide(again, Approve(), ANA)).kind == "decided"
    given = await claimed(harness, claim, state)
    assert isinstance(given, Claimed)
    assert given.requested == before.requested


async def test_a_returning_state_revives_no_votes(harness: ServiceHarness) -> None:
    """There and back: the action hash is the first one again, the votes are not."""
    click, claim = await asked(harness)
    await harness.reviews.decide(click, Approve(), ANA)
    for state in (CLOSED, OPEN):
        assert isinstance(await claimed(harness, claim, state), Reopened)
        item = await harness.item(claim.item_id)
        assert item.votes == ()
        if state == CLOSED:
            await harness.decide(claim.item_id, Approve(), BEN)

    assert item.action == item.requested
    assert isinstance(await harness.reviews.decide(click, Approve(), ANA), Changed)
    assert isinstance(await harness.agents.claim(claim), Reopened)


async def test_another_actions_state_does_not_count(harness: ServiceHarness) -> None:
    click, claim = await asked(harness)
    other = claim.with_(state=now(click.action_hash, OPEN))
    await harness.reviews.decide(click, Edit(args={**REFUND, "amount": 1}), ANA)

    reply = await harness.agents.claim(other)

    assert isinstance(reply, CheckState)
    assert reply.edit is not None
    assert digest.action_args(reply.action)["amount"] == 1


async def test_an_edited_call_can_be_edited_back(harness: ServiceHarness) -> None:
    click, claim = await asked(harness)
    await harness.reviews.decide(click, Edit(args={**REFUND, "amount": 1}), ANA)
    assert isinstance(await claimed(harness, claim, CLOSED), Reopened)
    item = await harness.item(claim.item_id)
    assert item.edit is not None
    assert item.edit.edited_hash == item.action_hash
    assert item.args["amount"] == 1

    outcome = await harness.decide(claim.item_id, Edit(args=REFUND))

    assert outcome.kind == "decided"
    item = await harness.item(claim.item_id)
    assert item.edit is None, "the arguments are those of the request"
    assert state_in(item.action) == BusinessState(value=CLOSED)
    assert isinstance(await claimed(harness, claim, CLOSED), Claimed)


async def test_every_state_has_the_same_effect_key(harness: ServiceHarness) -> None:
    """A tool that paused after half of its work is not taken for another effect."""
    click, claim = await asked(harness)
    await harness.reviews.decide(click, Approve(), ANA)
    first = await claimed(harness, claim, OPEN)
    assert isinstance(first, Claimed)
    await harness.agents.release(claim.item_id, first.fence)

    assert isinstance(await claimed(harness, claim, CLOSED), Reopened)
    await harness.decide(claim.item_id, Approve())
    second = await claimed(harness, claim, CLOSED)

    assert isinstance(second, Claimed)
    assert second.idempotency_key == first.idempotency_key
    assert second.action_hash != first.action_hash


async def test_a_state_too_large_to_keep_runs_nothing(harness: ServiceHarness) -> None:
    click, claim = await asked(harness)
    await harness.reviews.decide(click, Approve(), ANA)

    reply = await claimed(harness, claim, "x" * 70_000)

    assert isinstance(reply, Refused)
    assert "did not run" in reply.reason
    assert (await harness.item(claim.item_id)).state is ItemState.AUTHORIZED


async def test_the_card_shows_how_the_state_changed(harness: ServiceHarness) -> None:
    click, claim = await asked(harness)
    first = await shown(harness, claim)
    assert "State when asked:" in first
    assert "status  open\nversion  3" in first
    await harness.reviews.decide(click, Approve(), ANA)
    await claimed(harness, claim, {"status": "open", "version": 4})

    second = await shown(harness, claim)

    assert "State now (when asked → now, where it changed):" in second
    assert "status  open\nversion  3 → 4" in second
    assert STATE_CHANGED in second
    assert "State when asked:" not in second


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("v3", "state  v3"),
        ([1, 2], "state\n  [\n    1,\n    2\n  ]"),
        ({"note": "a\nversion  4"}, "note\n  a\n  version  4"),
        ({"note": "a \u202e b"}, "⟦U+202E⟧"),
        (None, ""),
    ],
)
async def test_no_state_is_shown_as_another_one(
    harness: ServiceHarness, state: JsonValue, told: str
) -> None:
    _, claim = await asked(harness, state)
    text = await shown(harness, claim)
    assert told in text
    assert ("State" in text) is bool(told)


async def test_a_long_state_needs_the_full_view(harness: ServiceHarness) -> None:
    large: JsonValue = {f"field {n:03}": "x" * 30 for n in range(90)}
    _, claim = await asked(harness, large)
    approval = await harness.approval(claim.item_id)

    assert needs_full_view(approval, 0)
    every = "\n".join(
        part.text for page in pages(approval, approval.items[0]) for part in page
    )
    assert all(f"field {n:03}" in every for n in range(90))


async def shown(harness: ServiceHarness, claim: ClaimRequest) -> str:
    """Return every text on the card of a call."""
    approval = await harness.approval(claim.item_id)
    blocks = list(card(frame(approval)).blocks)
    return json.dumps(blocks, ensure_ascii=False).replace("\\n", "\n")
