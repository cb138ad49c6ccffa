"""Which tools ask is read from a graph; a tool that nobody asks about is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from keyturn.agent import ApprovalMiddleware
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.errors import GraphError, SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.remote.program import RemoteKeyturn
from keyturn.gateway.resume.graphs import as_graph, described
from keyturn.gateway.running import own_gate_of
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.dialects import sample_agents
from tests.dialects.sample_agents import KINDS
from tests.streams import audit_entries

TEXT = """\
version: 1
defaults: {tier: approve, needs: U0ANA, channel: "#x"}
tools:
  look: {tier: auto}
  mail: {tier: auto, raise: [{to: approve, when: "true", because: it may}]}
  task: {tier: auto}
  ban: {tier: deny}
"""
POLICY = load_policy(TEXT, "policy.yml")
PAY = {"pay": KINDS}
BUILTIN = ["builtin"]


async def load(graph: object, ungated: Collection[str] = ()) -> str:
    """Load a graph with its own gate; describe its tools."""
    own_gate = own_gate_of("crm", POLICY)
    compiled = await as_graph(graph, "crm.py:graph", ungated, own_gate)
    return described(compiled, ungated)


@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_a_graph_that_asks_about_its_tools_is_taken(mode: str) -> None:
    found = await load(sample_agents.langchain(PAY, mode=mode).graph)

    assert "asked about by its own middleware: pay" in found


async def test_the_tools_of_subagents_are_read_as_well() -> None:
    found = await load(sample_agents.deep_agent(PAY).graph, BUILTIN)

    for place in ("billing", "mailing"):
        assert f"pay (tools > task > {place} > tools)" in found
    assert "ungated as the settings say: " in found


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: sample_agents.langchain(PAY, free="wipe"), "'wipe' in 'tools'"),
        # The policy may put some of its calls to people.
        (lambda: sample_agents.langchain(PAY, free="mail"), "'mail' in 'tools'"),
        (lambda: sample_agents.langchain(PAY, free="ban"), "'ban' in 'tools'"),
        (
            lambda: sample_agents.langchain(PAY, when=lambda _: False),
            "'pay' in 'tools'",
        ),
        (lambda: sample_agents.deep_agent({}, extra="wipe"), "'wipe' in"),
    ],
)
async def test_an_unasked_tool_is_refused(make: Callable[[], Any], names: str) -> None:
    with pytest.raises(GraphError, match="does not always ask") as told:
        await load(make().graph, BUILTIN)

    assert names in str(told.value)
    assert "interrupt_on" in str(told.value)


async def test_a_named_exception_is_taken() -> None:
    agent = sample_agents.langchain(PAY, free="wipe")
    assert "ungated as the settings say: wipe" in await load(agent.graph, ["wipe"])


async def test_the_tools_of_deepagents_itself_are_named_as_one_or_refused() -> None:
    with pytest.raises(GraphError, match="'write_file'"):
        await load(sample_agents.deep_agent(PAY).graph)


async def test_a_graph_without_the_setting_is_refused_and_told_of_it() -> None:
    with pytest.raises(GraphError, match="set 'own_gate' of this agent"):
        await as_graph(sample_agents.langchain(PAY).graph, "crm.py:graph")


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_two_gates_on_one_tool_are_refused(first: str, mode: str) -> None:
    gate = ApprovalMiddleware("crm")
    graph = sample_agents.langchain(PAY, mode=mode, gate=(first, gate)).graph

    for own_gate in (None, own_gate_of("crm", POLICY)):
        with pytest.raises(GraphError, match="asks people twice about 'pay'"):
            await as_graph(graph, "crm.py:graph", (), own_gate)


async def test_a_newly_unasked_tool_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "crm.py").write_text(
        "from tests.dialects.sample_agents import KINDS, langchain\n"
        "graph = langchain({'pay': KINDS}).graph\n"
    )
    policy, file = tmp_path / "policy.yml", tmp_path / "keyturn.yml"
    policy.write_text(TEXT)
    file.write_text(f"""
agents: {{crm: {{graph: "crm.py:graph", own_gate: true}}}}
redis_url: "{store.conn.url}"
""")
    async with Keyturn(Settings.load(file, {})) as tk:
        before = tk.service.policy_now.digest
        policy.write_text(TEXT.replace("look: {tier: auto}", "look: {tier: approve}"))

        refused: list[str] = []

        async def is_refused() -> bool:
            keys = store.keys_of_tenant("default")
            found = await audit_entries(store.conn, keys)
            name = EventName.POLICY_REFUSED
            refused[:] = [one.reason for one in found if one.name is name]
            return bool(refused)

        await eventually(is_refused)

    assert "'look' in 'tools'. Name them in interrupt_on" in refused[0]
    assert tk.service.policy_now.digest == before


def test_one_name_instead_of_a_list_of_agents_is_refused() -> None:
    with pytest.raises(SettingsError, match="give a list of names of agents"):
        RemoteKeyturn("http://127.0.0.1", own_gate="crm")
