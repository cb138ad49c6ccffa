"""An approval that is taken back at the claim: the thread waits again, and goes on."""

from __future__ import annotations

import pytest

from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.house import ANA, POLICY, House
from twokey.gateway.approvals.decisions import Approve, Reject, Reviewer, Standing
from twokey.gateway.approvals.events import EventName
from twokey.gateway.approvals.record import Item
from twokey.gateway.policy.load import load_policy
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.states import ItemState

REFUND = ("refund", {"order": "78291", "amount": 899.0})
EMAIL = ("email", {"to": "ana@example.org"})
BEN = Reviewer(team="T0", user="U0BEN", name="Ben", standing=Standing.MEMBER)


def policy(refund: str, reviewers: str = "[U0ANA]") -> Policy:
    """Return the house's policy with another rule for refunds."""
    text = POLICY.replace("refund: {tier: approve}", f"refund: {refund}")
    return load_policy(text.replace("[U0ANA]", reviewers), "policy.yml")


FORBIDDEN = policy("{tier: deny}")
OTHERS = policy("{tier: approve}", "[U0BEN]")


async def approved_then(house: House, now: Policy) -> Item:
    """Approve a refund while no worker runs, and put another policy in force."""
    house.policy = policy("{tier: approve}", "[U0ANA, U0BEN]")
    async with house.working():
        await house.ask(REFUND, EMAIL)
        refund, _ = await house.asked(2)
        await house.idle()
    await house.decide(refund)
    house.policy = now
    return refund


async def waits_again(house: House, times: int = 1) -> None:
    """Wait until the thread rests and asks about both calls."""

    async def is_so() -> bool:
        reopened = await house.events(EventName.ITEM_REOPENED)
        states = await house.states()
        asked = len((await house.runner.probe("t1")).pending)
        return len(reopened) == times and states[0] is ItemState.PENDING and asked == 2

    await eventually(is_so)
    await house.idle()


async def test_a_call_that_is_forbidden_by_now_does_not_run_and_the_agent_is_told(
    house: House,
) -> None:
    await approved_then(house, FORBIDDEN)

    async with house.working():
        [_, email] = await house.items()
        await eventually(lambda: is_(house, 0, ItemState.LAPSED))
        await house.decide(email, Reject(), by=ANA)
        words = await house.words()

    assert "no longer allows it, so the call did not run" in words
    assert sample_tools.ledger() == []


@pytest.mark.parametrize("who", [BEN, ANA])
async def test_a_call_that_went_back_runs_once_when_others_approve_it(
    house: House, who: Reviewer
) -> None:
    """The same person may approve it again when the policy lets them again."""
    await approved_then(house, OTHERS)

    async with house.working():
        await waits_again(house)
        assert sample_tools.ledger() == []
        if who is ANA:
            house.policy = policy("{tier: approve}", "[U0ANA, U0BEN]")
        [refund, email] = await house.items()
        outcome = await house.decide(refund, Approve(), by=who)
        await house.decide(email, Reject(), by=BEN)
        if who is ANA:
            # The stricter of then and now: only Ben may, since it was taken back.
            assert outcome.kind == "forbidden"
            await house.decide(refund, Approve(), by=BEN)
        words = await house.words()

    assert "refunded 78291 899" in words
    assert len(sample_tools.ledger()) == 1


async def test_a_call_that_went_back_is_rejected_with_the_words_of_the_person(
    house: House,
) -> None:
    await approved_then(house, OTHERS)

    async with house.working():
        await waits_again(house)
        [refund, email] = await house.items()
        await house.decide(refund, Reject(reason="not any more"), by=BEN)
        await house.decide(email, Reject(), by=BEN)
        words = await house.words()

    assert "not any more" in words
    assert sample_tools.ledger() == []


async def test_a_call_goes_back_as_often_as_the_policy_changes(house: House) -> None:
    """The same people, the same answer again: the thread is not taken for stuck."""
    await approved_then(house, OTHERS)
    one = policy("{tier: approve}", "[U0BEN]")
    two = policy("{tier: escalate, reviewers: [U0ANA, U0BEN]}", "[U0ANA, U0BEN]")

    async with house.working():
        await waits_again(house)
    [refund, email] = await house.items()
    await house.decide(refund, Approve(), by=BEN)
    house.policy = two
    async with house.working():
        await waits_again(house, 2)
        [refund, email] = await house.items()
        assert refund.revoked
        assert refund.revoked.times == 2
        await house.decide(refund, Reject(), by=BEN)
        house.policy = one
        await house.decide(email, Reject(), by=BEN)
        await house.words()

    assert sample_tools.ledger() == []
    assert await house.events(EventName.RUN_PARKED) == []


async def test_a_new_message_ends_what_went_back(house: House) -> None:
    await approved_then(house, OTHERS)

    async with house.working():
        await waits_again(house)
        await house.say("never mind")
        await house.words()

    assert (await house.states())[0] is ItemState.SUPERSEDED
    assert sample_tools.ledger() == []


async def is_(house: House, index: int, state: ItemState) -> bool:
    return (await house.states())[index] is state
