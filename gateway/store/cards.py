"""Remember where each card stands in Slack, and what reviewers have open."""

from __future__ import annotations

from typing import cast

from gateway.approvals.record import Record
from gateway.store.connection import Connection, fields, number, text
from gateway.store.keys import (
    DRAFT_LIFETIME,
    NONCE_LIFETIME,
    RETENTION,
    VIEW_LIFETIME,
    Keys,
)

_KEEP_MS = int(RETENTION.total_seconds() * 1000)
_VIEW_MS = int(VIEW_LIFETIME.total_seconds() * 1000)
_DRAFT_MS = int(DRAFT_LIFETIME.total_seconds() * 1000)
_FOLDED = 2**53
_NONCE_MS = int(NONCE_LIFETIME.total_seconds() * 1000)


class CardPlace(Record):
    """The one usable copy of a card: channel and message, and the rev it shows.

    ``judged`` is a digest of what it says that the waiting calls need.
    """

    channel: str
    ts: str
    rev: int = 0
    display_digest: str = ""
    judged: str = ""


class ViewBinding(Record):
    """What an open modal was opened for: a person, an item, a version, a hash.

    ``place`` is the card it was opened from.
    """

    user: str
    approval: str
    index: int
    version: int
    action_hash: str
    purpose: str
    channel: str = ""
    ts: str = ""


class CardStore:
    """Cards, open modals and the nonces of signed requests."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def place(self, keys: Keys, approval: str) -> CardPlace | None:
        """Return where an approval's card stands; None before it was posted."""
        found = fields(await self._conn.command("HGETALL", keys.card(approval)))
        if "at" not in found:
            return None
        channel, _, ts = text(found["at"]).partition(" ")
        return CardPlace(
            channel=channel,
            ts=ts,
            rev=number(found.get("rev")),
            display_digest=text(found.get("display")),
            judged=text(found.get("judged")),
        )

    async def posted(
        self, keys: Keys, approval: str, *, channel: str, ts: str
    ) -> CardPlace:
        """Register the first copy of a card; return the usable one.

        A later copy (a lost answer made us post again) never replaces the first.
        """
        key = keys.card(approval)
        await self._conn.together(
            ["HSETNX", key, "at", f"{channel} {ts}"],
            ["PEXPIRE", key, _KEEP_MS],
            ["SET", keys.card_at(channel, ts), approval, "PX", _KEEP_MS],
        )
        first = text(await self._conn.command("HGET", key, "at"))
        kept_channel, _, kept_ts = first.partition(" ")
        return CardPlace(channel=kept_channel, ts=kept_ts)

    async def shown_at(self, keys: Keys, channel: str, ts: str) -> str:
        """Return the approval or notice that a message shows; "" for none.

        A surplus copy of a card shows it, too.
        """
        return text(await self._conn.command("GET", keys.card_at(channel, ts)))

    async def folded(self, keys: Keys, notice: str, channel: str, ts: str) -> None:
        """Note that a notice is told of in a message that is not its own.

        That message shows no state of it, so no rev ever makes it due again.
        """
        await self.posted(keys, notice, channel=channel, ts=ts)
        await self.shown(keys, notice, rev=_FOLDED, display_digest="")

    async def shown(
        self,
        keys: Keys,
        approval: str,
        *,
        rev: int,
        display_digest: str,
        judged: str = "",
    ) -> None:
        """Remember which rev and judgement the card shows, and its blocks' digest."""
        key, shown = keys.card(approval), ("display", display_digest)
        await self._conn.command("HSET", key, "rev", rev, *shown, "judged", judged)

    async def keep_words(
        self, keys: Keys, approval: str, *, user: str, ts: str, words: str
    ) -> None:
        """Keep what somebody wrote under a card, for the form that they may open."""
        key = keys.draft(approval, user, ts)
        await self._conn.command("SET", key, words, "PX", _DRAFT_MS)

    async def kept_words(self, keys: Keys, approval: str, *, user: str, ts: str) -> str:
        """Return what this person wrote under a card; "" when it is not kept."""
        key = keys.draft(approval, user, ts)
        return text(await self._conn.command("GET", key))

    async def bind_view(self, keys: Keys, view_id: str, binding: ViewBinding) -> None:
        """Bind a modal to what it was opened for; the modal itself carries no state."""
        await self._conn.command(
            "SET", keys.view(view_id), binding.model_dump_json(), "PX", _VIEW_MS
        )

    async def bound_view(self, keys: Keys, view_id: str) -> ViewBinding | None:
        """Return what a modal was opened for; None when it is none of ours."""
        body = text(await self._conn.command("GET", keys.view(view_id)))
        return ViewBinding.model_validate_json(body) if body else None

    async def is_first(self, keys: Keys, request_digest: str) -> bool:
        """Say whether a signed request is new; it is remembered from now on."""
        reply = await self._conn.command(
            "SET", keys.nonce(request_digest), "1", "NX", "PX", _NONCE_MS
        )
        return reply is not None

    async def forget(self, keys: Keys, request_digest: str) -> None:
        """Let a signed request that came to nothing be new again."""
        await self._conn.command("DEL", keys.nonce(request_digest))

    async def opened_page(
        self, keys: Keys, approval: str, *, reader: str, page: int, pages: int
    ) -> bool:
        """Note that a reviewer saw one page; say whether they have seen them all.

        Args:
            keys: of the approval's shard.
            approval: its id.
            reader: user, item and action hash, so that an edit starts anew.
            page: counted from 0.
            pages: how many there are.
        """
        key = keys.opened(approval)
        await self._conn.together(
            ["HSETNX", key, f"{reader} {page}", "1"],
            ["PEXPIRE", key, _KEEP_MS],
        )
        return await self.has_opened(keys, approval, reader=reader, pages=pages)

    async def has_opened(
        self, keys: Keys, approval: str, *, reader: str, pages: int
    ) -> bool:
        """Say whether a reviewer has seen every page of an item's full view."""
        names = [f"{reader} {page}" for page in range(pages)]
        reply = await self._conn.command("HMGET", keys.opened(approval), *names)
        return None not in cast("list[bytes | None]", reply)
