"""Store of collected cards: which approvals share one message in Slack.

A collected card has an id of the form of an approval's, and the same hash for its place
in Slack. Its members never change but that one leaves it, for a card of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.store.card_copies import AttachedStore
from keyturn.gateway.store.connection import text
from keyturn.gateway.store.keys import KEEP_MS, Keys

# Fields of the hash of a card.
MEMBERS, GROUP, IN = "members", "group", "in"
ALONE = ""
"""What ``in`` holds of an approval that left: it is not collected again."""


class CollectedCardStore(AttachedStore):
    """Collected cards of all tenants."""

    async def now_ms(self, keys: Keys) -> int:
        """Return the time by the clock of a tenant."""
        return await self._conn.now_ms(keys.outbox)

    async def collect(
        self, keys: Keys, card: str, members: Sequence[str], *, group: str
    ) -> None:
        """Let approvals without a card share one from now on.

        Args:
            keys: of the tenant.
            card: a new id.
            members: the approvals, in order; one that is collected already, or has left
                a card, stays as it is.
            group: what the members have in common, see `group_of`.
        """
        # The list first: after a crash in between, a member is collected anew, and the
        # card that nobody points to has no members.
        listed = {MEMBERS: json.dumps(list(members)), GROUP: group}
        await self._attach(keys, card, first=listed)
        short = keys.short(short_id(card))
        await self._conn.transaction(
            ["SADD", short, keys.listed(card)], ["PEXPIRE", short, KEEP_MS, "NX"]
        )
        for approval in members:
            await self._attach(keys, approval, first={IN: card})

    async def card_of(self, keys: Keys, approval: str) -> str | None:
        """Return the collected card that shows an approval.

        "" for one that left or has a card of its own; None for one without a card.
        """
        found = await self._conn.command("HMGET", keys.card(approval), IN, "at")
        card, own = cast("list[bytes | None]", found)
        if own is not None:
            return ALONE
        return None if card is None else text(card)

    async def members(self, keys: Keys, card: str) -> tuple[list[str], int]:
        """Return the approvals that a collected card shows, and how many left it."""
        body = text(await self._conn.command("HGET", keys.card(card), MEMBERS))
        listed = cast("list[str]", json.loads(body)) if body else []
        if not listed:
            return [], 0
        # What each of them points to decides: the list also names those that left, and
        # a publisher that was paused may have posted one a card of its own.
        shown = await self._conn.transaction(
            *(["HMGET", keys.card(one), IN, "at"] for one in listed)
        )
        members = [
            one
            for one, where in zip(listed, shown, strict=True)
            if where == [card.encode(), None]
        ]
        return members, len(listed) - len(members)

    async def group(self, keys: Keys, card: str) -> str:
        """Return what the members of a collected card have in common."""
        return text(await self._conn.command("HGET", keys.card(card), GROUP))

    async def regroup(self, keys: Keys, card: str, group: str) -> None:
        """Note that all members of a card have something else in common now."""
        await self._attach(keys, card, newest={GROUP: group})

    async def leave(self, keys: Keys, approval: str) -> None:
        """Give an approval a card of its own, now and later."""
        await self._attach(keys, approval, newest={IN: ALONE})

    async def tells(self, keys: Keys, card: str, event: str, seq: str) -> bool:
        """Return whether this event is the one of its name that a card tells of.

        All members are reminded at about the same time, and people need one message.
        The first event counts, also when it is read again after a restart.
        """
        field = f"told {event}"
        await self._attach(keys, card, first={field: seq})
        kept = text(await self._conn.command("HGET", keys.card(card), field))
        return kept == seq
