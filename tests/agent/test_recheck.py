"""A call runs only in the business state that people approved, in every kind of run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from keyturn.agent import Approved, guarded
from keyturn.agent.grants import recheck_of
from keyturn.agent.scripted_model import calling
from keyturn.gateway.client import bridge
from keyturn.gateway.errors import StateUnknown
from keyturn.gateway.protocol import texts
from keyturn.gateway.protocol.digest import BusinessState, state_in
from keyturn.gateway.protocol.records import ItemState
from tests.agent.agent_runner import GO, STRICT, Runner, build, pay, results, step_graph
from tests.agent.fake_gateway import FakeGateway

ASKED = {"amount": 10.0, "to": "ada"}


class Bank:
    """Accounts with a version each, and a tool that depends on it."""

    def __init__(self, *, is_async: bool = False) -> None:
        self.version: Any = 3
        self.read: list[dict[str, Any]] = []
        self.paid: list[float] = []
        self.before: Callable[[], None] = lambda: None
        self.is_async = is_async

    def tools(self) -> list[BaseTool]:
        def recheck(amount: float, to: str) -> dict[str, Any]:
            self.read.append({"amount": amount, "to": to})
            self.before()
            return {"account": to, "version": self.version}

        async def slowly(**args: Any) -> dict[str, Any]:
            await asyncio.sleep(0)
            return recheck(**args)

        @tool
        def pay(amount: float, to: str) -> str:
            """Make a payment."""
            self.paid.append(amount)
            return f"paid {amount} to {to}"

        return [guarded(pay, recheck=slowly if self.is_async else recheck)]


@pytest.fixture(params=[False, True], ids=["plain", "coroutine"])
def bank(request: pytest.FixtureRequest) -> Bank:
    return Bank(is_async=request.param)


async def asked(runner: Runner, memory: InMemorySaver, bank: Bank) -> Any:
    """Return a graph that waits for people, and its gateway."""
    gateway = FakeGateway()
    graph = build(gateway, bank.tools(), pay(), saver=memory)
    await runner.say(graph, "pay ada")
    return graph, gateway


async def test_in_the_same_state_it_runs(runner: Runner, bank: Bank) -> None:
    graph, gateway = await asked(runner, runner.memory, bank)
    item = gateway.only()
    gateway.approve(item.id)

    state = await runner.resume(graph, gateway)

    bound = BusinessState(value={"account": "ada", "version": 3})
    assert state_in(item.action) == bound
    assert results(state)[0].text == "paid 10.0 to ada"
    assert bank.read == [ASKED, ASKED]


async def test_another_state_waits_for_people(runner: Runner, bank: Bank) -> None:
    graph, gateway = await asked(runner, runner.memory, bank)
    before = gateway.only()
    gateway.approve(before.id)
    answers = await runner.answers(graph, gateway)
    bank.version = 4

    await runner.run(graph, Command(resume=answers), STRICT)

    item = gateway.only()
    assert bank.paid == []
    assert item.state is ItemState.PENDING
    assert item.action_hash != before.action_hash
    gateway.approve(item.id)
    state = await runner.resume(graph, gateway)
    assert results(state)[0].text == "paid 10.0 to ada"
    assert bank.paid == [10]


async def test_an_edit_compares_what_runs(runner: Runner, bank: Bank) -> None:
    graph, gateway = await asked(runner, runner.memory, bank)
    item_id = gateway.only().id
    gateway.edit(item_id, {"amount": 5, "to": "bob"}, "half, and to Bob")
    answers = await runner.answers(graph, gateway)

    await runner.run(graph, Command(resume=answers), STRICT)

    assert bank.read[-1] == {"amount": 5, "to": "bob"}
    assert bank.paid == [], "the state of another account is another state"
    gateway.approve(item_id)
    state = await runner.resume(graph, gateway)
    assert bank.paid == [5]
    assert "half, and to Bob" in results(state)[0].text


@pytest.mark.parametrize("fault", ["raises", "no JSON", "too large"])
async def test_a_recheck_that_fails_at_the_claim_lets_nothing_run_and_loses_nothing(
    runner: Runner, bank: Bank, fault: str
) -> None:
    graph, gateway = await asked(runner, runner.memory, bank)
    gateway.approve(gateway.only().id)
    answers = await runner.answers(graph, gateway)
    break_(bank, fault)

    with pytest.raises(StateUnknown, match="could not be read"):
        await runner.run(graph, Command(resume=answers), STRICT)

    assert bank.paid == []
    assert gateway.only().state is ItemState.AUTHORIZED
    mend(bank)
    state = await runner.run(graph, Command(resume=answers), STRICT)
    assert results(state)[0].text == "paid 10.0 to ada"


@pytest.mark.parametrize("fault", ["raises", "no JSON", "too large"])
async def test_a_recheck_that_fails_at_the_request_asks_nobody(
    runner: Runner, bank: Bank, fault: str
) -> None:
    break_(bank, fault)
    gateway = FakeGateway()
    graph = build(gateway, bank.tools(), pay())

    state = await runner.say(graph, "pay ada")

    assert gateway.items == {}
    assert results(state)[0].text == texts.STATE_UNREADABLE


async def test_a_recheck_that_hangs_counts_as_failed(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank()
    graph, gateway = await asked(runner, runner.memory, bank)
    gateway.approve(gateway.only().id)
    answers = await runner.answers(graph, gateway)
    ends = threading.Event()

    def hang() -> None:
        ends.wait(30)

    bank.before = hang
    monkeypatch.setattr(bridge, "PORT_TIMEOUT_S", 0.05)

    with pytest.raises(StateUnknown, match="could not be read within"):
        await runner.run(graph, Command(resume=answers), STRICT)

    ends.set()
    assert bank.paid == []
    assert gateway.only().state is ItemState.AUTHORIZED


async def test_a_call_older_than_its_recheck_does_not_run(runner: Runner) -> None:
    gateway, bank = FakeGateway(), Bank()
    [plain] = bank.tools()
    graph = build(gateway, [without_recheck(plain)], pay(), saver=runner.memory)
    await runner.say(graph, "pay ada")
    gateway.approve(gateway.only().id)
    newer = build(gateway, bank.tools(), pay(), saver=runner.memory)

    state = await runner.resume(newer, gateway)

    assert bank.paid == []
    assert results(state)[0].text == texts.STATE_MISSING


async def test_a_call_with_a_state_needs_a_recheck_to_run(runner: Runner) -> None:
    bank = Bank()
    _, gateway = await asked(runner, runner.memory, bank)
    gateway.approve(gateway.only().id)
    [plain] = bank.tools()
    older = build(gateway, [without_recheck(plain)], pay(), saver=runner.memory)

    with pytest.raises(StateUnknown, match="has no recheck here"):
        await runner.resume(older, gateway)

    assert bank.paid == []


@pytest.mark.parametrize("now", [None, 7])
async def test_a_state_of_null_is_a_state_too(runner: Runner, now: int | None) -> None:
    shipped: list[str] = []
    rows = [None, now]

    def recheck(**_: Any) -> int | None:
        return rows.pop(0)

    @tool
    def ship(order: str) -> str:
        """Ship an order."""
        shipped.append(order)
        return f"shipped {order}"

    gateway = FakeGateway()
    call = calling(("ship", {"order": "o1"}, "c1"))
    graph = build(gateway, [guarded(ship, recheck=recheck)], call)
    await runner.say(graph, "ship it")
    gateway.approve(gateway.only().id)
    answers = await runner.answers(graph, gateway)

    await runner.run(graph, Command(resume=answers), STRICT)

    assert shipped == (["o1"] if now is None else [])
    assert gateway.only().is_pending is (now is not None)


async def test_a_plain_nodes_step_has_a_state_too(runner: Runner, bank: Bank) -> None:
    def pay(amount: float, to: str) -> str:
        bank.paid.append(amount)
        return f"paid {to}"

    gateway = FakeGateway()
    options: Any = {"gateway": gateway, "recheck": recheck_of(bank.tools()[0])}
    graph = step_graph(runner, runner.memory, "pay", ASKED, run=pay, **options)
    break_(bank, "raises")
    unread = (await runner.run(graph, GO))["outcome"]
    assert (unread.message, gateway.items) == (texts.STATE_UNREADABLE, {})
    mend(bank)
    await runner.run(graph, GO)
    item_id = gateway.only().id
    gateway.approve(item_id)
    answers = await runner.answers(graph, gateway)
    bank.version = 4

    await runner.run(graph, Command(resume=answers), STRICT)

    assert bank.paid == []
    gateway.approve(item_id)
    end = await runner.resume(graph, gateway)
    assert isinstance(end["outcome"], Approved)
    assert bank.paid == [10]


def without_recheck(given: BaseTool) -> BaseTool:
    """Return the tool as it would be without one."""
    assert isinstance(given, StructuredTool)
    plain: Callable[..., Any] | None = given.func
    assert plain is not None
    return guarded(plain)


def break_(bank: Bank, fault: str) -> None:
    """Make the next reads of the state fail."""

    def down() -> None:
        raise ConnectionError("the bank is down")

    if fault == "raises":
        bank.before = down
    else:
        bank.version = object() if fault == "no JSON" else "x" * 5000


def mend(bank: Bank) -> None:
    """Read the state normally again."""
    bank.before = lambda: None
    bank.version = 3
