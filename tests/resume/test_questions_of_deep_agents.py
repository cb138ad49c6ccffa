"""A deep agent asks people itself; its subagents' questions are refused."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, cast

import pytest
from deepagents import create_deep_agent  # pyright: ignore[reportUnknownVariableType] - partly typed

from keyturn.agent import ApprovalMiddleware, ask_user, gated_subagents
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.resume.checkpoints import open_checkpoints
from keyturn.gateway.resume.graphs import attached
from keyturn.gateway.resume.langgraph_local import Runner
from keyturn.gateway.store.store import Store
from tests.resume import sample_tools
from tests.resume.resume_stack import Stack
from tests.resume.test_questions import NAME, asking

POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0A, needs: support}
roles: {support: {users: [U0ANA]}}
tools: {task: {tier: auto}}
"""


@pytest.fixture
async def deep(store: Store, tmp_path: Path) -> AsyncGenerator[Stack]:
    """Give a deep agent that asks, with a subagent that has the same tools."""
    graph = cast("Any", create_deep_agent)(
        model=sample_tools.obedient(),
        tools=[ask_user],
        subagents=gated_subagents([], agent="shop"),
        middleware=[ApprovalMiddleware("shop")],
    )
    async with open_checkpoints(str(tmp_path / "checkpoints.db")) as saver:
        runner = Runner(attached(graph, saver), agent="shop")
        stack = Stack(store, runner, saver)
        stack.policy = load_policy(POLICY, "policy.yml")
        yield stack


def delegating(*calls: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Return a call with which a subagent makes these calls."""
    told = {"description": json.dumps(calls), "subagent_type": "general-purpose"}
    return "task", told


async def test_a_subagent_is_told_that_it_cannot_ask(deep: Stack) -> None:
    async with deep.working():
        await deep.ask(delegating(asking(NAME)))

        words = await deep.words()

    assert "Only the agent that people speak to" in words, words
    assert await deep.items() == []
