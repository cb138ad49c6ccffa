"""Prepare signed Slack clicks, each of which decides a separate approval.

An agent's submit opens the approvals, and their cards are posted in the sandbox's
channel. Each request is the signed payload of a click on Approve.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote_plus

from bench.load import Request
from bench.stats import NotMeasured
from bench.world import CHANNEL, TENANT, open_one, shown
from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.mentions import mentions_for
from keyturn.bot.config import BotConfig
from keyturn.bot.delivery.card_publisher import policy_decision_digest
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.config import SlackMode
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from keyturn.sandbox import messages, payloads
from keyturn.sandbox.json_types import JsonObject, as_objects
from keyturn.sandbox.payloads import Interaction
from keyturn.sandbox.records import Message
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.signed_http import FORM, SIGNATURE, TIMESTAMP, sign

CLICKER = "U0ANA"

_IN_A_FORM = {code: quote_plus(chr(code)) for code in range(128)}


@dataclass(frozen=True, slots=True)
class PreparedClick:
    """A signed request, and the approval that it decides."""

    approval: str
    request: Request


def bot_config(*, bot_token: str, signing_secret: str, api_url: str) -> BotConfig:
    """Return the settings of a bot that receives clicks over HTTP."""
    return BotConfig(
        bot_token=bot_token,
        mode=SlackMode.HTTP,
        signing_secret=signing_secret,
        api_url=api_url,
        seal_keys=(b"a key of the benchmark",),
        port=0,
    )


async def prepare(store: Store, sandbox: Sandbox, count: int) -> list[PreparedClick]:
    """Empty the store and open approvals in it, with their cards and clicks."""
    await store.conn.command("FLUSHALL")
    clicks: list[PreparedClick] = []
    # New thread names each time: a record of the same threads would be an older copy.
    run = uuid.uuid4().hex[:8]
    for number in range(count):
        opened = await open_one(store, number, thread=f"thread-{run}-{number}")
        message = await _post_card(store, sandbox, await shown(store, opened))
        clicks.append(_click_on(sandbox, opened, message))
    # The cards are posted already, so the bot has nothing to publish at its start.
    await store.conn.command("DEL", store.keys_of_tenant(TENANT).outbox)
    return clicks


async def ensure_decided(store: Store, clicks: Sequence[PreparedClick]) -> None:
    """Check that every click decided its approval, by the right person, once.

    Raises:
        NotMeasured: when one did not.
    """
    for click in clicks:
        loaded = await store.approvals.load(click.approval)
        item = loaded.approval.items[0] if loaded else None
        by = item.decision.by.user if item and item.decision else "nobody"
        if item is None or item.state is not ItemState.AUTHORIZED or by != CLICKER:
            state = item.state if item else "gone"
            raise NotMeasured(f"{click.approval!r} is {state}, decided by {by}.")
    jobs = await store.queue(store.keys_of_tenant(TENANT)).depth()
    if jobs != len(clicks):
        raise NotMeasured(f"{len(clicks)} clicks left {jobs} resume jobs.")


async def _post_card(store: Store, sandbox: Sandbox, approval: Approval) -> Message:
    slack, team = sandbox.slack, sandbox.workspace.team_id
    config = bot_config(
        bot_token=sandbox.bot_token,
        signing_secret=sandbox.signing_secret,
        api_url=sandbox.api_url,
    )
    drawn = card(Frame(approval, config.seal_key, team, now_ms=0))
    channel = sandbox.workspace.channels[CHANNEL]
    content: JsonObject = {"blocks": [*drawn.blocks], "text": drawn.text}
    message = messages.post(slack, channel, content)
    keys = store.keys_of_tenant(TENANT)
    await store.cards.posted(keys, approval.id, channel=CHANNEL, ts=message.ts)
    # The publisher's note about a card: without it, the card would be drawn again.
    await store.cards.shown(
        keys,
        approval.id,
        rev=approval.rev,
        display_digest="",
        decision_digest=policy_decision_digest(approval, config.seal_key),
    )
    roles = mentions_for(approval).roles
    await store.cards.mark_mentioned(keys, approval.id, roles)
    return message


def _click_on(sandbox: Sandbox, approval: str, message: Message) -> PreparedClick:
    slack = sandbox.slack
    user = sandbox.workspace.user(CLICKER)
    interaction = Interaction(user, slack.triggers.issue(user.id))
    button = {**_approve_button(message.blocks), "action_ts": slack.clock.next_ts()}
    envelope = payloads.on_message(slack, interaction, message, button, {})
    # Equivalent to `urlencode`, which would dominate the time: the JSON is ASCII.
    body = "payload=" + json.dumps(envelope.payload).translate(_IN_A_FORM)
    return PreparedClick(approval, _signed(body, sandbox.signing_secret))


def _approve_button(blocks: tuple[JsonObject, ...] | None) -> JsonObject:
    """Return the entry of ``actions`` for the card's button Approve."""
    for block in blocks or ():
        for element in as_objects(block.get("elements")):
            if element.get("action_id") == Action.APPROVE:
                return {**element, "block_id": block["block_id"]}
    raise AssertionError("The card has no button Approve.")


def _signed(body: str, secret: str) -> Request:
    timestamp = str(int(time.time()))  # noqa: TID251 - what Slack's clock says
    signature = sign(secret, timestamp, body.encode())
    headers = {"Content-Type": FORM, TIMESTAMP: timestamp, SIGNATURE: signature}
    return Request(headers, body)
