"""Seal where cards and their copies stand, so that the bot changes no other message.

Beside its place, the hash of a card has a field without a value for each place that a
bot registered; its name is the seal. Scripts go on comparing the place alone, and an
older version, which makes no seals, reads the same hash.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from twokey.gateway.protocol.records import Record
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.sealing import Sealed, Sealing

_MARK = "~"
OPENED, AT, SHOWN, REFUSED = "dm ", "dm_at ", "dm_shown ", "dm_refused "


class CardCopy(Record):
    """One person's copy of a card.

    Attributes:
        channel: of the direct message; known before the copy is posted.
        ts: of the message; "" while none is registered.
        rev: of the approval as the copy shows it.
        decision_digest: digest of what it says that the waiting calls need.
        refused: Slack's word for why there is none; "" otherwise.
        is_sealed: a bot registered it, so it may be changed.
    """

    channel: str = ""
    ts: str = ""
    rev: int = 0
    decision_digest: str = ""
    refused: str = ""
    is_sealed: bool = False

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


class CardSeals:
    """Makes and checks the seals of places.

    Args:
        sealing: seals for their place what the store keeps.
    """

    def __init__(self, sealing: Sealing) -> None:
        self._sealing = sealing

    def field(self, keys: Keys, approval: str, at: str, user: str = "") -> str:
        """Return the field that says that a message may be changed.

        Args:
            keys: of the shard.
            approval: what the message shows.
            at: its channel and ts.
            user: whose copy it is; "" for the card.
        """
        seal = self._sealing.seal(Sealed.CARD, _place(keys, approval, at, user), b"")
        return _MARK + base64.urlsafe_b64encode(seal).decode().rstrip("=")

    def has(
        self,
        found: Mapping[str, bytes],
        keys: Keys,
        approval: str,
        at: str,
        user: str = "",
    ) -> bool:
        """Return whether the hash of a card has the seal of a place."""
        if self.field(keys, approval, at, user) in found:
            return True
        # By an older secret.
        place = _place(keys, approval, at, user)
        return any(
            self._sealing.is_valid(Sealed.CARD, place, b"", _seal(name))
            for name in found
            if name.startswith(_MARK)
        )

    def copies(
        self, found: Mapping[str, bytes], keys: Keys, approval: str
    ) -> dict[str, CardCopy]:
        """Return each person's copy, from the fields of the hash of a card."""
        return {
            user: one.with_(
                is_sealed=self.has(
                    found, keys, approval, f"{one.channel} {one.ts}", user
                )
            )
            for user, one in copies_in(found).items()
        }

    async def refuse(
        self, keys: Keys, tenant: str, approval: str, at: tuple[str, str]
    ) -> None:
        """Report a place that no bot registered."""
        body = " ".join(at).encode("utf-8", "surrogateescape")
        await self._sealing.refuse(
            keys, Sealed.CARD, body, tenant=tenant, approval=approval
        )


def _place(keys: Keys, approval: str, at: str, user: str) -> tuple[str, str, str]:
    return keys.card(approval), user, at


def _seal(name: str) -> bytes:
    try:
        return base64.b64decode(name[len(_MARK) :] + "==", b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
