"""Unchanged agents of an Agent Server wait for the clicks of people.

The settings are all that their owner writes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from keyturn.bot.ids import Action
from keyturn.cli.demo_stack import open_demo_stack, seed
from keyturn.gateway.policy.load import load_policy
from keyturn.sandbox.client import People
from tests.agent_server.dev_server import DevServer, Process, connected, dev_server
from tests.agent_server.test_decisions import REFUND, paid, subagent

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("agent_server")]

SETTINGS = """
policy: policy.yml
servers:
  crm:
    url: {url}
    graphs:
      stock: {{agent: billing}}
      deep: {{agent: assistant}}
"""
POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}
roles: {support: {users: [U0ANA]}}
"""
CHANNEL, WITHIN_S = "C0APPROVALS", 60
HANDED = ("Handed ", "Agent Server crm", "which runs it by itself")


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    """Start the server of their owner."""
    graphs = {one: f"graphs.py:{one}" for one in ("stock", "deep")}
    with dev_server(tmp_path_factory.mktemp("their-server"), graphs) as started:
        yield started


@pytest.fixture
async def server(process: Process) -> AsyncGenerator[DevServer]:
    """Connect their application."""
    async with connected(process) as found:
        yield found


@pytest.fixture
async def people(server: DevServer, tmp_path: Path) -> AsyncGenerator[People]:
    """Run Keyturn with a local Slack."""
    settings = SETTINGS.format(url=server.url)
    (tmp_path / "keyturn.yml").write_text(settings, encoding="utf-8")
    (tmp_path / "policy.yml").write_text(POLICY, encoding="utf-8")
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


def has(*words: str) -> Callable[[Any], bool]:
    return lambda message: all(one in str(message["blocks"]) for one in words)


@pytest.mark.parametrize(
    ("graph", "given"),
    [("stock", [[REFUND]]), ("deep", [[subagent("A1")]])],
)
async def test_a_click_lets_an_agent_go_on(
    server: DevServer, people: People, graph: str, given: Any
) -> None:
    ana = people.person("U0ANA")
    thread = await server.thread(graph, given)
    card = await ana.message_with(CHANNEL, has(Action.APPROVE, "refund"), WITHIN_S)

    await ana.click(CHANNEL, str(card["ts"]), Action.APPROVE)

    await ana.message_with(CHANNEL, has(*HANDED), WITHIN_S)
    assert server.done(thread) == [paid(7.0)]
