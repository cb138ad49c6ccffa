"""A demo script: a coding agent sends its calls through hooks."""

from __future__ import annotations

from datetime import timedelta

import aiohttp
from pydantic import JsonValue

from keyturn.bot.ids import Action, Input
from keyturn.cli.demo_context import DemoContext, expect
from keyturn.cli.demo_stack import REQUESTER
from keyturn.connect.coding_agents import CLAUDE_CODE, REQUESTER_HEADER, WAIT_HEADER
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.http.api_keys import ApiKeyStore

AGENT = "coder"
QUIET = "git log --oneline | head -20"
COMMAND, EDITED = "make deploy", "make deploy ENV=staging"
REASON = "Try it on staging first."


async def hook(context: DemoContext) -> None:
    """A coding agent reads freely, and its edited deployment is handed over once."""
    headers = await _headers(context)
    async with aiohttp.ClientSession(headers=headers) as session:
        answer = await _asked(context, session, "toolu_1", QUIET)
        expect(not answer, "The gateway decided on a call that only reads.")

        answer = await _asked(context, session, "toolu_2", COMMAND)
        expect(answer.get("permissionDecision") == "deny", "A pending call may run.")
        ts, approval = await context.card_after("0")
        await context.click(ts, Action.EDIT, approval, 0)
        await context.fill({"command": EDITED, Input.REASON: REASON}, approval, 0)
        await context.reached(approval, {0: ItemState.AUTHORIZED})

        # The model makes the same call again, under another id.
        answer = await _asked(context, session, "toolu_3", COMMAND)
        expect(answer.get("permissionDecision") == "allow", "The edit may not run.")
        expect(answer.get("updatedInput") == {"command": EDITED}, "The edit is lost.")
        notice = str(answer.get("additionalContext"))
        expect(REASON in notice, "The agent did not get the reviewer's reason.")
        await context.reached(approval, {0: ItemState.HANDED_OVER})

        await _asked(context, session, "toolu_3", EDITED, event="PostToolUse")
        await context.shows(ts, "reports that it ran")
        context.say("card.reported", approval=approval.id, by=CLAUDE_CODE.name)


async def _headers(context: DemoContext) -> dict[str, str]:
    """Return the headers of a hook, with a new API key."""
    return {
        "Authorization": f"Bearer {await demo_key(context, AGENT)}",
        REQUESTER_HEADER: REQUESTER,
        # Within this margin the gateway answers immediately.
        WAIT_HEADER: "5",
    }


async def demo_key(context: DemoContext, agent: str) -> str:
    """Make an API key for an agent of the demo."""
    tenant, store = context.demo.settings.tenant, context.demo.stack.keyturn.store
    keys, lives = ApiKeyStore(store, tenant=tenant), timedelta(hours=1)
    return (await keys.create("demo", lives, name="demo", agents=[agent])).text


async def _asked(
    context: DemoContext,
    session: aiohttp.ClientSession,
    call: str,
    command: str,
    *,
    event: str = "PreToolUse",
) -> dict[str, JsonValue]:
    """Send the request of a hook; return the decision in the reply."""
    body = {
        "hook_event_name": event,
        "session_id": "demo",
        "tool_use_id": call,
        "tool_name": "Bash",
        "tool_input": {"command": command},
        "cwd": "/home/dan/app",
    }
    url = f"{context.demo.stack.api_url}{CLAUDE_CODE.url_path}"
    async with session.post(url, json=body) as response:
        response.raise_for_status()
        found: dict[str, dict[str, JsonValue]] = await response.json()
    answer = found.get("hookSpecificOutput", {})
    decision = answer.get("permissionDecision", "none")
    context.say("hook.answered", call=call, hook=event, decision=decision)
    return answer
