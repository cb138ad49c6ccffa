"""The doctor reports tools and agents that are in the policy, but in no graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from keyturn.cli.main import USAGE, run

NOWHERE = {"KEYTURN_REDIS_URL": "redis://127.0.0.1:1/0"}
GRAPH = """\
from langchain.agents import create_agent
from langchain_core.tools import tool
from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import scripted

@guarded
@tool
def wire_money(to: str) -> str:
    "Send money."
    return to

graph = create_agent(
    scripted([]), [wire_money], middleware=[ApprovalMiddleware("billing")]
)
"""
SETTINGS = """\
agents: {{billing: {{graph: "billing.py:graph"}}}}
policy:
  version: 1
  defaults: {{needs: U0ANA}}
  tools: {{{tools}}}
  agents: {{{agents}}}
"""


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    (tmp_path / "billing.py").write_text(GRAPH)

    def told(tools: str, agents: str = "", graph: str = "billing.py:graph") -> str:
        text = SETTINGS.format(tools=tools, agents=agents)
        text = text.replace("billing.py:graph", graph)
        (tmp_path / "keyturn.yml").write_text(text)
        capsys.readouterr()
        run(["--config", str(tmp_path / "keyturn.yml"), "doctor"], NOWHERE)
        lines = capsys.readouterr().out.splitlines()
        return "\n".join(line for line in lines if "· policy: " in line)

    return told


def test_a_misspelt_tool_is_told_with_the_one_that_may_be_meant(
    told: Callable[..., str],
) -> None:
    text = told("wire_mony: {tier: deny}, look_up: {tier: auto}")

    assert "'look_up', 'wire_mony' (did you mean 'wire_money'?)" in text


@pytest.mark.parametrize("command", ["doctor", "gateway"])
def test_a_graph_that_calls_itself_otherwise_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "billing.py").write_text(GRAPH.replace('("billing")', '("bills")'))
    settings = tmp_path / "keyturn.yml"
    settings.write_text(SETTINGS.format(tools="", agents=""))

    code = run(["--config", str(settings), command], {})

    told = "".join(capsys.readouterr())
    assert code == (1 if command == "doctor" else USAGE)
    assert "'billing' calls itself 'bills'; write ApprovalMiddleware('billing')" in told


def test_a_misspelt_agent_is_told(told: Callable[..., str]) -> None:
    assert "'biling' (did you mean 'billing'?)" in told("", "biling: {}")


def test_what_a_policy_says_of_one_agent_is_looked_at_as_well(
    told: Callable[..., str],
) -> None:
    assert "'wires'" in told("", "billing: {tools: {wires: {tier: deny}}}")


def test_nothing_is_told_of_a_policy_whose_names_are_all_there(
    told: Callable[..., str],
) -> None:
    known = "wire_money: {tier: deny}"

    assert told(known, f"billing: {{tools: {{{known}}}}}") == ""


def test_nothing_is_told_where_a_graph_cannot_be_loaded(
    told: Callable[..., str],
) -> None:
    assert told("wire_mony: {tier: deny}", graph="biling.py:graph") == ""
