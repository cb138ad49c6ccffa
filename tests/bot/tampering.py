"""Bring a card, or a click on it, into a shape that no honest client sends."""

from __future__ import annotations

from dataclasses import replace

from keyturn.bot.ids import seal
from keyturn.gateway.approvals.record import Approval
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, TEAM, Stack

FORGED = "forged"


def button_value(stack: Stack, approval: Approval, purpose: str) -> str:
    """Return the current value of our button for this purpose."""
    key = stack.config.seal_key
    return seal(approval, 0, key=key, team=TEAM, purpose=purpose)


def forged_row(action: str, value: str, block: str = FORGED) -> JsonObject:
    """Return a row with a button whose id and value are these."""
    button: JsonObject = {
        "type": "button",
        "action_id": action,
        "text": {"type": "plain_text", "text": "x"},
        "value": value,
    }
    return {"type": "actions", "block_id": block, "elements": [button]}


async def click_with(
    stack: Stack,
    card: JsonObject,
    action: str,
    value: str,
    *,
    user: str = "U0ANA",
    channel: str = CHANNEL,
) -> None:
    """Click a button of a message whose id and value are these."""
    workspace = stack.sandbox.workspace
    message = workspace.messages[channel][str(card["ts"])]
    row = forged_row(action, value)
    workspace.put_message(replace(message, blocks=(*(message.blocks or ()), row)))
    await stack.actor(user).click(channel, message.ts, action, FORGED)


def copied(stack: Stack, card: JsonObject, channel: str) -> str:
    """Put a copy of a card somewhere else; return its ts."""
    workspace = stack.sandbox.workspace
    message = workspace.messages[CHANNEL][str(card["ts"])]
    ts = stack.sandbox.clock.next_ts()
    workspace.put_message(replace(message, channel=channel, ts=ts))
    return ts


async def expire(stack: Stack, approval: Approval) -> None:
    """Move the clock past the deadline of an approval."""
    await stack.store.conn.transaction(
        ["HSET", stack.keys.head(approval.id), "expires", 1],
        ["ZADD", stack.keys.expiry, 1, stack.keys.listed(approval.id)],
    )
