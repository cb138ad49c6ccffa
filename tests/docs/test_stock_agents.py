"""The code of docs/stock-agents.md is a stock agent that a gateway takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from langchain_core.tools import tool

from keyturn.agent.scripted_model import scripted
from keyturn.gateway.config import Settings
from keyturn.gateway.embed import own_gate_of
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.resume.graphs import as_graph, described
from tests.docs.test_readme import ROOT, blocks

PAGE = (ROOT / "docs" / "stock-agents.md").read_text("utf-8")
[POLICY] = blocks("yaml policy.yml", PAGE)


@tool
def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


@tool
def look_up_order(order: str) -> str:
    """Look up an order."""
    return f"order {order}"


async def test_the_agent_of_the_page_is_taken_with_its_own_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [code] = blocks("python", PAGE)
    given = {"model": scripted([]), "refund": refund, "look_up_order": look_up_order}
    exec(code, given)  # noqa: S102 - the page's code
    own_gate = own_gate_of("crm", load_policy(POLICY, "policy.yml"))
    graph = await as_graph(given["graph"], "crm.py:graph", (), own_gate)

    found = described(graph, (), lambda _agent, tool: tool == "look_up_order")
    assert (
        found
        == "asked about by its own middleware: refund; free by policy: look_up_order"
    )

    [settings] = blocks("yaml", PAGE)
    assert yaml.safe_load(settings)["agents"]["crm"]["own_gate"] is True
    (tmp_path / "policy.yml").write_text(POLICY, "utf-8")
    (tmp_path / "keyturn.yml").write_text(settings, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert Settings.load(tmp_path / "keyturn.yml", {}).agents["crm"].own_gate
