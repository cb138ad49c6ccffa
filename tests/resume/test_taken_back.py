"""An approval that is taken back at the claim: the thread waits again, and goes on."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import AccountKind, Approve, Reject, Reviewer
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import ItemState
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import ANA, POLICY, Stack

REFUND = ("refund", {"order": "78291", "amount": 899.0})
EMAIL = ("email", {"to": "ana@example.org"})
BEN = Reviewer(team="T0", user="U0BEN", name="Ben", account=AccountKind.MEMBER)


def policy(refund: str, reviewers: str = "[U0ANA]") -> Policy:
    """Return the stack's policy with another rule for refunds."""
    text = POLICY.replace("refund: {tier: approve}", f"refund: {refund}")
    return load_policy(text.replace("[U0ANA]", reviewers), "policy.yml")


OTHERS = policy("{tier: approve}", "[U0BEN]")


async def approved_then(stack: Stack, now: Policy) -> Item:
    """Approve a refund while no worker runs, and put another policy in force."""
    stack.policy = policy("{tier: approve}", "[U0ANA, U0BEN]")
    async with stack.working():
        await stack.ask(REFUND, EMAIL)
        refund, _ = await stack.asked(2)
        await stack.idle()
    await stack.decide(refund)
    stack.policy = now
    return refund


async def waits_again(stack: Stack, times: int = 1) -> None:
    """Wait until the thread rests and asks about both calls."""

    async def is_so() -> bool:
        reopened = await stack.events(EventName.ITEM_REOPENED)
        states = await stack.states()
        asked = len((await stack.runner.probe("t1")).pending)
        return len(reopened) == times and states[0] is ItemState.PENDING and asked == 2

    await eventually(is_so)
    await stack.idle()


@pytest.mark.slow
@pytest.mark.parametrize("who", [BEN, ANA])
async def test_a_call_that_went_back_runs_once_when_others_approve_it(
    stack: Stack, who: Reviewer
) -> None:
    """The same person may approve it again once the policy allows it again."""
    await approved_then(stack, OTHERS)

    async with stack.working():
        await waits_again(stack)
        assert sample_tools.ledger() == []
        if who is ANA:
            stack.policy = policy("{tier: approve}", "[U0ANA, U0BEN]")
        [refund, email] = await stack.items()
        outcome = await stack.decide(refund, Approve(), by=who)
        await stack.decide(email, Reject(), by=BEN)
        if who is ANA:
            # The stricter of then and now: only Ben may, since it was taken back.
            assert outcome.kind == "forbidden"
            await stack.decide(refund, Approve(), by=BEN)
        words = await stack.words()

    assert "refunded 78291 899" in words
    assert len(sample_tools.ledger()) == 1


@pytest.mark.slow
async def test_a_call_goes_back_as_often_as_the_policy_changes(stack: Stack) -> None:
    """The same people, the same answer again: the thread is not taken for stuck."""
    await approved_then(stack, OTHERS)
    one = policy("{tier: approve}", "[U0BEN]")
    two = policy("{tier: escalate, reviewers: [U0ANA, U0BEN]}", "[U0ANA, U0BEN]")

    async with stack.working():
        await waits_again(stack)
    [refund, email] = await stack.items()
    await stack.decide(refund, Approve(), by=BEN)
    stack.policy = two
    async with stack.working():
        await waits_again(stack, 2)
        [refund, email] = await stack.items()
        assert refund.revoked
        assert refund.revoked.times == 2
        await stack.decide(refund, Reject(), by=BEN)
        stack.policy = one
        await stack.decide(email, Reject(), by=BEN)
        await stack.words()

    assert sample_tools.ledger() == []
    assert await stack.events(EventName.RUN_PARKED) == []
