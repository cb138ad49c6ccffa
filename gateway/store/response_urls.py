"""Store response URLs, by which a message is replaced outside the limit of updates.

Slack sends one with each click on a message. It is good for five posts within thirty
minutes, and whoever knows it can post as the app: so it is in no record and in no log,
and is forgotten before Slack takes it no more.
Source: https://docs.slack.dev/interactivity/handling-user-interaction
"""

from __future__ import annotations

from keyturn.gateway.store.connection import Connection, text
from keyturn.gateway.store.keys import RESPONSE_URL_MS, Keys
from keyturn.gateway.store.script import Script

TAKE_URL = Script("take_url")

USES = 4
"""One of the five is left for a private reply to the click."""


class ResponseUrlStore:
    """The newest response URL of each message on which somebody clicked."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def keep(self, keys: Keys, channel: str, ts: str, url: str) -> None:
        """Keep the URL of a click on a message."""
        key, kept = keys.response_url(channel, ts), f"{USES} {url}"
        await self._conn.command("SET", key, kept, "PX", RESPONSE_URL_MS)

    async def take(self, keys: Keys, channel: str, ts: str) -> str:
        """Return the URL of a message for one post; "" when there is none."""
        word, *url = await TAKE_URL(self._conn, url=keys.response_url(channel, ts))
        return text(url[0]) if text(word) == "taken" else ""

    async def forget(self, keys: Keys, channel: str, ts: str) -> None:
        """Forget the URL of a message: Slack did not take it."""
        await self._conn.command("DEL", keys.response_url(channel, ts))
