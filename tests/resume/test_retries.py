"""A failed call of a tool that asks is run again by people, alone, under its key."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Edit, Reconcile
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import Finding, ItemState
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import EMAIL, Stack

CHARGE = ("charge", {"order": "78291"})


@pytest.fixture(autouse=True)
def _bank_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_tools, "is_bank_down", True)


async def failed(stack: Stack, times: int = 1) -> Item:
    """Wait until a charge has failed so often, and the thread asks about it."""

    async def is_so() -> bool:
        doubts = await stack.events(EventName.ITEM_IN_DOUBT)
        asked = [str(one.value) for one in (await stack.runner.probe("t1")).pending]
        return len(doubts) == times and any("keyturn.reconcile" in one for one in asked)

    await eventually(is_so)
    await stack.idle()
    return (await stack.items())[0]


async def charge(stack: Stack) -> Item:
    """Approve a charge, which fails, and an e-mail, which is sent."""
    await stack.ask(CHARGE, EMAIL)
    charging, email = await stack.asked(2)
    await stack.decide(email)
    await stack.decide(charging)
    return await failed(stack)


async def test_people_run_it_again_alone_and_under_its_key(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.working():
        item = await charge(stack)
        assert item.state is ItemState.IN_DOUBT
        assert item.has_failed
        monkeypatch.setattr(sample_tools, "is_bank_down", False)

        again = Reconcile(finding=Finding.RERUN, note="the bank is up")
        outcome = await stack.decide(item, again)
        words = await stack.words()

    assert outcome.kind == "decided"
    assert 'Their note: "the bank is up".' in words
    assert words.endswith("charged 78291 | mailed ana@example.org")
    lines = [line for line in sample_tools.ledger() if line.startswith("charge")]
    assert (len(lines), len(set(lines))) == (2, 1), "twice, under one key"
    assert len(sample_tools.ledger()) == 3, "the e-mail was not sent again"
    assert (await stack.states())[0] is ItemState.EXECUTED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("finding", "state", "told"),
    [
        (Finding.SKIP, ItemState.FAILED, "the bank is down"),
        (Finding.EXECUTED, ItemState.EXECUTED, "confirmed that it took effect"),
    ],
)
async def test_what_people_say_instead_is_what_the_agent_reads(
    stack: Stack, finding: Finding, state: ItemState, told: str
) -> None:
    async with stack.working():
        item = await charge(stack)
        await stack.decide(item, Reconcile(finding=finding, note="4711"))
        words = await stack.words()

    assert told in words
    assert 'Their note: "4711"' in words
    assert (await stack.states())[0] is state
    assert len([one for one in sample_tools.ledger() if one.startswith("charge")]) == 1


@pytest.mark.slow
async def test_an_edited_call_is_run_again_as_it_was_edited(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stack.working():
        await stack.ask(CHARGE)
        [charging] = await stack.asked()
        await stack.decide(charging, Edit(args={"order": "1"}, reason="the other one"))
        item = await failed(stack)
        monkeypatch.setattr(sample_tools, "is_bank_down", False)
        await stack.decide(item, Reconcile(finding=Finding.RERUN))
        words = await stack.words()

    assert "charged 1" in words
    assert {line.split()[1] for line in sample_tools.ledger()} == {"1"}
    assert len(set(sample_tools.ledger())) == 1
