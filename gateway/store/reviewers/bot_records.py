"""Records of the bot: installations, delegations, home tabs, checks, and messages."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar, cast

from keyturn.gateway.approvals.events import Event
from keyturn.gateway.approvals.quality_checks import Seeded
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import (
    Argument,
    Command,
    Reply,
    fields,
    milliseconds,
    number,
    text,
)
from keyturn.gateway.store.connection.listed_members import due_now
from keyturn.gateway.store.keys import Keys, tenant_of_approval
from keyturn.gateway.store.sealing.encryption import MARK, decrypted_text, encrypt_text
from keyturn.gateway.store.sealing.sealing import Repository, Sealed, write_if

logger = logging.getLogger(__name__)

STATE_MS = 10 * 60 * 1000
"""Lifetime of a `state`: Slack's code lives as long."""

RENEWING_MS = 60_000
"""Time in which only one process renews a token; longer than its call can take."""


class InstallationStore(Repository):
    """Installations by the id of a workspace, or of an organization.

    A token is the right to act as the bot. So installations are always encrypted, even
    if the store does not encrypt other texts. AES-GCM binds each one to its tenant and
    id: a plain, changed or moved value is refused. An older copy of the same
    installation is accepted, but its token was replaced or revoked, so Slack refuses
    it.
    """

    async def all(self, keys: Keys) -> dict[str, bytes]:
        """Return the stored installations, encrypted.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        return dict(fields(await self._conn.command("HGETALL", keys.installations)))

    async def decrypted(
        self, keys: Keys, installation: str, stored: bytes
    ) -> bytes | None:
        """Return an installation as JSON; None, and a report, for a forged one.

        Raises:
            StoreUnavailable: it may be encrypted with a newer secret.
        """
        with suppress(ValueError):
            if stored.startswith(MARK):  # never plain, as other texts may be
                return decrypted_text(self._conn, _place(keys, installation), stored)
        await self._sealing.refuse(keys, Sealed.INSTALLATION, stored, name=installation)
        return None

    async def write(
        self,
        keys: Keys,
        installation: str,
        body: str,
        event: Event | None,
        *,
        seen: bytes | None = None,
    ) -> bool:
        """Store an installation, or remove it; False if it has changed.

        Args:
            keys: keys of the tenant.
            installation: id of the workspace or organization.
            body: JSON; "" removes the installation.
            event: an audit entry that is written with it.
            seen: the stored value to replace; None replaces any.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        name = keys.installations
        change: list[Argument] = ["HDEL", name, installation]
        if body:
            place = _place(keys, installation)
            text = encrypt_text(self._conn, place, body)
            change = ["HSET", name, installation, text]
        checks = [] if seen is None else [(["HGET", name, installation], seen)]
        audit = [event] if event else []
        return await write_if(self._conn, keys, checks, change, audit=audit)

    async def add_state(self, keys: Keys, state: str) -> None:
        """Remember a state for `STATE_MS`; raises `StoreUnavailable`."""
        await self._conn.command("SET", keys.install_state(state), 1, "PX", STATE_MS)

    async def use_state(self, keys: Keys, state: str) -> bool:
        """Return whether a state may be used; it may be once.

        Raises:
            StoreUnavailable: when the store does not answer; the state is then used.
        """
        return await self._conn.command("DEL", keys.install_state(state)) == 1

    async def begin_renewal(self, keys: Keys, installation: str) -> bool:
        """Return whether this process may renew a token now, and no other one."""
        name = keys.renewing(installation)
        reply = await self._conn.command("SET", name, 1, "NX", "PX", RENEWING_MS)
        return reply is not None


def _place(keys: Keys, installation: str) -> tuple[str, str, str]:
    return Sealed.INSTALLATION, keys.tenant, installation


MOST_DELEGATIONS = 1000
"""Limit of delegating people in a tenant: each decision reads all of them."""


class Delegation(Record):
    """One reviewer's queue delegated to another, by their Slack user ids."""

    user: str
    to: str
    since_ms: int
    until_ms: int


class DelegationStore(Repository):
    """Delegations of all tenants; each person has at most one delegate."""

    async def all(self, keys: Keys) -> tuple[Delegation, ...]:
        """Return the delegations in force by the store's clock."""
        rows, time = await self._conn.transaction(self.reading(keys), ["TIME"])
        return await self.in_force(keys, rows, milliseconds(time))

    def reading(self, keys: Keys) -> Command:
        """Return the command whose reply `in_force` takes."""
        return "HGETALL", keys.delegations

    async def in_force(
        self, keys: Keys, stored: Reply, now_ms: int
    ) -> tuple[Delegation, ...]:
        """Return the result of `all` for the stored hash.

        A corrupt row delegates nothing, and blocks no decision.
        """
        found: list[Delegation] = []
        for user, body in fields(stored).items():
            one = self._opened(keys, user, body)
            is_older = one is not None and self._sealing.is_older(
                _number_of(keys, user), one.since_ms
            )
            if one is not None and not is_older:
                found.append(one)
                continue
            logger.error("delegation.corrupt tenant=%s", keys.tenant)
            await self._sealing.refuse(
                keys, Sealed.DELEGATION, body, is_older=is_older, name=user
            )
        # Ended rows stay in the hash until its next change.
        return tuple(one for one in found if now_ms < one.until_ms)

    async def change(
        self, keys: Keys, user: str, event: Event, *, to: str = "", for_ms: int = 0
    ) -> int | None:
        """Delegate a person's queue, or end its delegation; return the end.

        None if nothing changes: there are `MOST_DELEGATIONS` others, or there was no
        delegation to end.
        """
        key = keys.delegations
        while True:
            rows, now_ms = await self._conn.hash_now(key)
            known = {one: self._opened(keys, one, body) for one, body in rows.items()}
            over = [one for one, row in known.items() if row and row.until_ms <= now_ms]
            left = {*rows} - {*over}
            is_full = len(left - {user}) >= MOST_DELEGATIONS
            if is_full if to else user not in left:
                return None
            until_ms = now_ms + for_ms
            writes: list[list[Argument]] = [["HDEL", key, *over, user]]
            if to:
                row = Delegation(user=user, to=to, since_ms=now_ms, until_ms=until_ms)
                body = row.model_dump_json().encode()
                sealed = self._sealing.sealed(Sealed.DELEGATION, (key, user), body)
                writes.append(["HSET", key, user, sealed])
                # Redis 7.0 has no lifetimes of fields, so the hash has the longest one:
                # GT alone would give none to a new hash.
                writes.append(["PEXPIREAT", key, until_ms, "NX"])
                writes.append(["PEXPIREAT", key, until_ms, "GT"])
            checks = [(["HGET", key, one], rows.get(one, b"")) for one in (*over, user)]
            told = [event]
            if await write_if(
                self._conn, keys, checks, *writes, outbox=told, audit=told
            ):
                # Rows sealed before this moment now count as older.
                self._sealing.is_older(_number_of(keys, user), now_ms + (not to))
                return until_ms

    def _opened(self, keys: Keys, user: str, stored: bytes) -> Delegation | None:
        """Return a row; None if its seal is invalid."""
        place = (keys.delegations, user)
        body = self._sealing.opened(Sealed.DELEGATION, place, stored)
        return Delegation.model_validate_json(body) if body else None


def _number_of(keys: Keys, user: str) -> str:
    """Return the name under which a process remembers the newest row."""
    return f"{keys.delegations} {user}"


OPEN_FOR = timedelta(minutes=10)
"""How long a tab is kept up to date after its last use."""

OPEN_MS = int(OPEN_FOR.total_seconds() * 1000)

_SHOWN = " shown"

T = TypeVar("T", bound=Record)


class HomeTab(Record):
    """One person's tab: time of the last use, and the settings as text.

    ``settings`` belong to the bot, such as a filter; they have no meaning here.
    """

    used_at_ms: int = 0
    settings: str = ""

    @property
    def until_ms(self) -> int:
        """Return the end of its updates."""
        return self.used_at_ms + OPEN_MS


class ShownTab(Record):
    """Content of a tab: Slack's hash of the view, and the bot's hash of the content."""

    view_hash: str = ""
    content: str = ""


class HomeTabStore(Repository):
    """The open Home tabs of all tenants.

    Slack reports when a tab is opened, but not when it is closed. So a tab counts as
    open for a while after its last use.
    """

    async def used(self, keys: Keys, user: str, settings: str = "") -> HomeTab:
        """Record that a person uses their tab, and the settings."""
        key = keys.home_tabs
        now_ms = await self._conn.now_ms(key)
        tab = HomeTab(used_at_ms=now_ms, settings=settings)
        # A separate field: content written by other processes stays.
        await self._conn.transaction(
            ["HSET", key, user, tab.model_dump_json()], ["PEXPIRE", key, OPEN_MS]
        )
        return tab

    async def tab(self, keys: Keys, user: str) -> tuple[HomeTab, ShownTab, int]:
        """Return a person's tab, its content, and the store's clock."""
        found, now_ms = await self._conn.hash_now(keys.home_tabs)
        tab = _read(HomeTab, found.get(user))
        if now_ms >= tab.until_ms:
            tab = HomeTab()
        return tab, _read(ShownTab, found.get(user + _SHOWN)), now_ms

    async def open_tabs(self, keys: Keys, limit: int) -> list[str]:
        """Return users of recently used tabs, latest first; forget the others."""
        key = keys.home_tabs
        rows, now_ms = await self._conn.hash_now(key)
        used: dict[str, int] = {}
        over: list[str] = []
        for name, body in rows.items():
            if name.endswith(_SHOWN):
                continue
            tab = _read(HomeTab, body)
            if now_ms >= tab.until_ms:
                over += [name, name + _SHOWN]
            else:
                used[name] = tab.used_at_ms
        if over:
            await self._conn.command("HDEL", key, *over)
        return sorted(used, key=lambda one: (-used[one], one))[:limit]

    async def forget(self, keys: Keys, user: str) -> None:
        """Stop updating a person's tab until they use it again."""
        key = keys.home_tabs
        await self._conn.command("HDEL", key, user, user + _SHOWN)

    async def shown(self, keys: Keys, user: str, shown: ShownTab) -> None:
        """Record a tab's new content."""
        key = keys.home_tabs
        # With a lifetime: the key may have expired and been created anew.
        await self._conn.transaction(
            ["HSET", key, user + _SHOWN, shown.model_dump_json()],
            ["PEXPIRE", key, OPEN_MS],
        )


def _read(kind: type[T], body: bytes | None) -> T:
    return kind.model_validate_json(body) if body else kind()


_SEEDED_MS = int(timedelta(days=400).total_seconds() * 1000)
_DAY_MS = 86_400_000


class SeededStore(Repository):
    """Seeded defects of all tenants; each tenant has at most one at a time.

    A seeded defect is not an approval. Its key is not read by any claim or decision,
    so a click on its card can never run anything.
    """

    async def read(self, keys: Keys) -> Seeded:
        """Read the stored defect."""
        return _seeded(await self._conn.command("GET", keys.seeded))

    async def note(
        self, keys: Keys, event: Event | None = None, **fields: object
    ) -> bool:
        """Set fields that are empty; False, and no change, if one was set before."""
        key = keys.seeded
        while True:
            stored = cast("bytes", await self._conn.command("GET", key) or b"")
            before = _seeded(stored)
            if any(getattr(before, name) for name in fields):
                return False
            body = before.with_(**fields).model_dump_json()
            if await write_if(
                self._conn,
                keys,
                [(["GET", key], stored)],
                ["SET", key, body, "PX", _SEEDED_MS],
                audit=[event] if event else [],
            ):
                return True

    async def end(self, keys: Keys) -> None:
        """Delete it; the next one gets a new time."""
        await self._conn.command("DEL", keys.seeded)


def _seeded(stored: Reply) -> Seeded:
    return Seeded.model_validate_json(text(stored)) if stored else Seeded()


class SpotCheckCounter(Repository):
    """Number of calls put to each tenant's reviewers, by day (UTC)."""

    async def take(self, keys: Keys, most: int) -> bool:
        """Count one more call for today; False if the limit is reached.

        If the process dies before the call is put to reviewers, the count stays: they
        get fewer calls, never more.
        """
        now_ms = await self._conn.now_ms(keys.outbox)
        key = keys.spot_checks(now_ms // _DAY_MS)
        count, _ = await self._conn.transaction(
            ["INCR", key], ["PEXPIRE", key, 2 * _DAY_MS]
        )
        return number(count) <= most


LOOK = timedelta(days=29)
"""Longest interval between checks of messages: a day less than the retention of an
ended approval, so that one check finds its outcome."""

_MESSAGES_KEPT = timedelta(days=90)
"""How long messages are known after their last check."""

_MOST_MESSAGES = 500
"""Limit of known messages of one approval."""

_ENDED = "="


class Ended(Record, extra="ignore"):
    """How an approval ended.

    Attributes:
        at_ms: time of the end.
        outcome: the outcome in a few words.
        redacted_rev: the approval's revision when its messages were redacted; 0: never.
        is_erased: True if it was erased, so its messages are redacted at once.
    """

    at_ms: int
    outcome: str = ""
    redacted_rev: int = 0
    is_erased: bool = False


@dataclass(frozen=True)
class PostedMessages:
    """An approval's messages with channel and ts, and its outcome."""

    places: tuple[tuple[str, str], ...]
    ended: Ended | None
    now_ms: int


class PostedMessageStore(Repository):
    """Messages of all tenants.

    Messages have to be redacted when their approval and its card's place expire. So
    they have a separate record with a longer lifetime: their places, and the approval's
    outcome. A sorted set has the time of each record's next check.

    The entries are sealed: write access to the store must not be enough to replace
    other messages of the bot, or to change its text. Each check seals them again if the
    secret was replaced, and there is a check at least every `LOOK`.
    """

    async def note(
        self,
        keys: Keys,
        approval: str,
        place: tuple[str, str],
        *,
        kept: timedelta | None,
    ) -> None:
        """Record a posted message, so that it can be redacted later.

        Args:
            keys: keys of the tenant.
            approval: subject of the message; for another one nothing is recorded.
            place: its channel and ts.
            kept: how long messages stay unredacted after the approval has ended; None:
                for ever.
        """
        if kept is None or tenant_of_approval(approval) is None:
            return
        name, at = keys.messages(approval), " ".join(place)
        count, time = await self._conn.transaction(["HLEN", name], ["TIME"])
        if number(count) >= _MOST_MESSAGES:
            logger.error("message.not_noted id=%s", approval)
            return
        first_ms = milliseconds(time) + _ms(min(kept, LOOK))
        seal = self._sealing.keys.make(Sealed.MESSAGE, (name, at), b"")
        await self._conn.keep(
            ["HSET", name, at, seal],
            ["PEXPIRE", name, _ms(_MESSAGES_KEPT)],
            ["ZADD", keys.messages_due, "NX", first_ms, keys.listed(approval)],
        )

    async def due(self, keys: Keys, limit: int) -> list[str]:
        """Return approvals whose messages are due for a check."""
        return await due_now(self._conn, keys.messages_due, limit, keys.unlisted)

    async def read(self, keys: Keys, approval: str) -> PostedMessages:
        """Return an approval's messages; empty if none are known.

        Entries with an invalid seal are reported and deleted.
        """
        name = keys.messages(approval)
        found, now_ms = await self._conn.hash_now(name)
        places: list[tuple[str, str]] = []
        ended: Ended | None = None
        for at, stored in found.items():
            if at == _ENDED:
                body = self._sealing.opened(Sealed.MESSAGE, (name, _ENDED), stored)
                if body is not None:
                    ended = Ended.model_validate_json(body)
                    continue
            place = (Sealed.MESSAGE, (name, at), b"")
            if not self._sealing.keys.is_valid(stored, *place):
                await self._refuse(keys, approval, at, stored)
                continue
            channel, _, ts = at.partition(" ")
            places.append((channel, ts))
            if stored != (seal := self._sealing.keys.make(*place)):
                await self._conn.command("HSET", name, at, seal)
        return PostedMessages(tuple(places), ended, now_ms)

    async def redacted(self, keys: Keys, approval: str, place: tuple[str, str]) -> None:
        """Record that a message needs no more redaction."""
        await self._conn.command("HDEL", keys.messages(approval), " ".join(place))

    async def look_at(
        self, keys: Keys, approval: str, at_ms: int, *, ended: Ended | None = None
    ) -> None:
        """Schedule a check of an approval's messages, and save its outcome."""
        name = keys.messages(approval)
        wrote: list[list[str | int | bytes]] = []
        if ended is not None:
            body = ended.model_dump_json().encode()
            sealed = self._sealing.sealed(Sealed.MESSAGE, (name, _ENDED), body)
            wrote.append(["HSET", name, _ENDED, sealed])
        await self._conn.transaction(
            *wrote,
            ["PEXPIRE", name, _ms(_MESSAGES_KEPT)],
            ["ZADD", keys.messages_due, at_ms, keys.listed(approval)],
        )

    async def erase(self, keys: Keys, approval: str) -> None:
        """Schedule immediate redaction of an erased approval's messages."""
        posted = await self.read(keys, approval)
        if posted.places:
            erased = Ended(at_ms=posted.now_ms, is_erased=True)
            await self.look_at(keys, approval, posted.now_ms, ended=erased)

    async def forget(self, keys: Keys, approval: str) -> None:
        """Stop checking an approval's messages."""
        await self._conn.transaction(
            ["DEL", keys.messages(approval)],
            ["ZREM", keys.messages_due, keys.listed(approval)],
        )

    async def _refuse(
        self, keys: Keys, approval: str, field: str, stored: bytes
    ) -> None:
        evidence = f"{field}=".encode("utf-8", "surrogateescape") + stored
        await self._sealing.refuse(keys, Sealed.MESSAGE, evidence, approval=approval)
        await self._conn.command("HDEL", keys.messages(approval), field)


def _ms(time: timedelta) -> int:
    return int(time.total_seconds() * 1000)


class MovedChannelStore(Repository):
    """Current ids of channels, by their former ids.

    One sealed with an old secret counts as unknown, and is recorded again when a person
    uses a card there.
    """

    async def note(self, keys: Keys, was: str, now: str) -> None:
        """Record that a channel's id has changed.

        Args:
            keys: keys of the tenant.
            was: the former id, which Slack no longer accepts.
            now: the current id.
        """
        name = keys.moved_channels
        sealed = self._sealing.sealed(Sealed.MESSAGE, (name, was), now.encode())
        # Permanent, since the retention of messages is configurable.
        await self._conn.command("HSET", name, was, sealed)

    async def known(self, keys: Keys) -> dict[str, str]:
        """Return the current id of each moved channel, by its former id."""
        name = keys.moved_channels
        found = fields(await self._conn.command("HGETALL", name))
        moved = {
            was: self._sealing.opened(Sealed.MESSAGE, (name, was), stored)
            for was, stored in found.items()
        }
        return {was: now.decode() for was, now in moved.items() if now}
