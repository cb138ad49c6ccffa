"""Store of channels that Slack gave another id, so that messages there can be changed.

What is noted is sealed: who can write to the store must not be able to have the bot
write somewhere else. Under a secret that was replaced it counts as unknown, and is
noted again when somebody uses a card there.
"""

from __future__ import annotations

from keyturn.gateway.store.connection import fields
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing import Sealed, Sealing


class MovedChannelStore:
    """The ids that channels have now, by the ones that they had before."""

    def __init__(self, sealing: Sealing) -> None:
        self._conn = sealing.conn
        self._sealing = sealing

    async def note(self, keys: Keys, was: str, now: str) -> None:
        """Note that a channel has another id now.

        Args:
            keys: of the tenant.
            was: the id that Slack knows no more.
            now: the id that it has instead.
        """
        name = keys.moved_channels
        sealed = self._sealing.sealed(Sealed.MESSAGE, (name, was), now.encode())
        # For as long as the store: how long messages are kept is a setting.
        await self._conn.command("HSET", name, was, sealed)

    async def known(self, keys: Keys) -> dict[str, str]:
        """Return the id that each channel has now, by the one that it had before."""
        name = keys.moved_channels
        found = fields(await self._conn.command("HGETALL", name))
        moved = {
            was: self._sealing.opened(Sealed.MESSAGE, (name, was), stored)
            for was, stored in found.items()
        }
        return {was: now.decode() for was, now in moved.items() if now}
