"""Post the cards of approvals in the sandbox, and click on them as Slack sends it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.ids import Action
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.secret_file import parse_secrets
from keyturn.gateway.store.store import Store
from keyturn.sandbox import messages, payloads
from keyturn.sandbox.json_types import JsonObject, as_objects
from keyturn.sandbox.payloads import Interaction
from keyturn.sandbox.records import Message
from keyturn.sandbox.server import Sandbox
from keyturn.sandbox.signed_http import FORM, SIGNATURE, TIMESTAMP, sign

CHANNEL = "C0APPROVALS"
TENANT = "default"


@dataclass(frozen=True)
class Card:
    """A card that the store knows, and its button Approve."""

    message: Message
    button: JsonObject


class Clicker:
    """The clicks of all people, at one sandbox.

    Args:
        sandbox: the workspace.
        store: where cards are registered, as by a bot that posted one.
        secret: seals the buttons.
    """

    def __init__(self, sandbox: Sandbox, store: Store, secret: str) -> None:
        self._sandbox, self._store = sandbox, store
        self._seal_key = parse_secrets(secret)[0]

    async def post(self, approval: Approval) -> Card:
        """Post the card of an approval that waits.

        Raises:
            StoreUnavailable: it is not known to be registered.
        """
        workspace = self._sandbox.workspace
        frame = Frame(approval, self._seal_key, workspace.team_id, now_ms=0)
        shown = card(frame)
        content: JsonObject = {"blocks": [*shown.blocks], "text": shown.text}
        channel = workspace.channels[CHANNEL]
        message = messages.post(self._sandbox.slack, channel, content)
        keys = self._store.keys_of_tenant(TENANT)
        place = await self._store.cards.posted(
            keys, approval.id, channel=CHANNEL, ts=message.ts
        )
        await self._store.cards.shown(
            keys, approval.id, rev=approval.rev, display_digest=""
        )
        # A bot may have posted it a moment before: its copy is the one that counts.
        return Card(replace(message, ts=place.ts), _approve_button(message))

    def click(self, on: Card, person: str) -> tuple[dict[str, str], bytes]:
        """Return the signed request of a click: its headers and its body."""
        slack = self._sandbox.slack
        user = self._sandbox.workspace.user(person)
        interaction = Interaction(user, slack.triggers.issue(user.id))
        button = {**on.button, "action_ts": slack.clock.next_ts()}
        envelope = payloads.on_message(slack, interaction, on.message, button, {})
        body = urlencode({"payload": json.dumps(envelope.payload)}).encode()
        timestamp = str(int(time.time()))  # noqa: TID251 - what Slack's clock says
        signature = sign(self._sandbox.signing_secret, timestamp, body)
        return {"Content-Type": FORM, TIMESTAMP: timestamp, SIGNATURE: signature}, body


def _approve_button(message: Message) -> JsonObject:
    for block in message.blocks or ():
        for element in as_objects(block.get("elements")):
            if element.get("action_id") == Action.APPROVE:
                return {**element, "block_id": block["block_id"]}
    raise AssertionError("The card has no button Approve.")
