"""From outside: a rule is about what the tool runs with, in every spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads name generics without parameters
from langchain_core.tools import tool

from keyturn.agent import ApprovalMiddleware
from keyturn.agent.scripted_model import calling, scripted
from keyturn.gateway.embed import Keyturn
from keyturn.gateway.setting_forms import AUDIT_KEPT
from keyturn.gateway.store.store import Store
from tests.agent.agent_runner import results

POLICY = """
version: 1
defaults: {tier: approve, needs: U0ANA, channel: "#x"}
windows:
  paid: {tools: [pay], by: args.customer, sum: args.amount, within: 24h}
tools:
  deploy:
    tier: auto
    raise:
      - {to: escalate, when: args.force == true, because: forced}
      - {to: deny, when: args.level == 3, because: level 3 is forbidden}
  pay:
    tier: auto
    raise:
      - {to: deny, when: windows.paid > 100, because: over 100 in 24 h}
"""
RAN: list[tuple[object, ...]] = []


@tool
def deploy(env: str, force: bool, level: int = 0) -> str:  # noqa: FBT001 - a tool's argument, passed by name
    """Deploy."""
    RAN.append((env, force, level))
    return "deployed"


@tool
def pay(customer: int, amount: float) -> str:
    """Pay a customer."""
    RAN.append((customer, amount))
    return "paid"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    RAN.clear()
    path = tmp_path / "policy.yml"
    path.write_text(POLICY)
    return path


def graph_of(name: str, args: dict[str, Any]) -> Any:
    """Return an agent that makes one call; none of its tools is guarded."""
    return create_agent(
        scripted([calling((name, args, "c1"))]),
        [deploy, pay],
        middleware=[ApprovalMiddleware("ops")],
    )


async def test_a_program_names_the_folder_of_its_audit_log(
    store: Store, policy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "audit"

    async with Keyturn(
        policy=policy, url=store.conn.url, data_dir=tmp_path, audit_folder=folder
    ) as tk:
        assert (tk.store.audit_folder, tk.store.audit_kept) == (folder, AUDIT_KEPT)
    async with Keyturn(policy=policy, url=store.conn.url, data_dir=tmp_path) as tk:
        assert tk.store.audit_folder is None


async def said(tk: Keyturn, thread: str, name: str, args: dict[str, Any]) -> str:
    """Return what the model reads about one call."""
    given = {"messages": [("user", thread)]}
    final = await tk.run(
        graph_of(name, args), given, thread_id=thread, agent="ops", timeout_s=60
    )
    return results(final)[-1].text


@pytest.mark.slow
@pytest.mark.parametrize("level", [3, "3", 3.0, "03", " 3 ", "3.0"])
async def test_a_deny_on_a_number_stops_its_every_spelling(
    store: Store, policy: Path, tmp_path: Path, level: object
) -> None:
    async with Keyturn(policy=policy, url=store.conn.url, data_dir=tmp_path) as tk:
        told = await said(
            tk, "t1", "deploy", {"env": "prod", "force": False, "level": level}
        )

    assert "level 3 is forbidden" in told
    assert RAN == []
