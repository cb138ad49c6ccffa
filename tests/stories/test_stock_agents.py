"""Agents that nobody edited wait for the clicks of people, and do what they decided.

The settings are all that their owner writes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keyturn.bot.ids import Action, Input
from keyturn.cli.demo_stack import open_demo_stack, seed
from keyturn.gateway.policy.load import load_policy
from keyturn.sandbox.client import People, Person
from keyturn.sandbox.json_types import JsonObject, as_objects
from tests.conftest import eventually
from tests.dialects.sample_agents import SUBAGENTS
from tests.resume import sample_tools

pytestmark = pytest.mark.slow

GRAPHS = """
from tests.dialects import sample_agents
from tests.dialects.sample_agents import KINDS

ALL = {"pay": KINDS, "mail": KINDS}
batched = sample_agents.langchain(ALL).graph
per_call = sample_agents.langchain(ALL, mode="per_call").graph
deep = sample_agents.deep_agent(ALL).graph
inbox = sample_agents.inbox(ALL, as_list=False).graph
"""
SETTINGS = """
policy: policy.yml
agents:
  batched: {graph: "graphs.py:batched", own_gate: true}
  per_call: {graph: "graphs.py:per_call", own_gate: true}
  deep: {graph: "graphs.py:deep", own_gate: true, ungated: [builtin]}
  inbox: {graph: "graphs.py:inbox", own_gate: true}
"""
POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}
roles: {support: {users: [U0ANA]}}
tools:
  look: {tier: auto}
  mail: {tier: approve, expires_in: 2s}
"""
CHANNEL, WITHIN_S = "C0APPROVALS", 60
AGENTS = ("batched", "per_call", "deep", "inbox")


@pytest.fixture
async def people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[People]:
    """Run Keyturn with the agents and a local Slack."""
    monkeypatch.setenv(sample_tools.LEDGER, str(tmp_path / "ledger"))
    files = {"graphs.py": GRAPHS, "keyturn.yml": SETTINGS, "policy.yml": POLICY}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    policy = load_policy(POLICY, "policy.yml")
    async with (
        open_demo_stack(
            tmp_path / "keyturn.yml",
            tmp_path / "data",
            seed=partial(seed, policy=policy),
        ) as demo,
        People(demo.sandbox.url) as found,
    ):
        yield found


def request(agent: str, order: str, tool: str = "pay") -> str:
    """Return a message that makes an agent propose a call; a subagent may do it."""
    calls = [{"name": tool, "args": {"order": order, "amount": 7.0}}]
    if agent == "deep":
        args = {"description": json.dumps(calls), "subagent_type": SUBAGENTS[0]}
        calls = [{"name": "task", "args": args}]
    return f"@keyturn {agent} {json.dumps(calls)}"


async def asked(people: People, agent: str, order: str, tool: str = "pay") -> str:
    """Have an agent ask; return the card's ts."""
    await people.person("U0DAN").say(CHANNEL, request(agent, order, tool))
    ana = people.person("U0ANA")
    card = await ana.message_with(CHANNEL, has(Action.APPROVE, order), WITHIN_S)
    return str(card["ts"])


def has(*words: str) -> Callable[[JsonObject], bool]:
    return lambda message: all(one in str(message["blocks"]) for one in words)


async def shows(ana: Person, ts: str, *words: str) -> None:
    """Wait until a card has these words."""
    await ana.message_with(
        CHANNEL, lambda one: one["ts"] == ts and has(*words)(one), WITHIN_S
    )


async def ran(*effects: list[Any]) -> None:
    """Wait until exactly these effects are in the ledger."""
    await eventually(lambda: len(sample_tools.ledger()) >= len(effects))
    assert [json.loads(line) for line in sample_tools.ledger()] == [*effects]


@pytest.mark.parametrize("agent", AGENTS)
async def test_a_stock_agent_does_as_decided(people: People, agent: str) -> None:
    ana = people.person("U0ANA")
    handed = f"agent {agent}"

    ts = await asked(people, agent, "order-1")
    await ana.click(CHANNEL, ts, Action.APPROVE)
    await shows(ana, ts, "Approved", handed, "which runs it by itself")
    first = ["pay", {"order": "order-1", "amount": 7.0}]
    await ran(first)

    ts = await asked(people, agent, "order-2")
    await ana.click(CHANNEL, ts, Action.EDIT)
    view = await ana.wait_for_view(timeout_s=WITHIN_S)
    knows = (
        "does not learn of your change" if agent == "inbox" else "does not read this"
    )
    assert knows in str(view["blocks"])
    [amount] = [one for one in as_objects(view["blocks"]) if "'amount'" in str(one)]
    changed = {str(amount["block_id"]): "5", Input.REASON: "the agreed part"}
    assert await ana.submit(changed) == {}
    await shows(ana, ts, handed, "which runs it by itself")
    second = ["pay", {"order": "order-2", "amount": 5}]
    await ran(first, second)

    ts = await asked(people, agent, "order-3")
    await ana.click(CHANNEL, ts, Action.REJECT)
    view = await ana.wait_for_view(timeout_s=WITHIN_S)
    reads = (
        "The agent does not read this" if agent == "inbox" else "The agent reads this"
    )
    assert reads in str(view["blocks"])
    assert await ana.submit({Input.REASON: "paid before"}) == {}
    await shows(ana, ts, "Rejected")

    ts = await asked(people, agent, "order-4")
    await ana.click(CHANNEL, ts, Action.MORE, chosen="Respond")
    await ana.wait_for_view(timeout_s=WITHIN_S)
    assert await ana.submit({Input.MESSAGE: "Ask Ben first."}) == {}
    await shows(ana, ts, "Answered")

    ts = await asked(people, agent, "order-5", tool="mail")
    await shows(ana, ts, "Expired")
    await ran(first, second)
