"""Store of personal copies of a card: one direct message for each person.

They are fields of the hash of the card. Of each person's copies the first that is
registered is the usable one, as of a card.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection import Connection, fields, text
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.script import Script

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


OPENED, AT, SHOWN, REFUSED = "dm ", "dm_at ", "dm_shown ", "dm_refused "


class CardCopy(Record):
    """One person's copy of a card.

    Attributes:
        channel: of the direct message; known before the copy is posted.
        ts: of the message; "" while none is registered.
        rev: of the approval as the copy shows it.
        decision_digest: digest of what it says that the waiting calls need.
        refused: Slack's word for why there is none; "" otherwise.
    """

    channel: str = ""
    ts: str = ""
    rev: int = 0
    decision_digest: str = ""
    refused: str = ""

    @property
    def is_posted(self) -> bool:
        """Return whether the person has a copy that can be used."""
        return bool(self.ts) and not self.refused


def copies_in(found: Mapping[str, bytes]) -> dict[str, CardCopy]:
    """Return each person's copy, from the fields of the hash of a card."""
    copies: dict[str, CardCopy] = {}
    for name, value in found.items():
        for prefix in (OPENED, AT, SHOWN, REFUSED):
            if name.startswith(prefix):
                user = name.removeprefix(prefix)
                copy = copies.get(user, CardCopy())
                copies[user] = _with_field(copy, prefix, readable(value))
    return copies


def readable(stored: bytes | None) -> str:
    """Return a field of the hash of a card; what is no text matches nothing."""
    return (stored or b"").decode("utf-8", "backslashreplace")


def rev_of(stored: str) -> int:
    """Return a rev; 0, which is older than any, for what somebody else wrote."""
    return int(stored) if stored.isascii() and stored.isdecimal() else 0


def _with_field(copy: CardCopy, prefix: str, value: str) -> CardCopy:
    first, _, second = value.partition(" ")
    if prefix == AT:
        return copy.with_(channel=first, ts=second)
    if prefix == SHOWN:
        return copy.with_(rev=rev_of(first), decision_digest=second)
    if prefix == REFUSED:
        return copy.with_(refused=value)
    return copy if copy.ts else copy.with_(channel=value)


class CopyStore(AttachedStore):
    """Personal copies of cards."""

    async def of_card(self, keys: Keys, approval: str) -> dict[str, CardCopy]:
        """Return each person's copy, also while no card in a channel is registered."""
        return copies_in(
            fields(await self._conn.command("HGETALL", keys.card(approval)))
        )

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
            newest={keys.suffix(place): ""},
        )
        kept = text(await self._conn.command("HGET", keys.card(approval), name))
        kept_channel, _, kept_ts = kept.partition(" ")
        return CardCopy(channel=kept_channel, ts=kept_ts)

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
