"""Store of personal copies of a card: one direct message for each person.

They are fields of the hash of the card. Of each person's copies the first that is
registered is the usable one, as of a card.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from twokey.gateway.store.card_seals import (
    AT,
    OPENED,
    REFUSED,
    SHOWN,
    CardCopy,
    CardSeals,
    rev_of,
)
from twokey.gateway.store.connection import Connection, fields, text
from twokey.gateway.store.keys import KEEP_MS, Keys
from twokey.gateway.store.script import Script

ATTACH = Script("attach")

_NOTHING: dict[str, str] = {}


class AttachedStore:
    """What lives exactly as long as an approval does, in hashes beside it.

    Args:
        conn: the server.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def _attach(
        self,
        keys: Keys,
        approval: str,
        *,
        own: str = "",
        texts: Sequence[str] = (),
        first: Mapping[str, str] = _NOTHING,
        newest: Mapping[str, str] = _NOTHING,
    ) -> None:
        """Write fields of the hash of a card, or of another hash; see `attach.lua`."""
        await ATTACH(
            self._conn,
            record=keys.head(approval),
            own=own or keys.card(approval),
            texts=texts,
            holder=approval,
            first=json.dumps(first),
            newest=json.dumps(newest),
            keep_ms=KEEP_MS,
        )


class CopyStore(AttachedStore):
    """Personal copies of cards.

    Args:
        conn: the server.
        seals: of where they stand.
    """

    def __init__(self, conn: Connection, seals: CardSeals) -> None:
        super().__init__(conn)
        self._seals = seals

    async def of_card(self, keys: Keys, approval: str) -> dict[str, CardCopy]:
        """Return each person's copy, also while no card in a channel is registered."""
        found = fields(await self._conn.command("HGETALL", keys.card(approval)))
        return self._seals.copies(found, keys, approval)

    async def opened(
        self, keys: Keys, approval: str, user: str, *, channel: str
    ) -> None:
        """Note a person's direct message, before a copy is posted there.

        A copy whose posting got no answer can then be told by a click on it.
        """
        await self._attach(keys, approval, newest={OPENED + user: channel})

    async def posted(
        self, keys: Keys, approval: str, user: str, *, channel: str, ts: str
    ) -> CardCopy:
        """Register a person's first copy; return the usable one."""
        place = keys.card_at(channel, ts)
        name = AT + user
        # A later copy (a lost answer made us post again) never replaces the first.
        await self._attach(
            keys,
            approval,
            texts=[place],
            first={name: f"{channel} {ts}"},
            newest={
                keys.suffix(place): "",
                self._seals.field(keys, approval, f"{channel} {ts}", user): "",
            },
        )
        kept = text(await self._conn.command("HGET", keys.card(approval), name))
        kept_channel, _, kept_ts = kept.partition(" ")
        return CardCopy(channel=kept_channel, ts=kept_ts)

    async def confirm(
        self, keys: Keys, approval: str, at: tuple[str, str], user: str = ""
    ) -> None:
        """Seal a place that an older version registered without a seal."""
        field = self._seals.field(keys, approval, " ".join(at), user)
        await self._attach(keys, approval, newest={field: ""})

    async def shown(
        self, keys: Keys, approval: str, user: str, *, rev: int, decision_digest: str
    ) -> bool:
        """Note what a copy shows; False when it showed a newer rev meanwhile.

        A publisher that was paused may have drawn over a newer state; then it is not
        known what the copy shows, and it has to be drawn again.
        """
        name = SHOWN + user
        before = text(await self._conn.command("HGET", keys.card(approval), name))
        is_newer = rev_of(before.partition(" ")[0]) > rev
        shown = {name: f"{0 if is_newer else rev} {decision_digest}"}
        await self._attach(keys, approval, newest=shown)
        return not is_newer

    async def refused(self, keys: Keys, approval: str, user: str, why: str) -> None:
        """Note that a person has no copy, or one that changes no more."""
        await self._attach(keys, approval, newest={REFUSED + user: why})
