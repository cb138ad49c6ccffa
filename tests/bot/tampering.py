"""Bring a card, or a click on it, into a shape that no honest client sends."""

from __future__ import annotations

from dataclasses import replace

from tests.bot.bot_house import CHANNEL, TEAM, House
from twokey.bot.ids import seal
from twokey.gateway.approvals.record import Approval
from twokey.sandbox.json_types import JsonObject

FORGED = "forged"


def button_value(house: House, approval: Approval, purpose: str) -> str:
    """Return the value that our own button for this purpose has now."""
    key = house.config.seal_key
    return seal(approval, 0, key=key, team=TEAM, purpose=purpose)


async def click_with(
    house: House, card: JsonObject, action: str, value: str, *, user: str = "U0ANA"
) -> None:
    """Click a button of a card whose id and value are these."""
    workspace = house.sandbox.workspace
    message = workspace.messages[CHANNEL][str(card["ts"])]
    button: JsonObject = {
        "type": "button",
        "action_id": action,
        "text": {"type": "plain_text", "text": "x"},
        "value": value,
    }
    row: JsonObject = {"type": "actions", "block_id": FORGED, "elements": [button]}
    workspace.put_message(replace(message, blocks=(*(message.blocks or ()), row)))
    await house.actor(user).click(CHANNEL, message.ts, action, FORGED)


def copied(house: House, card: JsonObject, channel: str) -> str:
    """Put a copy of a card somewhere else; return its ts."""
    workspace = house.sandbox.workspace
    message = workspace.messages[CHANNEL][str(card["ts"])]
    ts = house.sandbox.clock.next_ts()
    workspace.put_message(replace(message, channel=channel, ts=ts))
    return ts


async def expire(house: House, approval: Approval) -> None:
    """Move the clock: let the deadline of an approval have passed."""
    await house.store.conn.together(
        ["HSET", house.keys.head(approval.id), "expires", 1],
        ["ZADD", house.keys.expiry, 1, approval.id],
    )
