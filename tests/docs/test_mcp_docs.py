"""The settings and commands of docs/mcp.md work unchanged."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from typing import Any

import pytest
import typer
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from keyturn.cli import mcp
from keyturn.connect.mcp.results import DECISION, NOTICE
from keyturn.connect.mcp.server import CALL_ID, HOLD_S, WAIT
from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.http_api import DEFINITIONS_TOOL
from keyturn.gateway.protocol.receipts import META_KEY
from keyturn.gateway.protocol.records import Tier
from tests.connect.mcp.conftest import World, world
from tests.connect.mcp.test_stdio import environment
from tests.docs.test_readme import ROOT, blocks

__all__ = ["world"]  # a fixture

PAGE = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
ONE_LINE = PAGE.replace("\\\n", " ")
COMMANDS = re.findall(r"keyturn mcp ([^`\n]*--upstream[^`\n]*)", ONE_LINE)


def test_the_policy_is_good() -> None:
    [text] = blocks("yaml policy.yml", PAGE)
    policy = load_policy(text, "policy.yml")

    assert policy.tools["billing__look_up"].tier is Tier.AUTO
    assert DEFINITIONS_TOOL in policy.tools


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_line_is_one(line: str) -> None:
    words = shlex.split(line)
    command: Any = typer.main.get_command(mcp.group)
    if words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    with command.make_context("mcp", words) as found:
        specs = [mcp.parse_upstream(one) for one in found.params["upstream"]]

    assert specs[0].command == ("npx", "-y", "@acme/billing-mcp") or specs[0].url
    headers: list[str] = found.params["header"] or []
    for one in headers:
        assert mcp.parse_header(one, {"CRM_TOKEN": "t"})[2] == "Bearer t"


@pytest.mark.slow
async def test_a_client_with_these_settings_is_told_of_an_edit(world: World) -> None:
    local, over_http = (json.loads(one)["mcpServers"] for one in blocks("json", PAGE))
    assert over_http["crm"]["url"].endswith("/mcp")
    entry = local["billing"]
    upstream = f"billing={shlex.join(world.script.command)}"
    args = [upstream if "billing=" in one else one for one in entry["args"]]
    assert {*entry["env"]} == {"KEYTURN_GATEWAY", "KEYTURN_API_KEY"}
    world.key = world.stack.key(agents=["mcp"])
    await world.trust(agent="mcp")
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "keyturn", *args], env=environment(world)
    )

    async with Client(server, cache=None) as client:
        await client.list_tools()
        calling = asyncio.create_task(client.call_tool("pay", {"to": "a", "amount": 9}))
        item_id = await world.decide(Edit(args={"to": "a", "amount": 3}))
        result = await calling

    assert next(iter(result.structured_content or {})) == NOTICE
    requester = (await world.people.approval(item_id)).requester
    assert requester is not None
    assert requester.user == "U0DAN"


def test_the_names_on_the_page_are_those_of_the_gate() -> None:
    for name in (NOTICE, DECISION, CALL_ID, WAIT, META_KEY):
        assert f"`{name}`" in PAGE or f'["{name}"]' in PAGE
    assert f"after {HOLD_S:.0f} seconds" in PAGE
    assert len(PAGE.split()) <= 600
