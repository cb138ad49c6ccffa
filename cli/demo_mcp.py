"""A demo script: an MCP client calls a tool whose server verifies receipts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from keyturn.bot.ids import Action, Input
from keyturn.cli.demo_context import DemoContext, expect
from keyturn.cli.demo_hook import demo_key
from keyturn.cli.demo_stack import REQUESTER
from keyturn.cli.samples import sample_settings
from keyturn.connect.gate import HttpGate
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.records import ItemState, Person
from keyturn.gateway.trust.key_folder import Role

AGENT = "mcp"
ASKED, EDITED = "899", "449.50"
REASON = "Only half of it was damaged."


async def mcp(context: DemoContext) -> None:
    """Reviewers approve a server's tools, then edit a call, which runs once."""
    try:
        from mcp import Client  # noqa: PLC0415 - the packages of an extra

        from keyturn.connect.mcp.server import GateOptions  # noqa: PLC0415
        from keyturn.connect.mcp.serving import running  # noqa: PLC0415
        from keyturn.connect.mcp.upstreams import UpstreamSpec  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingsError(
            "The script 'mcp' needs the extra 'mcp': pip install 'keyturn[mcp]'"
        ) from error
    key = await demo_key(context, AGENT)
    server = sample_settings().parent / "examples" / "mcp_tool_server.py"
    options = GateOptions(
        upstreams=[UpstreamSpec("billing", command=(sys.executable, str(server)))],
        agent=AGENT,
        api_key=key,
        requester=Person(team="", user=REQUESTER),
        env={**os.environ, **_payments(context)},
    )
    gate = HttpGate(context.demo.stack.api_url, key)
    async with running(options, gate) as served, Client(served.server) as client:
        # The tools of the server are new, so people read their definitions first.
        await client.list_tools()
        ts, approval = await context.card_after("0")
        await context.click(ts, Action.APPROVE, approval, 0)
        await context.reached(approval, {0: ItemState.EXECUTED})
        context.say("mcp.listed", client="demo", tools=["process_refund"])

        args = {"order_id": "78291", "amount": ASKED}
        calling = asyncio.create_task(client.call_tool("process_refund", args))
        ts, approval = await context.card_after(ts)
        await context.click(ts, Action.EDIT, approval, 0)
        await context.fill({"amount": EDITED, Input.REASON: REASON}, approval, 0)
        await context.reached(approval, {0: ItemState.EXECUTED})
        result = await calling
        text = " ".join(getattr(one, "text", "") for one in result.content)
        context.say("mcp.answered", client="demo", is_error=result.is_error)
    await gate.aclose()
    expect(not result.is_error, f"The server refused the call: {text}")
    expect(REASON in text, "The client did not get the reviewer's reason.")
    refunds = _refunds(context.ledger.parent)
    expect(refunds == [EDITED], f"{EDITED} was expected; {refunds} ran.")


def _payments(context: DemoContext) -> dict[str, str]:
    """Return the settings of the payment server: public keys, folder and tool."""
    keyring = context.demo.stack.keyturn.store.keyring
    keys = keyring.verifying(Role.GATEWAY) if keyring else ()
    return {
        "PAYMENTS_KEYS": " ".join(one.text for one in keys),
        "PAYMENTS_FOLDER": str(context.ledger.parent),
        "PAYMENTS_TOOL": "billing__process_refund",
    }


def _refunds(folder: Path) -> list[str]:
    lines = (folder / "refunds.jsonl").read_text("utf-8").splitlines()
    return [str(json.loads(line)["amount"]) for line in lines]
