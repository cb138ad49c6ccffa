"""The sample agent reports the real result, and its ledger has each effect once."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import connected
from keyturn.gateway.approvals.lifecycle import Transition
from keyturn.gateway.protocol.records import Tier
from tests.agent.agent_runner import Runner
from tests.agent.fake_gateway import FakeGateway

EXAMPLE = Path(__file__).parents[2] / "examples" / "support_agent.py"
Act = Callable[[FakeGateway, str], None]


@pytest.fixture(scope="module")
def sample() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample_support_agent", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger.jsonl"
    monkeypatch.setenv("KEYTURN_DEMO_LEDGER", str(path))
    return path


def _rows(ledger: Path) -> list[dict[str, Any]]:
    if not ledger.exists():
        return []
    return [json.loads(line) for line in ledger.read_text("utf-8").splitlines()]


async def _story(
    sample: ModuleType, runner: Runner, request: str, **acts: Act
) -> tuple[str, FakeGateway]:
    """Run the agent, decide for a reviewer by tool name, return the last message."""
    gateway = FakeGateway({"look_up_order": Tier.AUTO})
    graph = sample.graph.copy({"checkpointer": InMemorySaver()})
    with connected(gateway):
        end = await runner.say(graph, request)
        for item in gateway.pending():
            acts[item.tool](gateway, item.id)
        if acts:
            end = await runner.resume(graph, gateway)
    return str(end["messages"][-1].text), gateway


def _approve(gateway: FakeGateway, item_id: str) -> None:
    gateway.approve(item_id)


def _halve(gateway: FakeGateway, item_id: str) -> None:
    args = {**gateway.items[item_id].args, "amount": 449.5}
    gateway.edit(item_id, args, "half is fair")


async def test_an_edited_refund_is_told_with_both_amounts_and_the_reason(
    sample: ModuleType, runner: Runner, ledger: Path
) -> None:
    words, gateway = await _story(
        sample, runner, "Please refund order 78291", process_refund=_halve
    )

    (row,) = _rows(ledger)
    assert gateway.only().requested_args["amount"] == 899
    assert row["tool"] == "process_refund"
    assert row["args"]["amount"] == 449.5
    assert row["idempotency_key"].startswith("sha256:")
    assert "449.50 instead of 899.00" in words
    assert "half is fair" in words
    assert "Anna" in words


async def test_an_approved_refund_is_told_plainly(
    sample: ModuleType, runner: Runner, ledger: Path
) -> None:
    words, _ = await _story(
        sample, runner, "refund order 78291", process_refund=_approve
    )

    assert len(_rows(ledger)) == 1
    assert "Refunded 899.00 for order 78291." in words
    assert "reviewer" not in words


def _reject(gateway: FakeGateway, item_id: str) -> None:
    gateway.reject(item_id, "not damaged")


def _respond(gateway: FakeGateway, item_id: str) -> None:
    gateway.respond(item_id, "ask for a photo")


def _expire(gateway: FakeGateway, item_id: str) -> None:
    gateway.end(item_id, Transition.EXPIRE)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_reject, "rejected the refund"),
        (_respond, "ask for a photo"),
        (_expire, "no decision in time"),
    ],
)
async def test_a_refund_that_did_not_happen_is_told_as_such(
    sample: ModuleType, runner: Runner, ledger: Path, act: Act, said: str
) -> None:
    words, _ = await _story(sample, runner, "refund order 78291", process_refund=act)

    assert _rows(ledger) == []
    assert said in words
    assert "Refunded" not in words


async def test_several_calls_of_one_turn_end_each_in_its_own_way(
    sample: ModuleType, runner: Runner, ledger: Path
) -> None:
    words, gateway = await _story(
        sample,
        runner,
        "refund order 78291, change the address and send an email",
        process_refund=_halve,
        change_address=_reject,
        send_email=_approve,
    )

    messages = {item.ctx.message_id for item in gateway.items.values()}
    assert len(messages) == 1
    assert [row["tool"] for row in _rows(ledger)].count("process_refund") == 1
    assert {row["tool"] for row in _rows(ledger)} == {"process_refund", "send_email"}
    assert "rejected the change of address" in words
    assert "449.50 instead of 899.00" in words


async def test_looking_up_needs_nobody(
    sample: ModuleType, runner: Runner, ledger: Path
) -> None:
    words, gateway = await _story(sample, runner, "look up order 78304")
    lost, _ = await _story(sample, runner, "refund order 11111")
    lonely, _ = await _story(sample, runner, "how are you?")

    assert gateway.items == {}
    assert _rows(ledger) == []
    assert "desk lamp for 49.90" in words
    assert "no order 11111" in lost
    assert "refund order 78291" in lonely


def test_the_scripted_model_believes_only_what_it_reads(sample: ModuleType) -> None:
    request = HumanMessage("refund order 78291")
    found = ToolMessage("There is no order.", tool_call_id="1", name="look_up_order")

    reply = sample.next_message([request, found])

    assert reply.tool_calls == []
    assert "nothing to refund" in reply.text
