"""Freezes (kill switches), pauses of agents, and the sealed list of a tenant's freezes.

Deleting a freeze from the store does not lift it. Absence cannot be sealed, so all
freezes of a tenant are in one sealed text with a number that rises with each change
(its epoch). A process keeps the list that it verified last and uses it. The scripts
that let calls start compare its seal in the step that writes: where the store has
another one, nothing is written, and the list is read and verified again. A list that
does not verify, is older than one that this process knew or than the audit log, or is
gone, freezes the whole tenant until people have unfrozen everything.

Pauses of agents, which keep calls from being asked and lift nothing, are not in the
list: a script sets them, in a hash beside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import cast
from weakref import WeakKeyDictionary

from pydantic import Field, ValidationError, model_validator

from keyturn.gateway.approvals.events import BY_GATEWAY, EPOCH, Event
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.audit_seals import event_texts
from keyturn.gateway.store.connection import Connection, fields, milliseconds, text
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.sealing import MARK, Sealed, Sealing
from keyturn.gateway.trust.seals import SEAL_BYTES

FREEZE = Script("freeze")

_ATTEMPTS = 16
_BUSY = "Others froze or unfroze something at the same time; see what is frozen."


class ScopeKind(StrEnum):
    """What can be frozen."""

    TENANT = "tenant"
    AGENT = "agent"
    TOOL = "tool"


class FreezeScope(Record):
    """One agent, one tool, or everything of a tenant (then without a name)."""

    kind: ScopeKind
    name: str = ""

    @model_validator(mode="after")
    def _named(self) -> FreezeScope:
        if bool(self.name) == (self.kind is ScopeKind.TENANT):
            raise ValueError("an agent or a tool needs its name, a tenant has none.")
        return self

    def __str__(self) -> str:
        """Return the words for people and for the store, such as ``tool refund``."""
        return _name_in_store(self.kind, self.name)


class Freeze(Record):
    """Who stopped what, why and when.

    A pause is set by the gateway itself and keeps only new calls from being asked;
    what people authorized before may still run.
    """

    scope: FreezeScope
    by: str
    reason: str
    at_ms: int = 0
    is_pause: bool = False

    @property
    def name(self) -> str:
        """Return the name under which the store keeps it."""
        return paused(self.scope.name) if self.is_pause else str(self.scope)


def paused(agent: str) -> str:
    """Return the name under which an agent's pause stands."""
    return f"paused {agent}"


# Remembered: each click and each call that starts asks for those of its tool.
@lru_cache(maxsize=1024)
def names_of(agent: str, *tools: str) -> tuple[str, ...]:
    """Return the names of every freeze that stops these tools of an agent.

    A call may name anything, also what nobody can freeze.
    """
    return (
        _name_in_store(ScopeKind.TENANT, ""),
        _name_in_store(ScopeKind.AGENT, agent),
        # Plain text and no `FreezeScope`: what a call names need not be a name that
        # people can freeze.
        *(_name_in_store(ScopeKind.TOOL, tool) for tool in dict.fromkeys(tools)),
    )


def _name_in_store(kind: ScopeKind, name: str) -> str:
    return f"{kind} {name}".rstrip()


class FreezeStore:
    """Freezes of all tenants."""

    def __init__(self, conn: Connection, lists: FreezeLists) -> None:
        self._conn = conn
        self._lists = lists

    async def set(self, keys: Keys, freeze: Freeze, event: Event) -> bool:
        """Set a freeze; False when it stands already, and then nothing changes.

        Raises:
            StoreUnavailable: when it is not known to be set.
        """
        for _ in range(_ATTEMPTS):
            known, _, now_ms = await self._read(keys)
            freezes = _frozen(known)
            # The first freeze keeps its author and reason, which people are told.
            if freezes.get(freeze.name, NOT_BELIEVED) != NOT_BELIEVED:
                return False
            freezes[freeze.name] = freeze
            if await self._write(keys, known, freezes, now_ms, [], event):
                return True
        raise StoreUnavailable(_BUSY)

    async def lift(self, keys: Keys, scope: FreezeScope, event: Event) -> bool:
        """Lift a freeze and the pause of an agent; False when there is none.

        Raises:
            StoreUnavailable: when it is not known to be lifted.
        """
        names = [str(scope)]
        if scope.kind is ScopeKind.AGENT:
            names.append(paused(scope.name))
        for _ in range(_ATTEMPTS):
            known, pauses, now_ms = await self._read(keys)
            freezes = _frozen(known)
            if not {*freezes, *pauses} & {*names}:
                return False
            left = {name: one for name, one in freezes.items() if name not in names}
            if await self._write(keys, known, left, now_ms, names, event):
                return True
        raise StoreUnavailable(_BUSY)

    async def all(self, keys: Keys) -> tuple[Freeze, ...]:
        """Return everything that is frozen or paused of a tenant, oldest first."""
        _, pauses, _ = await self._read(keys)
        found = self._lists.in_force(keys, None, pauses)
        return tuple(sorted(found.values(), key=lambda freeze: freeze.at_ms))

    async def _read(self, keys: Keys) -> tuple[KnownList, dict[str, bytes], int]:
        stored, pauses, time = await self._conn.transaction(
            ["GET", sealed_key(keys)], ["HGETALL", keys.frozen], ["TIME"]
        )
        known = await self._lists.learn(keys, cast("bytes", stored or b""))
        return known, fields(pauses), milliseconds(time)

    async def _write(
        self,
        keys: Keys,
        known: KnownList,
        freezes: dict[str, Freeze],
        now_ms: int,
        removed: list[str],
        event: Event,
    ) -> bool:
        after = known.found.with_(freezes=freezes)
        stored, epoch = self._lists.sealed(keys, after, now_ms=now_ms)
        # The audit log names the list, so that a later start finds an older one.
        told = event.with_(data={**event.data, EPOCH: str(epoch)})
        reply = await FREEZE(
            self._conn,
            frozen=keys.frozen,
            outbox=keys.outbox,
            audit=keys.audit,
            before=known.seal,
            after=stored,
            removed=json.dumps(removed),
            events=event_texts(self._conn, keys, [told]),
        )
        if text(reply[0]) != "done":
            return False
        await self._lists.learn(keys, stored)
        return True


def _frozen(known: KnownList) -> dict[str, Freeze]:
    """Return the freezes to go on from.

    Where the list is not believed, everything stays frozen until people unfreeze it:
    freezing one thing more must not end that.
    """
    if not known.is_believed:
        return {NOT_BELIEVED.name: NOT_BELIEVED}
    return dict(known.found.freezes)


_SEAL = slice(len(MARK), len(MARK) + SEAL_BYTES)
_PAUSED = "paused "
_PAUSE_REASON = re.compile(r"[0-9]{1,6} of its calls were rejected in a row", re.ASCII)
_MOVED = "-"
"""Compared with a seal, it never equals one."""


class FreezeList(Record):
    """What is sealed of a tenant's freezes of one tenant.

    Attributes:
        epoch: rises with each change.
        freezes: by name.
    """

    epoch: int = 0
    freezes: dict[str, Freeze] = Field(default_factory=dict)


@dataclass(frozen=True)
class KnownList:
    """A list as this process verified it last.

    Attributes:
        found: what it says; empty where it is not believed.
        seal: its seal in hexadecimal digits; empty where there is none.
        is_believed: False freezes everything.
    """

    found: FreezeList = field(default_factory=FreezeList)
    seal: str = ""
    is_believed: bool = True


NOT_BELIEVED = Freeze(
    scope=FreezeScope(kind=ScopeKind.TENANT),
    by=BY_GATEWAY,
    reason=(
        "the list of freezes in the store is missing, changed or older than the audit "
        "log; the operator of Keyturn freezes again what must stay frozen, and then "
        "confirms by 'keyturn unfreeze everything'"
    ),
)


class FreezeLists:
    """The lists of all tenants, as far as this process has looked at them.

    Args:
        conn: to the store.
        sealing: of the lists.
    """

    def __init__(self, conn: Connection, sealing: Sealing) -> None:
        self._conn = conn
        self._sealing = sealing
        self._known: dict[str, KnownList] = {}
        _OF[conn] = self

    def known(self, keys: Keys) -> KnownList:
        """Return the list that was verified last."""
        return self._known.get(sealed_key(keys), KnownList())

    def compared(self, keys: Keys, names: Iterable[str]) -> list[str]:
        """Return what a script compares: the seal of a list without these, and pauses.

        A list that has one of them is named by no seal, so the script finds that
        something moved, and who asked reads again what is frozen.
        """
        wanted, known = list(names), self.known(keys)
        if not wanted:
            return []
        is_frozen = not known.is_believed or any(
            one in known.found.freezes for one in wanted
        )
        pauses = [one for one in wanted if one.startswith(_PAUSED)]
        return [_MOVED if is_frozen else known.seal, *pauses]

    async def refresh(self, keys: Keys) -> KnownList:
        """Read the list and verify it."""
        stored = await self._conn.command("GET", sealed_key(keys))
        return await self.learn(keys, cast("bytes", stored or b""))

    async def compare(self, keys: Keys, epoch: int) -> KnownList:
        """Read the list, which is not believed if it is older than an epoch."""
        self._sealing.is_older(sealed_key(keys), epoch)
        return await self.refresh(keys)

    async def learn(self, keys: Keys, stored: bytes) -> KnownList:
        """Verify a list that was read; report one that is not believed."""
        key = sealed_key(keys)
        known = self._verified(key, stored)
        self._known[key] = known
        if not known.is_believed:
            is_older = self._sealing.opened(Sealed.FREEZES, (key,), stored) is not None
            await self._sealing.refuse(
                keys, Sealed.FREEZES, stored, is_older=is_older or not stored
            )
        return known

    def _verified(self, key: str, stored: bytes) -> KnownList:
        seal = stored[_SEAL].hex()
        body = self._sealing.opened(Sealed.FREEZES, (key,), stored) if stored else b""
        if body is None:
            return KnownList(seal=seal, is_believed=False)
        found = FreezeList.model_validate_json(body) if body else FreezeList()
        is_believed = not self._sealing.is_older(key, found.epoch)
        if not is_believed:
            found = FreezeList()
        return KnownList(found, seal, is_believed)

    def sealed(
        self, keys: Keys, found: FreezeList, *, now_ms: int
    ) -> tuple[bytes, int]:
        """Return the next list as it is stored, and its epoch, which is greater."""
        key = sealed_key(keys)
        # By the time, so that one that is made after a rollback is above those before.
        epoch = max(found.epoch + 1, self._sealing.newest(key) + 1, now_ms)
        body = found.with_(epoch=epoch).model_dump_json(exclude_defaults=True)
        return self._sealing.sealed(Sealed.FREEZES, (key,), body.encode()), epoch

    def in_force(
        self, keys: Keys, names: Sequence[str] | None, pauses: Mapping[str, bytes]
    ) -> dict[str, Freeze]:
        """Return what is frozen or paused, by name.

        Args:
            keys: of the tenant.
            names: which are asked for; None for all.
            pauses: of agents, as they are stored.
        """
        known = self.known(keys)
        listed = known.found.freezes
        wanted = listed if names is None else names
        found = {name: listed[name] for name in wanted if name in listed}
        for name, stored in pauses.items():
            if name.startswith(_PAUSED) and len(name) > len(_PAUSED):
                found[name] = _pause(name, stored)
        if not known.is_believed:
            found[NOT_BELIEVED.name] = NOT_BELIEVED
        return found


_OF: WeakKeyDictionary[Connection, FreezeLists] = WeakKeyDictionary()


def freeze_lists(conn: Connection) -> FreezeLists:
    """Return the lists of the store that a connection belongs to."""
    return _OF[conn]


def compared(conn: Connection, keys: Keys, names: Iterable[str]) -> list[str]:
    """Return what a script compares, see `FreezeLists.compared`."""
    return freeze_lists(conn).compared(keys, names)


def sealed_key(keys: Keys) -> str:
    """String: the sealed list of a tenant's freezes; scripts derive it."""
    return f"{keys.frozen}_sealed"


def _pause(name: str, stored: bytes) -> Freeze:
    agent = name.removeprefix(_PAUSED)
    scope = FreezeScope(kind=ScopeKind.AGENT, name=agent)
    reason, at_ms = "its calls were rejected in a row", 0
    with suppress(ValidationError):
        kept = Freeze.model_validate_json(stored)
        # The words are the gateway's, or none are told.
        if kept.by == BY_GATEWAY and _PAUSE_REASON.fullmatch(kept.reason):
            reason, at_ms = kept.reason, kept.at_ms
    return Freeze(scope=scope, by=BY_GATEWAY, reason=reason, at_ms=at_ms, is_pause=True)
