"""What becomes of a call that failed, or whose tool changed, after its approval."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads are partial
from langchain_core.tools import BaseTool, tool

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.bot.cards.states import card_fallback
from keyturn.gateway.approvals.decisions import Reconcile
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.resume import sample_tools
from tests.resume.resume_stack import EMAIL, REFUND, Stack, open_stack


@tool("refund")
def renamed(order: str, value: float) -> str:
    """Give money back."""
    sample_tools.note(f"refund {order} {value}")
    return "refunded"


@tool
def other(to: str) -> str:
    """Send something else."""
    return to


@asynccontextmanager
async def changed(store: Store, path: Path, given: BaseTool) -> AsyncGenerator[Stack]:
    """Run the shop's agent with another tool, as after a deployment."""
    async with open_checkpoints(str(path)) as saver:
        graph = create_agent(
            sample_tools.obedient(), [given], middleware=[ApprovalMiddleware("shop")]
        )
        yield Stack(store, Runner(attached(graph, saver), agent="shop"), saver)


@pytest.mark.slow
@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (guarded(renamed), "do not fit the tool 'refund', so it did not run"),
        (other, "There is no tool 'refund' here, so this call did not run"),
    ],
    ids=["another-schema", "no-tool"],
)
async def test_a_call_whose_tool_changed_fails_and_the_agent_is_told_why(
    store: Store,
    tmp_path: Path,
    given: BaseTool,
    told: str,
    *,
    is_early: bool,
) -> None:
    path = tmp_path / "checkpoints.sqlite"
    async with open_stack(store, path) as stack:
        async with stack.working():
            await stack.ask(REFUND)
            [item] = await stack.asked()
            await stack.idle()
        if is_early:
            await stack.decide(item)

    async with changed(store, path, given) as stack, stack.working():
        if not is_early:
            await stack.decide(item)
        assert told in await stack.words()
        [approval] = await stack.approvals()

    assert [one.state for one in approval.items] == [ItemState.FAILED]
    assert " ran" not in card_fallback(approval)
    assert sample_tools.ledger() == []


CHARGE = ("charge", {"order": "78291"})


@pytest.fixture(autouse=True)
def _bank_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_tools, "is_bank_down", True)


async def failed(stack: Stack) -> Item:
    """Wait until a charge has failed, and the thread asks about it."""

    async def is_so() -> bool:
        doubts = await stack.events(EventName.ITEM_IN_DOUBT)
        asked = [str(one.value) for one in (await stack.runner.probe("t1")).pending]
        return len(doubts) == 1 and any("keyturn.reconcile" in one for one in asked)

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
