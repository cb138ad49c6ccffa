"""The demo's page lets an MCP client ask, and its call survives a restart."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from keyturn.bot.ids import Action
from keyturn.cli.demo_mcp import ANSWER, ASKED, mcp_on_page
from keyturn.cli.demo_stack import (
    CHANNEL,
    MCP_REQUEST,
    REVIEWER,
    SUGGESTIONS,
    DemoStack,
    open_demo_stack,
)

CONFIG = Path(__file__).parents[2] / "keyturn.yml"
WITHIN_S = 60.0

pytestmark = pytest.mark.slow


@asynccontextmanager
async def demo_in(folder: Path) -> AsyncGenerator[DemoStack]:
    async with open_demo_stack(CONFIG, folder) as demo, mcp_on_page(demo, folder):
        yield demo


async def card_with(demo: DemoStack, *words: str) -> str:
    """Wait for a card that has a button and these words; return its ts."""
    found = await demo.sandbox.person(REVIEWER).message_with(
        CHANNEL,
        lambda one: all(
            word in str(one["blocks"]) for word in (f"'{Action.APPROVE}'", *words)
        ),
        WITHIN_S,
    )
    return str(found["ts"])


async def test_the_page_shows_a_result_of_an_mcp_client(tmp_path: Path) -> None:
    [suggestion] = [one for one in SUGGESTIONS if one.text == MCP_REQUEST]
    async with demo_in(tmp_path) as demo:
        dan = demo.sandbox.person(suggestion.user)
        asked = await dan.say(suggestion.channel, suggestion.text)
        # People read the server's tools before the first call is asked.
        ts = await card_with(demo, "billing")
        ana = demo.sandbox.person(REVIEWER)
        await ana.click(CHANNEL, ts, Action.APPROVE)
        ts = await card_with(demo, "process_refund", ASKED)

    async with demo_in(tmp_path) as demo:
        ana = demo.sandbox.person(REVIEWER)
        await ana.click(CHANNEL, ts, Action.APPROVE)
        answer = await ana.message_with(
            CHANNEL, lambda one: ANSWER in str(one["text"]), WITHIN_S
        )

    assert answer["thread_ts"] == asked
    name = demo.sandbox.workspace.users[REVIEWER].real_name
    assert f"Refunded {ASKED}, approved by {name}" in str(answer["text"])
    lines = (tmp_path / "refunds.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["amount"] for line in lines] == [ASKED]
