"""The guarantee about Slack: it needs a channel, so it is only proven on request."""

from __future__ import annotations

import secrets
from functools import partial

from keyturn.bot.cards.approval import card
from keyturn.bot.cards.frame import Frame
from keyturn.bot.web import Slack, text_at
from keyturn.cli.verify.guarantee import Check, Proof
from keyturn.cli.verify.scratch import Call, Scratch
from keyturn.gateway.client.outgoing import outgoing
from keyturn.gateway.errors import SettingsError

_NOTE = "A test by 'keyturn verify'. This card is deleted in a moment."


def card_in(channel: str, token: str) -> tuple[Proof, Check]:
    """Return the guarantee that a card in a channel can be posted, updated and deleted.

    Raises:
        SettingsError: the settings have no bot token.
    """
    if not token:
        raise SettingsError("--slack needs the bot's token: set SLACK_BOT_TOKEN.")
    sentence = f"A card in {channel} can be posted, updated and deleted."
    proof = Proof(name="slack_card", group="Slack", sentence=sentence)
    return proof, partial(_posted, channel=channel, token=token)


async def _posted(scratch: Scratch, *, channel: str, token: str) -> None:
    call = await scratch.ask(note=_NOTE)
    async with outgoing() as session:
        url = scratch.settings.slack.api_url
        slack = Slack(token, api_url=url, session=session)
        posted = await slack.call(
            "chat.postMessage", channel=channel, **await _card(call)
        )
        place = {"channel": text_at(posted, "channel"), "ts": text_at(posted, "ts")}
        try:
            await call.decide()
            await slack.call("chat.update", **place, **await _card(call))
        finally:
            await slack.call("chat.delete", **place)


async def _card(call: Call) -> dict[str, object]:
    # A random key: no bot accepts a click on this card.
    key, now_ms = secrets.token_bytes(32), await call.scratch.now_ms()
    shown = card(Frame(await call.approval(), key, "T0VERIFY", now_ms))
    return {"text": shown.text, "blocks": [*shown.blocks], "metadata": shown.metadata}
