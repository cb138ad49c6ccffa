"""Send the bot what no honest Slack sends, and see whether anything gave way."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from keyturn.bot.ids import Action, Input, View, seal
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.wire import Verdict
from keyturn.sandbox.json_types import JsonObject
from tests.bot.bot_stack import CHANNEL, TEAM, Stack
from tests.bot.signed import FORM, interaction, post, signed_headers
from tests.streams import audit_entries

Payload = dict[str, Any]


@dataclass(frozen=True)
class Trace:
    """Everything that a refused click must leave as it was."""

    approval: Approval
    jobs: int
    audit: int
    card: str


async def trace(stack: Stack, verdict: Verdict) -> Trace:
    """Return the current state of one call."""
    approval = await stack.approval(verdict)
    conn, keys = stack.store.conn, stack.keys
    # That an attack was noticed is logged, and is no effect of it.
    entries = await audit_entries(conn, keys)
    noticed = {EventName.SECURITY_DETECTED, EventName.DECISION_REFUSED}
    return Trace(
        approval=approval,
        jobs=await stack.store.queue(keys).depth(),
        audit=sum(one.name not in noticed for one in entries),
        card=str(await conn.command("HGET", keys.card(approval.id), "at")),
    )


def value_of(
    stack: Stack, approval: Approval, purpose: str, index: int | None = 0
) -> str:
    """Return the current value of our button for this purpose."""
    return seal(approval, index, key=stack.config.seal_key, team=TEAM, purpose=purpose)


def click_payload(
    ts: object, action: str, value: object, *, user: str = "U0ANA"
) -> Payload:
    """Return a click on a card as Slack sends it."""
    return {
        "type": "block_actions",
        "team": {"id": TEAM, "domain": "sandbox"},
        "user": {"id": user, "team_id": TEAM, "name": user.lower()},
        "api_app_id": "A0KEYTURN",
        "channel": {"id": CHANNEL, "name": "agent-approvals"},
        "container": {
            "type": "message",
            "channel_id": CHANNEL,
            "message_ts": ts,
            "is_ephemeral": False,
        },
        "trigger_id": "1.2.3",
        "response_url": "",
        "actions": [
            {
                "type": "button",
                "action_id": action,
                "block_id": "b",
                "value": value,
                "action_ts": "1.0",
            }
        ],
    }


def submission_payload(
    view: Mapping[str, Any], values: JsonObject, *, user: str = "U0ANA"
) -> Payload:
    """Return a submitted modal as Slack sends it."""
    return {
        "type": "view_submission",
        "team": {"id": TEAM, "domain": "sandbox"},
        "user": {"id": user, "team_id": TEAM},
        "trigger_id": "1.2.3",
        "view": {
            "type": "modal",
            "id": view["id"],
            "root_view_id": view["id"],
            "hash": view.get("hash", ""),
            "callback_id": view["callback_id"],
            "private_metadata": view["private_metadata"],
            "state": {"values": values},
        },
    }


async def rejection_form(stack: Stack, verdict: Verdict) -> Payload:
    """Open the form to reject a call as Ana; return the submission that counts."""
    ana = await stack.click(verdict, Action.REJECT)
    view = await ana.wait_for_view(lambda top: top["callback_id"] == View.REJECT)
    reason = {Input.REASON.value: {Input.REASON.value: {"value": "because"}}}
    return submission_payload(view, reason)


def changed(payload: Payload, path: str, to: object) -> Payload:
    """Return a payload with one changed place; `...` drops it."""
    result = cast("Any", copy.deepcopy(payload))
    node = result
    *way, last = path.split(".")
    for step in way:
        node = node[int(step) if step.isdigit() else step]
    if to is ...:
        del node[last]
    elif isinstance(node, list):
        cast("list[object]", node)[int(last)] = to
    else:
        node[last] = to
    return cast("Payload", result)


async def deliver(
    stack: Stack, payload: Mapping[str, object], **headers: str
) -> tuple[int, str]:
    """Deliver an interaction with a true signature."""
    return await deliver_bytes(stack, interaction(payload), FORM, **headers)


async def deliver_bytes(
    stack: Stack, body: bytes, kind: str = FORM, **headers: str
) -> tuple[int, str]:
    """Deliver any bytes with a true signature."""
    assert stack.bot is not None
    signed = signed_headers(stack.sandbox.signing_secret, body)
    return await post(stack.bot.url, {**signed, "Content-Type": kind, **headers}, body)
