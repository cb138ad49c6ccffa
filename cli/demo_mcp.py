"""An MCP client calls a tool whose server verifies receipts: a script, and the page."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from keyturn.bot.ids import Action, Input
from keyturn.cli.demo_context import DemoContext, expect
from keyturn.cli.demo_stack import CHANNEL, HAS_MCP, MCP_REQUEST, REQUESTER, DemoStack
from keyturn.cli.samples import sample_settings
from keyturn.connect.gate import Gate, HttpGate
from keyturn.connect.local_gate import LocalGate
from keyturn.gateway.background import begun
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.failures import any_failure, log_failure
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.gateway.secret_file import load_or_create_secret
from keyturn.gateway.trust.key_folder import Role

if HAS_MCP or TYPE_CHECKING:  # the packages of an extra
    from mcp import Client
    from mcp_types import CallToolResult

    from keyturn.connect.mcp.server import CALL_ID, GateOptions
    from keyturn.connect.mcp.serving import running
    from keyturn.connect.mcp.upstreams import UpstreamSpec

logger = logging.getLogger(__name__)

AGENT = "mcp"
ASKED, EDITED = "899", "449.50"
REASON = "Only half of it was damaged."
TOOL = "process_refund"
ANSWER = "The MCP client got: "
HOLD_S = 3600.0
"""How long a request waits for people; a call expires after an hour in the demo."""


async def mcp(context: DemoContext) -> None:
    """Reviewers approve a server's tools, then edit a call, which runs once."""
    if not HAS_MCP:
        raise SettingsError(
            "The script 'mcp' needs the extra 'mcp': pip install 'keyturn[mcp]'"
        )
    key = await context.api_key(AGENT)
    gate = HttpGate(context.demo.stack.api_url, key)
    folder = context.ledger.parent
    async with aclosing(gate), _client(context.demo, folder, gate, key) as client:
        # The tools of the server are new, so people read their definitions first.
        await client.list_tools()
        ts, approval = await context.card_after("0")
        await context.click(ts, Action.APPROVE, approval, 0)
        await context.reached(approval, {0: ItemState.EXECUTED})
        context.say("mcp.listed", client="demo", tools=[TOOL])

        args = {"order_id": "78291", "amount": ASKED}
        calling = asyncio.create_task(client.call_tool(TOOL, args))
        ts, approval = await context.card_after(ts)
        await context.click(ts, Action.EDIT, approval, 0)
        await context.fill({"amount": EDITED, Input.REASON: REASON}, approval, 0)
        await context.reached(approval, {0: ItemState.EXECUTED})
        result = await calling
        context.say("mcp.answered", client="demo", is_error=result.is_error)
    text = _text(result)
    expect(not result.is_error, f"The server refused the call: {text}")
    expect(REASON in text, "The client did not get the reviewer's reason.")
    refunds = _refunds(folder)
    expect(refunds == [EDITED], f"{EDITED} was expected; {refunds} ran.")


@asynccontextmanager
async def mcp_on_page(demo: DemoStack, folder: Path) -> AsyncGenerator[None]:
    """Let an MCP client ask whenever the page's suggestion for it is used.

    Args:
        demo: the demo with the page.
        folder: its data folder, also for the effects of the server behind the gate.
    """
    if not HAS_MCP:
        yield
        return
    # Kept, so that a call that waits continues after a restart.
    secret = load_or_create_secret(folder / "mcp-gate.key").hex()
    gate = LocalGate.of(demo.stack.keyturn.service)
    async with aclosing(gate), _client(demo, folder, gate, secret) as client:
        following = begun(_follow(demo, client))
        try:
            yield
        finally:
            following.cancel()
            await asyncio.wait([following])


async def _follow(demo: DemoStack, client: Client) -> None:
    """Make a call for each request on the page that has no answer yet."""
    dan = demo.sandbox.person(REQUESTER)
    shown = await dan.messages(CHANNEL)
    seen = {one.get("thread_ts") for one in shown if ANSWER in str(one["text"])}
    async with asyncio.TaskGroup() as calls:
        while True:
            asked = await dan.message_with(
                CHANNEL,
                lambda one: one["text"] == MCP_REQUEST and one["ts"] not in seen,
                math.inf,
            )
            seen.add(asked["ts"])
            calls.create_task(_ask(demo, client, str(asked["ts"])))


async def _ask(demo: DemoStack, client: Client, ts: str) -> None:
    """Make one call, and post its result in the thread of its request."""
    args = {"order_id": "78377", "amount": ASKED}
    try:
        # With the client's own id of the call, a restarted client asks nothing twice.
        result = await client.call_tool(TOOL, args, meta=cast("Any", {CALL_ID: ts}))
        text = _text(result)
    except any_failure() as error:
        log_failure(logger, error, "demo.mcp_failed")
        text = "no answer, because the demo's gate failed. Use the suggestion again."
    for user in demo.sandbox.workspace.users.values():
        text = text.replace(user.id, user.real_name)
    await demo.sandbox.person(REQUESTER).say(CHANNEL, f"{ANSWER}{text}", ts)


@asynccontextmanager
async def _client(
    demo: DemoStack, folder: Path, gate: Gate, key: str
) -> AsyncGenerator[Client]:
    """Connect a client to a gate in front of the server that wants receipts."""
    server = sample_settings().parent / "examples" / "mcp_tool_server.py"
    options = GateOptions(
        upstreams=[UpstreamSpec("billing", command=(sys.executable, str(server)))],
        agent=AGENT,
        api_key=key,
        requester=Person(team="", user=REQUESTER),
        holds={"": HOLD_S},
        env={**os.environ, **_payments(demo, folder)},
    )
    async with running(options, gate) as served, Client(served.server) as client:
        yield client


def _payments(demo: DemoStack, folder: Path) -> dict[str, str]:
    """Return the settings of the payment server: public keys, folder and tool."""
    keyring = demo.stack.keyturn.store.keyring
    keys = keyring.verifying(Role.GATEWAY) if keyring else ()
    return {
        "PAYMENTS_KEYS": " ".join(one.text for one in keys),
        "PAYMENTS_FOLDER": str(folder),
        "PAYMENTS_TOOL": f"billing__{TOOL}",
    }


def _text(result: CallToolResult) -> str:
    return " ".join(getattr(one, "text", "") for one in result.content)


def _refunds(folder: Path) -> list[str]:
    lines = (folder / "refunds.jsonl").read_text("utf-8").splitlines()
    return [str(json.loads(line)["amount"]) for line in lines]
