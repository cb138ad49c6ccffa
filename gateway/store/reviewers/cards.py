"""Store of Slack state: cards and their copies, pages read, modals, drafts, nonces.

A card's hash has a field for each personal copy, which is a direct message. Of each
person's copies, the first registered one is usable, as with cards.

A collected card shows several approvals in one message. Its id has the form of an
approval's id, and its place in Slack is stored in the same kind of hash. Its members
are fixed, but a member may leave for a separate card.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import cast

from pydantic import Field

from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import (
    Command,
    Reply,
    fields,
    number,
    text,
)
from keyturn.gateway.store.connection.listed_members import readable
from keyturn.gateway.store.keys import DRAFT_MS, KEEP_MS, NONCE_MS, VIEW_MS, Keys
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.sealing import Repository, Sealed, write_if

ATTACH = Script("attach")

# Fields of the hash of a card.
MEMBERS, LISTED, GROUP, IN = "members", "listed", "group", "in"
_NOTIFIED_MS = 2 * 86_400_000
"""Twice the longest `AttentionRule.within`: cards of the last day are drawn again."""
ALONE = ""
"""Value of ``in`` for an approval that left: it is not collected again."""

# Greater than any revision, so that no change makes the message due.
_IN_SUMMARY = 2**53
_MENTIONED = "asked "
_POSTING = "posting"
_URL = "url"

_NOTHING: dict[str, str] = {}

_KNOWN = ("at", "rev", "display", "decision")

CARD_SHOWN = Script("card_shown")


class AttachedStore(Repository):
    """Hashes next to an approval, with the approval's lifetime."""

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
        """Write fields of a card's hash, or of another hash; see `attach.lua`."""
        await ATTACH(
            self._conn,
            record=keys.head(approval),
            own=own or keys.card(approval),
            texts=texts,
            holder=approval,
            first=first,
            newest=newest,
            keep_ms=KEEP_MS,
        )

    async def _registered(
        self,
        keys: Keys,
        approval: str,
        field: str,
        channel: str,
        ts: str,
        *,
        is_found: bool = True,
    ) -> tuple[str, str]:
        """Register a message unless another one was first; return the usable one.

        A second message, posted after a lost reply, never replaces the first. Unless
        ``is_found`` is False, the approval can be found by the message.
        """
        at, place = f"{channel} {ts}", keys.card_at(channel, ts)
        texts = [place] if is_found else []
        named = {keys.suffix(one): "" for one in texts}
        await self._attach(keys, approval, texts=texts, first={field: at}, newest=named)
        kept = text(await self._conn.command("HGET", keys.card(approval), field))
        kept_channel, _, kept_ts = kept.partition(" ")
        return kept_channel, kept_ts


OPENED, AT, SHOWN, REFUSED = "dm ", "dm_at ", "dm_shown ", "dm_refused "


class CardCopy(Record):
    """One person's copy of a card.

    Attributes:
        channel: id of the direct message; known before the copy is posted.
        ts: ts of the message; "" before one is registered.
        rev: the approval's revision that the copy shows.
        decision_digest: digest of the text about required approvals.
        refused: Slack's error code if there is no copy; "" otherwise.
    """

    channel: str = ""
    ts: str = ""
    rev: int = 0
    decision_digest: str = ""
    refused: str = ""

    @property
    def is_posted(self) -> bool:
        """Return whether the person has a usable copy."""
        return bool(self.ts) and not self.refused


def copies_in(found: Mapping[str, bytes]) -> dict[str, CardCopy]:
    """Return each person's copy from the fields of a card's hash."""
    copies: dict[str, CardCopy] = {}
    for name in found:
        prefix, _, user = name.partition(" ")
        if f"{prefix} " in {OPENED, AT, SHOWN, REFUSED} and user not in copies:
            channel, _, ts = text(found.get(AT + user)).partition(" ")
            rev, _, digest = text(found.get(SHOWN + user)).partition(" ")
            copies[user] = CardCopy(
                channel=channel or text(found.get(OPENED + user)),
                ts=ts,
                rev=int(rev or 0),
                decision_digest=digest,
                refused=text(found.get(REFUSED + user)),
            )
    return copies


class CopyStore(AttachedStore):
    """Personal copies of cards."""

    async def of_card(self, keys: Keys, approval: str) -> dict[str, CardCopy]:
        """Return each person's copy, even if no card in a channel is registered."""
        return copies_in(
            fields(await self._conn.command("HGETALL", keys.card(approval)))
        )

    async def opened(
        self, keys: Keys, approval: str, user: str, *, channel: str
    ) -> None:
        """Record a person's direct message before a copy is posted there.

        If the reply to the post is lost, a click identifies the copy.
        """
        await self._attach(keys, approval, newest={OPENED + user: channel})

    async def posted(
        self, keys: Keys, approval: str, user: str, *, channel: str, ts: str
    ) -> CardCopy:
        """Register a person's first copy; return the usable one."""
        place = await self._registered(keys, approval, AT + user, channel, ts)
        return CardCopy(channel=place[0], ts=place[1])

    async def shown(
        self, keys: Keys, approval: str, user: str, *, rev: int, decision_digest: str
    ) -> bool:
        """Record the revision a copy shows; False if it showed a newer one.

        A paused publisher may have overwritten a newer state. Then the content of the
        copy is unknown, and it must be drawn again.
        """
        name = SHOWN + user
        before = text(await self._conn.command("HGET", keys.card(approval), name))
        is_newer = int(before.partition(" ")[0] or 0) > rev
        shown = {name: f"{0 if is_newer else rev} {decision_digest}"}
        await self._attach(keys, approval, newest=shown)
        return not is_newer

    async def refused(self, keys: Keys, approval: str, user: str, why: str) -> None:
        """Record that a person has no copy, or a copy that can no longer change."""
        await self._attach(keys, approval, newest={REFUSED + user: why})


class ReadPageStore(AttachedStore):
    """Pages that reviewers have seen, each sealed."""

    async def opened_page(
        self, keys: Keys, approval: str, *, reader: str, page: int, pages: int
    ) -> bool:
        """Record that a reviewer saw a page; return whether they have seen all pages.

        Args:
            keys: keys of the approval's tenant.
            approval: the approval's id.
            reader: user, item and action hash, so that an edit resets the progress.
            page: page number from 0.
            pages: number of pages.
        """
        # One field for each page, so that concurrent requests do not overwrite each
        # other.
        name, own = f"{reader} {page}", keys.opened(approval)
        seal = self._sealing.sealed_text(Sealed.PAGE, (own, name), "")
        await self._attach(keys, approval, own=own, newest={name: seal})
        return await self.has_opened(keys, approval, reader=reader, pages=pages)

    async def has_opened(
        self, keys: Keys, approval: str, *, reader: str, pages: int
    ) -> bool:
        """Return whether a reviewer has seen every page of an item's full view."""
        own = keys.opened(approval)
        names = [f"{reader} {page}" for page in range(pages)]
        reply = await self._conn.command("HMGET", own, *names)
        seen = 0
        for name, stored in zip(names, cast("list[bytes | None]", reply), strict=True):
            if stored is None:
                continue
            kind = Sealed.PAGE
            if self._sealing.opened_text(kind, (own, name), stored) is None:
                await self._sealing.refuse(keys, kind, stored, approval=approval)
            else:
                seen += 1
        return seen == pages


class CollectedCardStore(AttachedStore):
    """Collected cards of all tenants."""

    async def now_ms(self, keys: Keys) -> int:
        """Return the time of the tenant's server."""
        return await self._conn.now_ms(keys.outbox)

    async def collect(
        self, keys: Keys, card: str, members: Sequence[str], *, group: str
    ) -> None:
        """Put approvals without a card on one new collected card.

        Args:
            keys: keys of the tenant.
            card: a new id.
            members: the approvals, in order; those that were collected before are
                skipped.
            group: the members' common group, see `group_of`.
        """
        # The list first: after a crash in between, the members are collected again, and
        # the abandoned card has no members.
        listed = {MEMBERS: json.dumps(list(members)), GROUP: group}
        await self._attach(keys, card, first=listed)
        short = keys.short(short_id(card))
        await self._conn.transaction(
            ["APPEND", short, keys.listed(card)], ["PEXPIRE", short, KEEP_MS, "NX"]
        )
        for approval in members:
            await self._attach(keys, approval, first={IN: card})

    async def list_together(
        self, keys: Keys, listed: str, approvals: Sequence[str]
    ) -> None:
        """List approvals for one form; each of them keeps its card.

        ``listed`` is a new id, by which `members` returns them.
        """
        name, body = keys.card(listed), json.dumps(list(approvals))
        await self._conn.transaction(
            ["HSET", name, LISTED, body], ["PEXPIRE", name, VIEW_MS]
        )

    async def card_of(self, keys: Keys, approval: str) -> str | None:
        """Return the id of the collected card that shows an approval.

        "" if it left or has a separate card; None if it has no card.
        """
        found = await self._conn.command("HMGET", keys.card(approval), IN, "at")
        card, own = cast("list[bytes | None]", found)
        if own is not None:
            return ALONE
        return None if card is None else text(card)

    async def members(self, keys: Keys, card: str) -> tuple[list[str], int]:
        """Return a collected card's approvals, and how many have left it."""
        name = keys.card(card)
        found = await self._conn.command("HMGET", name, MEMBERS, LISTED)
        of_card, of_form = map(text, cast("list[bytes | None]", found))
        listed = cast("list[str]", json.loads(of_card or of_form or "[]"))
        if not of_card:
            return listed, 0
        # The members' fields decide: the list still has those that left, and a paused
        # publisher may have posted a separate card for one.
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
        """Return the common group of a collected card's members."""
        return text(await self._conn.command("HGET", keys.card(card), GROUP))

    async def regroup(self, keys: Keys, card: str, group: str) -> None:
        """Record a new common group of all members of a card."""
        await self._attach(keys, card, newest={GROUP: group})

    async def leave(self, keys: Keys, approval: str) -> None:
        """Give an approval a separate card from now on."""
        await self._attach(keys, approval, newest={IN: ALONE})

    async def tells(self, keys: Keys, card: str, event: str, seq: str) -> bool:
        """Return whether this event is the one its card announces for that name.

        All members are reminded at about the same time, and one message is enough. The
        first event wins, even if it is read again after a restart.
        """
        field = f"told {event}"
        await self._attach(keys, card, first={field: seq})
        kept = text(await self._conn.command("HGET", keys.card(card), field))
        return kept == seq


class CardPlace(Record):
    """A card's only usable message in a channel, and the revision it shows.

    ``decision_digest`` is a digest of the text about required approvals.
    ``mentioned_roles`` are the roles mentioned on the card or in its thread. ``copies``
    are direct messages with the same card, by user id. ``collected`` is the id of the
    collected card at this place, "" for a separate card.
    """

    channel: str
    ts: str
    rev: int = 0
    display_digest: str = ""
    decision_digest: str = ""
    mentioned_roles: frozenset[str] = frozenset()
    copies: dict[str, CardCopy] = Field(default_factory=dict)
    collected: str = ""

    @property
    def sent(self) -> tuple[str, ...]:
        """Return the people who have a copy, in a stable order."""
        return tuple(sorted(user for user, one in self.copies.items() if one.is_posted))

    @property
    def places(self) -> dict[str, tuple[str, str]]:
        """Return channel and ts of each copy."""
        return {
            user: (self.copies[user].channel, self.copies[user].ts)
            for user in self.sent
        }

    @property
    def is_in_summary(self) -> bool:
        """Return whether this is a summary of many calls instead of a card."""
        return self.rev == _IN_SUMMARY


class CardTrouble(Record):
    """Slack's error code for a failed post or update, and the channel."""

    channel: str
    why: str


class ViewBinding(Record):
    """The subject of an open modal: a person, an item, a version, a hash.

    ``index`` is None for a whole batch, and the hash is then the batch's digest.
    ``place`` is the card from which it was opened, ``parent`` the view below it.
    ``staged`` is the bot's text: the person's choices so far, or the policy shown.
    """

    user: str
    approval: str
    index: int | None
    version: int
    action_hash: str
    purpose: str
    channel: str = ""
    ts: str = ""
    parent: str = ""
    staged: str = ""


class CardStore(AttachedStore):
    """Cards, open modals and the nonces of signed requests."""

    async def place(self, keys: Keys, approval: str) -> CardPlace | None:
        """Return an approval's card in a channel; None before it was posted.

        An approval on a collected card has that card's place.
        """
        found = await self._conn.command(*self.reading(keys, approval))
        return await self.place_in(keys, found)

    def reading(self, keys: Keys, approval: str) -> Command:
        """Return the command whose reply `place_in` takes."""
        return "HGETALL", keys.card(approval)

    async def place_in(self, keys: Keys, card: Reply) -> CardPlace | None:
        """Return the result of `place` for the stored hash of a card."""
        found = fields(card)
        collected = "" if "at" in found else text(found.get(IN))
        if collected:
            found = fields(await self._conn.command("HGETALL", keys.card(collected)))
        if "at" not in found:
            return None
        known = {name: text(found.get(name)) for name in _KNOWN}
        channel, _, ts = known["at"].partition(" ")
        return CardPlace(
            channel=channel,
            ts=ts,
            rev=int(known["rev"] or 0),
            display_digest=known["display"],
            decision_digest=known["decision"],
            mentioned_roles=frozenset(
                name.removeprefix(_MENTIONED)
                for name in found
                if name.startswith(_MENTIONED)
            ),
            copies=copies_in(found),
            collected=collected,
        )

    async def begin_post(self, keys: Keys, approval: str, channel: str) -> None:
        """Record the channel before a card is posted: a crash may lose the reply."""
        await self._attach(keys, approval, newest={_POSTING: channel})

    async def begun_in(self, keys: Keys, approval: str) -> str:
        """Return the channel of the last `begin_post`; "" if there is none."""
        return text(await self._conn.command("HGET", keys.card(approval), _POSTING))

    async def posted(
        self, keys: Keys, approval: str, *, channel: str, ts: str
    ) -> CardPlace:
        """Register a card's message; return the usable one."""
        place = await self._registered(keys, approval, "at", channel, ts)
        return CardPlace(channel=place[0], ts=place[1])

    async def put_url(self, keys: Keys, approval: str, url: str) -> None:
        """Record the address of a card, sealed: people at MCP clients open it."""
        place, body = (keys.card(approval),), json.dumps([url])
        stored = self._sealing.sealed_text(Sealed.CARD_URL, place, body)
        await self._attach(keys, approval, newest={_URL: stored})

    async def url(self, keys: Keys, approval: str) -> str:
        """Return the address of an approval's card; "" for none or an invalid seal."""
        place = await self.place(keys, approval)
        name = keys.card((place and place.collected) or approval)
        stored = cast("bytes", await self._conn.command("HGET", name, _URL) or b"")
        body = self._sealing.opened_text(Sealed.CARD_URL, (name,), stored)
        return str(json.loads(body)[0]) if body and place else ""

    async def forget_place(self, keys: Keys, approval: str) -> None:
        """Forget a message that is no longer visible."""
        await self._conn.command("DEL", keys.card(approval))

    async def shown_at(self, keys: Keys, channel: str, ts: str) -> str:
        """Return the approval that a message shows; "" for none.

        This includes duplicates of a card.
        """
        return text(await self._conn.command("GET", keys.card_at(channel, ts)))

    async def shown_in_summary(
        self, keys: Keys, approvals: Sequence[str], channel: str, ts: str
    ) -> None:
        """Record that one summary message replaces several notifications.

        The message shows no states, so no revision makes it due again. It can be found
        through its last approval only, and has the same lifetime.
        """
        never = {"rev": str(_IN_SUMMARY)}
        for approval in approvals:
            place = await self._registered(
                keys, approval, "at", channel, ts, is_found=approval == approvals[-1]
            )
            # An approval that got a separate card keeps it.
            if place == (channel, ts):
                await self._attach(keys, approval, newest=never)

    async def shown(
        self,
        keys: Keys,
        approval: str,
        *,
        rev: int,
        display_digest: str,
        decision_digest: str = "",
        has_copies: bool = False,
    ) -> None:
        """Record the revision, decision text and blocks that a card shows.

        A paused publisher may have overwritten a newer revision. Then the content of
        the card is unknown, and it must be drawn again. A card with copies stays listed
        as outdated, since the copies are drawn later.
        """
        await CARD_SHOWN(
            self._conn,
            record=keys.head(approval),
            card=keys.card(approval),
            outdated=keys.outdated,
            approval=approval,
            rev=rev,
            display=display_digest,
            decision=decision_digest,
            has_copies=has_copies,
            keep_ms=KEEP_MS,
        )

    async def outdated(self, keys: Keys, limit: int) -> list[str]:
        """Return approvals with a missing or outdated card, earliest expiry first."""
        reply = await self._conn.command("ZRANGE", keys.outdated, 0, limit - 1)
        return readable(reply, keys.unlisted)

    async def mark_outdated(self, keys: Keys, *approvals: str) -> None:
        """List cards as missing or outdated until they are drawn."""
        if not approvals:
            return
        key = keys.outdated
        until_ms = await self._conn.now_ms(key) + KEEP_MS
        rows = [part for one in approvals for part in (until_ms, keys.listed(one))]
        await self._conn.command("ZADD", key, *rows)

    async def unmark(self, keys: Keys, approval: str) -> None:
        """Remove a card without open decisions from the outdated ones."""
        await self._conn.command("ZREM", keys.outdated, keys.listed(approval))

    async def forget_message(
        self, keys: Keys, approval: str, place: tuple[str, str]
    ) -> None:
        """Forget an approval's message: its buttons are refused, its card is missing.

        Does nothing if the card has another message now.
        """
        card = keys.card(approval)
        until_ms = await self._conn.now_ms(keys.outdated) + KEEP_MS
        # Nor is it searched for. Earlier reminders and mentions stay recorded.
        await write_if(
            self._conn,
            keys,
            [(["HGET", card, "at"], " ".join(place))],
            ["HDEL", card, *_KNOWN, _POSTING],
            ["ZADD", keys.outdated, until_ms, keys.listed(approval)],
        )

    async def keep_trouble(
        self, keys: Keys, approval: str, trouble: CardTrouble
    ) -> None:
        """Record the error of a failed post or update."""
        noted = {"trouble": trouble.model_dump_json()}
        await self._attach(keys, approval, newest=noted)

    async def trouble(self, keys: Keys, approval: str) -> CardTrouble | None:
        """Return the error of a failed post or update; None if there is none."""
        body = text(await self._conn.command("HGET", keys.card(approval), "trouble"))
        return CardTrouble.model_validate_json(body) if body else None

    async def mark_reported(self, keys: Keys, approval: str, what: str) -> None:
        """Record that a problem of a card was reported to people."""
        noted = {f"told {what}": "1"}
        await self._attach(keys, approval, newest=noted)

    async def was_reported(self, keys: Keys, approval: str, what: str) -> bool:
        """Return whether a problem of a card was reported to people."""
        reply = await self._conn.command("HEXISTS", keys.card(approval), f"told {what}")
        return bool(reply)

    async def mark_mentioned(
        self, keys: Keys, approval: str, roles: Iterable[str]
    ) -> None:
        """Record that a message about a card mentioned these roles."""
        marks = {f"{_MENTIONED}{role}": "1" for role in roles}
        if marks:
            await self._attach(keys, approval, newest=marks)

    async def note_notified(
        self, keys: Keys, approval: str, whom: Iterable[str], at_ms: int
    ) -> None:
        """Record that a card of this time notified these people and user groups."""
        for one in whom:
            key = keys.notified(one)
            await self._conn.transaction(
                ["ZADD", key, at_ms, approval],
                ["ZREMRANGEBYSCORE", key, "-inf", at_ms - _NOTIFIED_MS],
                ["PEXPIRE", key, _NOTIFIED_MS],
            )

    async def notified(
        self, keys: Keys, whom: str, before_ms: int, within: timedelta
    ) -> int:
        """Return how many cards notified a person or group before a moment."""
        key = keys.notified(whom)
        since_ms = before_ms - int(within.total_seconds() * 1000)
        reply = await self._conn.command("ZCOUNT", key, since_ms, f"({before_ms}")
        return number(reply)

    async def keep_words(
        self, keys: Keys, approval: str, *, user: str, ts: str, words: str
    ) -> None:
        """Save a person's text under a card, to prefill a form."""
        key = keys.draft(approval, user, ts)
        await self._conn.command("SET", key, words, "PX", DRAFT_MS)

    async def kept_words(self, keys: Keys, approval: str, *, user: str, ts: str) -> str:
        """Return a person's saved text under a card; "" if there is none."""
        key = keys.draft(approval, user, ts)
        return text(await self._conn.command("GET", key))

    async def bind_view(self, keys: Keys, view_id: str, binding: ViewBinding) -> None:
        """Bind a modal to its subject; the modal itself carries no state.

        The binding is sealed, because a submission decides the item it names.
        """
        name, body = keys.view(view_id), binding.model_dump_json().encode()
        sealed = self._sealing.sealed(Sealed.VIEW, (name,), body)
        await self._conn.command("SET", name, sealed, "PX", VIEW_MS)

    async def bound_view(self, keys: Keys, view_id: str) -> ViewBinding | None:
        """Return a modal's binding; None if it is unknown or its seal is invalid."""
        name = keys.view(view_id)
        stored = await self._conn.command("GET", name)
        if not isinstance(stored, bytes):
            return None
        body = self._sealing.opened(Sealed.VIEW, (name,), stored)
        if body is None:
            await self._sealing.refuse(keys, Sealed.VIEW, stored)
            return None
        return ViewBinding.model_validate_json(body)

    async def is_first(
        self, keys: Keys, request_digest: str, mine: bytes = b""
    ) -> bool:
        """Return whether a signed request is new, and remember it.

        ``mine`` identifies a repeated attempt whose reply was lost.

        Raises:
            StoreUnavailable: when it is not known to be kept; the request must not
                proceed.
        """
        # NX: of two simultaneous deliveries exactly one is first. Kept by a replica, so
        # that a replay is no new request after a failover.
        mine = mine or secrets.token_bytes(8)
        key = keys.nonce(request_digest)
        [held] = await self._conn.keep(["SET", key, mine, "NX", "GET", "PX", NONCE_MS])
        # Equal after a broken connection, when the command was sent again.
        return held in {None, mine}

    async def forget(self, keys: Keys, request_digest: str) -> None:
        """Forget a signed request without effect, so that it counts as new."""
        await self._conn.command("DEL", keys.nonce(request_digest))
