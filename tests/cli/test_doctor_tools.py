"""The doctor reports tools and agents that are in the policy, but in no graph."""

from __future__ import annotations

import pytest

from keyturn.cli.main import USAGE
from tests.cli.conftest import Shell

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


def told(
    shell: Shell, tools: str = "", agents: str = "", graph: str = "billing"
) -> str:
    """Return the doctor's notes about the policy."""
    shell.write(GRAPH, "billing.py")
    text = SETTINGS.format(tools=tools, agents=agents)
    shell.write(text.replace("billing.py", f"{graph}.py"))
    lines = shell("doctor", KEYTURN_REDIS_URL="redis://127.0.0.1:1/0").out.splitlines()
    return "\n".join(line for line in lines if "· policy: " in line)


KNOWN = "wire_money: {tier: deny}"


def test_names_that_no_graph_has_are_told_with_those_that_may_be_meant(
    shell: Shell,
) -> None:
    tools = told(shell, "wire_mony: {tier: deny}, look_up: {tier: auto}")
    of_agent = told(shell, agents="billing: {tools: {wires: {tier: deny}}}")

    assert "'look_up', 'wire_mony' (did you mean 'wire_money'?)" in tools
    assert "'wires'" in of_agent
    assert "'biling' (did you mean 'billing'?)" in told(shell, agents="biling: {}")
    assert told(shell, KNOWN, f"billing: {{tools: {{{KNOWN}}}}}") == ""
    # No graph can be loaded.
    assert told(shell, "wire_mony: {tier: deny}", graph="biling") == ""


@pytest.mark.parametrize(("command", "code"), [("doctor", 1), ("gateway", USAGE)])
def test_a_graph_that_calls_itself_otherwise_is_refused_at_the_start(
    shell: Shell, command: str, code: int
) -> None:
    shell.write(GRAPH.replace('("billing")', '("bills")'), "billing.py")
    shell.write(SETTINGS.format(tools="", agents=""))

    shown = shell(command)

    assert shown.code == code
    told = "'billing' calls itself 'bills'; write ApprovalMiddleware('billing')"
    assert told in shown.out + shown.err
