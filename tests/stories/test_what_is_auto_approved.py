"""An agent runs what the policy only notes; people see it, and stop it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType] - its overloads name generics without parameters
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.agent import ApprovalMiddleware, guarded
from keyturn.agent.scripted_model import calling, scripted
from keyturn.bot.ids import Action
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.agent.agent_runner import by_call
from tests.bot.bot_stack import CHANNEL, Stack, says


@pytest.fixture
async def stack(store: Store) -> AsyncIterator[Stack]:
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store)


async def test_an_auto_call_is_shown_and_its_tool_frozen(stack: Stack) -> None:
    posted: list[str] = []

    @tool
    def post_notice(text: str) -> str:
        """Post a notice."""
        posted.append(text)
        return f"posted {text!r}"

    turns = [
        calling(("post_notice", {"text": text}, f"c{number}"))
        for number, text in enumerate(["we are open", "we are closed"])
    ]
    replies = [turns[0], calling(), turns[1]]
    graph: Any = create_agent(
        scripted(replies),
        [guarded(post_notice)],
        middleware=[ApprovalMiddleware("support", gateway=stack.agents)],
        checkpointer=InMemorySaver(),
    )

    async def say(text: str) -> dict[str, Any]:
        config = {"configurable": {"thread_id": "t1"}}
        result: dict[str, Any] = await graph.ainvoke(
            {"messages": [("user", text)]}, config, durability="sync"
        )
        return result

    async with stack.running():
        await say("open the shop")
        ana = stack.actor("U0ANA")
        notice = await ana.message_with(CHANNEL, says("Without review*, done"))
        assert "posted 'we are open'" in json.dumps(notice["blocks"])
        await ana.click(CHANNEL, str(notice["ts"]), Action.FREEZE_TOOL)
        await stack.told("U0ANA", "The tool is frozen")

        state = await say("close the shop")

        assert posted == ["we are open"]
        assert "The tool post_notice is frozen by" in by_call(state)["c1"].text
