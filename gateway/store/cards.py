"""Store of Slack state: cards and their copies, pages read, modals, drafts, nonces.

Personal copies are fields of the hash of the card, one direct message for each person.
Of each person's copies the first that is registered is the usable one, as of a card.

A collected card shows several approvals in one message. It has an id of the form of an
approval's, and the same hash for its place in Slack. Its members never change except
that one leaves it, for a card of its own.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from pydantic import Field

from keyturn.gateway.approvals.record import short_id
from keyturn.gateway.errors import NotConfirmed, StoreUnavailable
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection import fields, text
from keyturn.gateway.store.keys import DRAFT_MS, KEEP_MS, NONCE_MS, VIEW_MS, Keys
from keyturn.gateway.store.listed_members import listed_approvals
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.sealing import Sealed, Sealing

ATTACH = Script("attach")

# Fields of the hash of a card.
MEMBERS, GROUP, IN = "members", "group", "in"
ALONE = ""
"""What ``in`` holds of an approval that left: it is not collected again."""

# Greater than any rev, so that no state of the approval makes the message due.
_IN_SUMMARY = 2**53
_MENTIONED = "asked "
_POSTING = "posting"

_NOTHING: dict[str, str] = {}

_MOST_DISPLAYS = 20_000
_KNOWN = ("at", "rev", "display", "decision")

FORGET_CARD_MESSAGE = Script("forget_card_message")
CARD_SHOWN = Script("card_shown")


class AttachedStore:
    """What lives exactly as long as an approval does, in hashes beside it.

    Args:
        sealing: without it, who can write to the store could say that somebody has seen
            what they have not, and change what a modal decides.
    """

    def __init__(self, sealing: Sealing) -> None:
        self._conn = sealing.conn
        self._sealing = sealing

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


class ReadPageStore(AttachedStore):
    """The pages that reviewers have seen, each with a seal."""

    async def opened_page(
        self, keys: Keys, approval: str, *, reader: str, page: int, pages: int
    ) -> bool:
        """Note that a reviewer saw one page; say whether they have seen them all.

        Args:
            keys: of the approval's tenant.
            approval: its id.
            reader: user, item and action hash, so that an edit starts over.
            page: counted from 0.
            pages: how many there are.
        """
        # A field for each page, so that two requests at once do not overwrite each
        # other.
        name, own = f"{reader} {page}", keys.opened(approval)
        seal = self._sealing.seal(Sealed.PAGE, (own, name), b"")
        await self._attach(keys, approval, own=own, newest={name: seal.hex()})
        return await self.has_opened(keys, approval, reader=reader, pages=pages)

    async def has_opened(
        self, keys: Keys, approval: str, *, reader: str, pages: int
    ) -> bool:
        """Return whether a reviewer has seen every page of an item's full view."""
        own = keys.opened(approval)
        names = [f"{reader} {page}" for page in range(pages)]
        reply = await self._conn.command("HMGET", own, *names)
        found = cast("list[bytes | None]", reply)
        has_all = True
        for name, stored in zip(names, found, strict=True):
            if stored is not None and self._is_ours(own, name, stored):
                continue
            has_all = False
            if stored is not None:
                await self._sealing.refuse(keys, Sealed.PAGE, stored, approval=approval)
        return has_all

    def _is_ours(self, own: str, name: str, stored: bytes) -> bool:
        try:
            seal = bytes.fromhex(stored.decode())
        except ValueError:
            return False
        return self._sealing.is_valid(Sealed.PAGE, (own, name), b"", seal)


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


class CardPlace(Record):
    """The one usable card in a channel: channel and message, and the rev it shows.

    ``decision_digest`` is a digest of what it says that the waiting calls need.
    ``mentioned_roles`` are the names of the roles that were mentioned on it or under
    it. ``copies`` are the direct messages that show it too, by the id of their person.
    ``collected`` is the collected card of which it is the place, "" for a card of its
    own.
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
        """Return who has a copy, in one order."""
        return tuple(sorted(user for user, one in self.copies.items() if one.is_posted))

    @property
    def places(self) -> dict[str, tuple[str, str]]:
        """Return channel and ts of each person's copy."""
        return {
            user: (self.copies[user].channel, self.copies[user].ts)
            for user in self.sent
        }

    @property
    def is_in_summary(self) -> bool:
        """Return whether this is a message about many calls, and no card of its own."""
        return self.rev == _IN_SUMMARY


class CardTrouble(Record):
    """Why a card could not be posted or changed: Slack's word, and in which channel."""

    channel: str
    why: str


class ViewBinding(Record):
    """What an open modal was opened for: a person, an item, a version, a hash.

    ``index`` is None for a batch as a whole, and the hash is then its digest;
    ``place`` is the card it was opened from, ``parent`` the view that it was pushed
    on, and ``staged`` what the person chose in it so far, or what it showed of the
    policy, as the bot wrote it.
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

    def __init__(self, sealing: Sealing) -> None:
        super().__init__(sealing)
        self._displays: dict[str, str] = {}

    def display_of(self, approval: str) -> str:
        """Return the digest of the blocks of a card, as this process last knew it.

        It is what a decision says that its person saw; "" where nothing is known.
        """
        return self._displays.get(approval, "")

    def _note_display(self, approval: str, display_digest: str) -> None:
        if len(self._displays) >= _MOST_DISPLAYS:
            self._displays.clear()
        if display_digest:
            self._displays[approval] = display_digest

    async def place(self, keys: Keys, approval: str) -> CardPlace | None:
        """Return where an approval's card stands; None before it was posted.

        An approval on a collected card has the place of that one.
        """
        found = fields(await self._conn.command("HGETALL", keys.card(approval)))
        collected = "" if "at" in found else text(found.get(IN))
        if collected:
            found = fields(await self._conn.command("HGETALL", keys.card(collected)))
        if "at" not in found:
            return None
        known = {name: readable(found.get(name)) for name in _KNOWN}
        channel, _, ts = known["at"].partition(" ")
        self._note_display(approval, known["display"])
        return CardPlace(
            channel=channel,
            ts=ts,
            rev=rev_of(known["rev"]),
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
        """Note where a card is posted, before it is: a crash may lose the answer."""
        await self._attach(keys, approval, newest={_POSTING: channel})

    async def begun_in(self, keys: Keys, approval: str) -> str:
        """Return the channel of the last `begin_post`; "" for none."""
        return text(await self._conn.command("HGET", keys.card(approval), _POSTING))

    async def posted(
        self, keys: Keys, approval: str, *, channel: str, ts: str
    ) -> CardPlace:
        """Register the first copy of a card; return the usable one.

        A later copy (a lost answer made us post again) never replaces the first.
        """
        place = keys.card_at(channel, ts)
        named = {keys.suffix(place): ""}
        return await self._placed(
            keys, approval, channel, ts, texts=[place], newest=named
        )

    async def _placed(
        self,
        keys: Keys,
        approval: str,
        channel: str,
        ts: str,
        *,
        texts: Sequence[str] = (),
        newest: Mapping[str, str] = _NOTHING,
    ) -> CardPlace:
        first = {"at": f"{channel} {ts}"}
        await self._attach(keys, approval, texts=texts, first=first, newest=newest)
        # Read back: if another bot posted the card first, ours is a surplus copy.
        kept = text(await self._conn.command("HGET", keys.card(approval), "at"))
        kept_channel, _, kept_ts = kept.partition(" ")
        return CardPlace(channel=kept_channel, ts=kept_ts)

    async def forget_place(self, keys: Keys, approval: str) -> None:
        """Forget where a message stands that nobody can see any more."""
        await self._conn.command("DEL", keys.card(approval))

    async def shown_at(self, keys: Keys, channel: str, ts: str) -> str:
        """Return the approval that a message shows; "" for none.

        A surplus copy of a card shows it, too.
        """
        return text(await self._conn.command("GET", keys.card_at(channel, ts)))

    async def shown_in_summary(
        self, keys: Keys, approvals: Sequence[str], channel: str, ts: str
    ) -> None:
        """Note that notifications are told of in one message, which is not their own.

        That message shows no state of them, so no rev ever makes them due again. It is
        found by the last of them alone: it lives as long as that one.
        """
        never = {"rev": str(_IN_SUMMARY)}
        for approval in approvals:
            is_last = approval == approvals[-1]
            place = (
                await self.posted(keys, approval, channel=channel, ts=ts)
                if is_last
                else await self._placed(keys, approval, channel, ts)
            )
            # One that has a card of its own meanwhile keeps that.
            if (place.channel, place.ts) == (channel, ts):
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
        """Remember which rev and decision the card shows, and its blocks' digest.

        A publisher that was paused may show an older rev than another one did in the
        meantime. What the card shows is then not known, so it has to be drawn again.
        With copies, which are drawn after it, it stays listed as missing or old.
        """
        self._note_display(approval, display_digest)
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
        """Return approvals whose card is missing or may be old; soonest gone first."""
        key = keys.outdated
        reply = await self._conn.command("ZRANGE", key, 0, limit - 1)
        return await listed_approvals(self._conn, keys, key, reply)

    async def mark_outdated(self, keys: Keys, *approvals: str) -> None:
        """Note that cards are missing or old, until they are drawn."""
        if not approvals:
            return
        key = keys.outdated
        until_ms = await self._conn.now_ms(key) + KEEP_MS
        rows = [part for one in approvals for part in (until_ms, keys.listed(one))]
        await self._conn.command("ZADD", key, *rows)

    async def unmark(self, keys: Keys, approval: str) -> None:
        """Forget that a card is outdated: nothing on it can be decided."""
        await self._conn.command("ZREM", keys.outdated, keys.listed(approval))

    async def forget_message(
        self, keys: Keys, approval: str, place: tuple[str, str]
    ) -> None:
        """Forget the message that shows an approval; its buttons refuse from now on."""
        await FORGET_CARD_MESSAGE(
            self._conn,
            card=keys.card(approval),
            outdated=keys.outdated,
            approval=approval,
            place=" ".join(place),
            keep_ms=KEEP_MS,
        )

    async def keep_trouble(
        self, keys: Keys, approval: str, trouble: CardTrouble
    ) -> None:
        """Note why a card cannot be posted or changed."""
        noted = {"trouble": trouble.model_dump_json()}
        await self._attach(keys, approval, newest=noted)

    async def trouble(self, keys: Keys, approval: str) -> CardTrouble | None:
        """Return why a card cannot be posted or changed; None when it can."""
        body = text(await self._conn.command("HGET", keys.card(approval), "trouble"))
        return CardTrouble.model_validate_json(body) if body else None

    async def mark_reported(self, keys: Keys, approval: str, what: str) -> None:
        """Note that something about a card was reported to people."""
        noted = {f"told {what}": "1"}
        await self._attach(keys, approval, newest=noted)

    async def was_reported(self, keys: Keys, approval: str, what: str) -> bool:
        """Return whether this about a card was reported to people."""
        reply = await self._conn.command("HEXISTS", keys.card(approval), f"told {what}")
        return bool(reply)

    async def mark_mentioned(
        self, keys: Keys, approval: str, roles: Iterable[str]
    ) -> None:
        """Remember that Slack took a message about a card that mentions these roles."""
        marks = {f"{_MENTIONED}{role}": "1" for role in roles}
        if marks:
            await self._attach(keys, approval, newest=marks)

    async def keep_words(
        self, keys: Keys, approval: str, *, user: str, ts: str, words: str
    ) -> None:
        """Keep what somebody wrote under a card, for the form that they may open."""
        key = keys.draft(approval, user, ts)
        await self._conn.command("SET", key, words, "PX", DRAFT_MS)

    async def kept_words(self, keys: Keys, approval: str, *, user: str, ts: str) -> str:
        """Return what this person wrote under a card; "" when it is not kept."""
        key = keys.draft(approval, user, ts)
        return text(await self._conn.command("GET", key))

    async def bind_view(self, keys: Keys, view_id: str, binding: ViewBinding) -> None:
        """Bind a modal to what it was opened for; the modal itself carries no state.

        It is sealed, because a person's submission decides what it names.
        """
        name, body = keys.view(view_id), binding.model_dump_json().encode()
        sealed = self._sealing.sealed(Sealed.VIEW, (name,), body)
        await self._conn.command("SET", name, sealed, "PX", VIEW_MS)

    async def bound_view(self, keys: Keys, view_id: str) -> ViewBinding | None:
        """Return what a modal was opened for; None when it is none of ours."""
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
        """Return whether a signed request is new; it is remembered from now on.

        ``mine`` names an attempt whose answer nobody got, when it is made again.
        """
        # NX: of two deliveries of one request at the same moment exactly one is the
        # first. Not confirmed by itself: what the request decides comes behind it in
        # the same tenant, and a replica that has that has this.
        mine = mine or secrets.token_bytes(8)
        held = await self._conn.command(
            "SET", keys.nonce(request_digest), mine, "NX", "GET", "PX", NONCE_MS
        )
        # Our own: the connection broke before the answer, and the command came again.
        return held in {None, mine}

    async def takes_effect(self, keys: Keys, request_digest: str, token: str) -> bool:
        """Return whether a signed request may change what it names no version of.

        Where a failover can forget that a request was seen, `is_first` alone lets it
        take effect once more: it may come between that and what the request did. So it
        is kept a second time, and a replica has it before anything else is done.

        Args:
            keys: of the tenant.
            request_digest: of the request.
            token: of this delivery, the same when it is tried again.

        Raises:
            StoreUnavailable: when it is not known to be kept; nothing may be done.
        """
        if not self._conn.confirmed_by:
            return True
        key = keys.nonce(f"{request_digest}:kept")
        try:
            [held] = await self._conn.keep(
                ["SET", key, token, "NX", "GET", "PX", NONCE_MS]
            )
        except NotConfirmed as error:
            # Nothing is recorded that anybody would have to look for.
            raise StoreUnavailable(str(error)) from None
        return held in {None, token.encode()}

    async def forget(self, keys: Keys, request_digest: str) -> None:
        """Let a signed request that came to nothing be new again."""
        names = (request_digest, f"{request_digest}:kept")
        await self._conn.command("DEL", *map(keys.nonce, names))
