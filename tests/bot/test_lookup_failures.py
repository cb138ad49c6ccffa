"""A failed lookup in Slack costs a click, and never an approval."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from keyturn.bot import reviewers
from keyturn.bot.ids import Action
from keyturn.bot.reviewers import FRESH_S, Reviewers
from keyturn.gateway.approvals.decisions import Reviewer
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Verdict
from keyturn.gateway.service.people.queue import DelegationService
from keyturn.sandbox.faults import Fault
from tests.bot.bot_stack import CHANNEL, Stack
from tests.levels import sample

pytestmark = pytest.mark.usefixtures("slacks_limits")

GROUPS = "usergroups.users.list"
USERS = "users.info"
CALLS = ((USERS, 3), (GROUPS, 4))
"""How often a two-person approval asks Slack, by method."""

CUT = {Fault.RESET, Fault.LOST_RESPONSE}
ROLES_AT_VOTE = {"U0ANA": ("support",), "U0CHLOE": ("senior",)}


@pytest.fixture
def transport() -> SlackMode:
    """Choose sockets: signatures would not survive a moved clock."""
    return SlackMode.SOCKET


async def wire(stack: Stack, number: int) -> Verdict:
    """Request a call that two people decide."""
    (verdict,) = await stack.submit(("wire_money", {"n": number}), thread=f"t{number}")
    return verdict


async def click(stack: Stack, user: str, ts: str) -> list[str]:
    """Approve; return the person's private reply once it came."""
    person = stack.actor(user)
    before = len(await person.ephemerals(CHANNEL))
    await person.click(CHANNEL, ts, Action.APPROVE)
    await stack.bot_is_quiet()
    return [str(one["text"]) for one in (await person.ephemerals(CHANNEL))[before:]]


async def approve(stack: Stack, user: str, ts: str, verdict: Verdict) -> int:
    """Approve, and again after failed lookups; return the number of clicks."""
    before = (await stack.approval(verdict)).rev
    told = await click(stack, user, ts)
    if (await stack.approval(verdict)).rev > before:
        return 1
    (said,) = told
    assert re.match(r"(Slack did not say|It could not be checked) who ", said)
    assert "nothing was recorded" in said
    wait = re.search(r"try again in (\d+) seconds", said)
    stack.sandbox.control.advance(float(wait[1]) if wait else 0.0)
    await click(stack, user, ts)
    return 2


async def no_delegations(*_: object) -> tuple[()]:
    return ()


@pytest.mark.parametrize("fault", sample(Fault, 3))
async def test_after_one_failed_lookup_a_second_click_ends_where_no_failure_ends(
    stack: Stack, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All lookups of a click begin together. Otherwise a voter's failed lookup may be
    # repeated for the person who clicks, and not cost a click; see the next test.
    monkeypatch.setattr(DelegationService, "given_to", no_delegations)
    if fault is Fault.SLOW:
        # Every other answer has to come sooner than this, also on a busy machine.
        monkeypatch.setattr(reviewers, "LOOKUP_TIMEOUT_S", 4.0)
    number = 0
    async with stack.running():
        for method, calls in CALLS:
            # A slow answer takes its time limit.
            places = sample(range(calls), 1 if fault is Fault.SLOW else calls)
            for nth in places:
                number += 1
                stack.sandbox.control.advance(120)
                verdict = await wire(stack, number)
                ts = str((await stack.card(verdict))["ts"])
                stack.sandbox.control.advance(120)
                stack.sandbox.faults.plan(fault, method, seconds=30, after=nth)
                # aiohttp repeats a GET on a connection that was cut under it.
                if fault in CUT:
                    stack.sandbox.faults.plan(fault, method, after=nth)

                first = await approve(stack, "U0ANA", ts, verdict)
                stack.sandbox.control.advance(2 * FRESH_S + 1)
                second = await approve(stack, "U0CHLOE", ts, verdict)

                item = await stack.item(verdict)
                assert {
                    vote.by.user: vote.roles for vote in item.votes
                } == ROLES_AT_VOTE
                assert item.state is ItemState.AUTHORIZED
                clicks = {2, 3} if fault in CUT else {3}
                assert first + second in clicks, (method, nth)
                assert not stack.sandbox.faults.next_fault(method)


async def test_a_failed_lookup_that_no_vote_needs_costs_no_second_click(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve, ana_is_known = Reviewers.resolve, asyncio.Event()

    async def in_turn(self: Reviewers, user: str, **rest: Any) -> Reviewer:
        if user == "U0CHLOE":
            await ana_is_known.wait()
        # Only the lookup of S0SENIOR is left, so the fault cannot hit S0SUPPORT.
        await self.group("S0SUPPORT", fresh=True)
        found = await resolve(self, user, **rest)
        ana_is_known.set()
        return found

    async with stack.running():
        verdict = await wire(stack, 1)
        ts = str((await stack.card(verdict))["ts"])
        assert await approve(stack, "U0ANA", ts, verdict) == 1
        stack.sandbox.control.advance(2 * FRESH_S + 1)
        monkeypatch.setattr(Reviewers, "resolve", in_turn)
        stack.sandbox.faults.plan(Fault.REFUSE, GROUPS, after=1)

        assert await approve(stack, "U0CHLOE", ts, verdict) == 1

        assert not stack.sandbox.faults.next_fault(GROUPS)
        item = await stack.item(verdict)
    assert {vote.by.user: vote.roles for vote in item.votes} == ROLES_AT_VOTE
