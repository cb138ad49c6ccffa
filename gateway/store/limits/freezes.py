"""Freezes (kill switches), pauses of agents, and the sealed list of a tenant's freezes.

Deleting a freeze from the store does not lift it. Absence cannot be sealed, so all
freezes of a tenant are in one sealed list with an epoch, a number that rises with each
change. Each process caches the list it last verified. The scripts that start calls
compare the list's seal in the step that writes: if the store has another list, nothing
is written, and the process reads and verifies it. A list with an invalid seal freezes
the whole tenant until people have lifted all freezes. So does a missing list, or one
older than the newest list known to this process or to the audit log.

Pauses of agents are in a separate hash, which a script writes. They only stop new
requests for approval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

from pydantic import Field, ValidationError, model_validator

from keyturn.gateway.approvals.events import BY_GATEWAY, EPOCH, Event
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.store.connection.connection import (
    Argument,
    Connection,
    fields,
    milliseconds,
)
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.sealing.sealing import (
    MARK,
    Check,
    Repository,
    Sealed,
    Sealing,
    write_if,
)
from keyturn.gateway.trust.seals import SEAL_BYTES

_ATTEMPTS = 16
_BUSY = "Others froze or unfroze something at the same time; see what is frozen."


class ScopeKind(StrEnum):
    """Kind of a freeze."""

    TENANT = "tenant"
    AGENT = "agent"
    TOOL = "tool"


class FreezeScope(Record):
    """One agent, one tool, or a whole tenant (without a name)."""

    kind: ScopeKind
    name: str = ""

    @model_validator(mode="after")
    def _named(self) -> FreezeScope:
        if bool(self.name) == (self.kind is ScopeKind.TENANT):
            raise ValueError("an agent or a tool needs its name, a tenant has none.")
        return self

    def __str__(self) -> str:
        """Return the scope's name for people and the store, such as ``tool refund``."""
        return _name_in_store(self.kind, self.name)


class Freeze(Record):
    """A stop with its author, reason and time.

    A pause is set by the gateway and only stops new requests for approval. Calls that
    people authorized before may still run.
    """

    scope: FreezeScope
    by: str
    reason: str
    at_ms: int = 0
    is_pause: bool = False

    @property
    def name(self) -> str:
        """Return its name in the store."""
        return paused(self.scope.name) if self.is_pause else str(self.scope)


Freezes = dict[str, Freeze]
"""Freezes by name."""


def paused(agent: str) -> str:
    """Return the name of an agent's pause in the store."""
    return f"paused {agent}"


# Cached: every click and every starting call needs the names for its tool.
@lru_cache(maxsize=1024)
def names_of(agent: str, *tools: str) -> tuple[str, ...]:
    """Return the names of every freeze that stops these tools of an agent.

    Calls may contain any tool name, even one that cannot be frozen.
    """
    return (
        _name_in_store(ScopeKind.TENANT, ""),
        _name_in_store(ScopeKind.AGENT, agent),
        # Not a `FreezeScope`: a call's tool name may be invalid as a scope.
        *(_name_in_store(ScopeKind.TOOL, tool) for tool in dict.fromkeys(tools)),
    )


def _name_in_store(kind: ScopeKind, name: str) -> str:
    return f"{kind} {name}".rstrip()


_SEAL = slice(len(MARK), len(MARK) + SEAL_BYTES)
_PAUSED = "paused "
_MOVED = "-"
"""Never equal to a seal."""


class FreezeList(Record):
    """The sealed content of a tenant's list of freezes.

    Attributes:
        epoch: rises with each change.
        freezes: freezes by name.
    """

    epoch: int = 0
    freezes: dict[str, Freeze] = Field(default_factory=dict)


class KnownList(NamedTuple):
    """The list that this process last verified.

    Attributes:
        found: its content; empty if it was rejected.
        seal: its seal in hex; empty if there is none.
        is_believed: False freezes everything.
    """

    found: FreezeList
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


class FreezeStore(Repository):
    """Freezes of all tenants, and this process's cache of their lists."""

    def __init__(self, sealing: Sealing) -> None:
        super().__init__(sealing)
        self._known: dict[str, KnownList] = {}
        _OF[sealing.conn] = self

    async def set(self, keys: Keys, freeze: Freeze, event: Event) -> bool:
        """Set a freeze; False, and no change, if it exists already.

        Raises:
            StoreUnavailable: when the result is unknown.
        """

        def added(freezes: Freezes, _: Iterable[str]) -> Freezes | None:
            # The first freeze keeps its author and reason, as announced to people.
            if freezes.get(freeze.name, NOT_BELIEVED) != NOT_BELIEVED:
                return None
            return {**freezes, freeze.name: freeze}

        return await self._change(keys, event, added)

    async def lift(self, keys: Keys, scope: FreezeScope, event: Event) -> bool:
        """Lift a freeze and the pause of an agent; False if there is none.

        Raises:
            StoreUnavailable: when the result is unknown.
        """
        names = [str(scope)]
        if scope.kind is ScopeKind.AGENT:
            names.append(paused(scope.name))

        def left(freezes: Freezes, pauses: Iterable[str]) -> Freezes | None:
            if not {*freezes, *pauses} & {*names}:
                return None
            return {name: one for name, one in freezes.items() if name not in names}

        return await self._change(keys, event, left, lifted=names)

    async def all(self, keys: Keys) -> tuple[Freeze, ...]:
        """Return a tenant's freezes and pauses, oldest first."""
        _, _, pauses, _ = await self._read(keys)
        found = self.in_force(keys, None, pauses)
        return tuple(sorted(found.values(), key=lambda freeze: freeze.at_ms))

    async def _read(self, keys: Keys) -> tuple[bytes, KnownList, dict[str, bytes], int]:
        """Return the list as stored and as verified, the pauses, and the clock."""
        list_, pauses, time = await self._conn.transaction(
            ["GET", sealed_key(keys)], ["HGETALL", keys.frozen], ["TIME"]
        )
        stored = cast("bytes", list_ or b"")
        known = await self.learn(keys, stored)
        return stored, known, fields(pauses), milliseconds(time)

    async def _change(
        self,
        keys: Keys,
        event: Event,
        changed: Callable[[Freezes, Iterable[str]], Freezes | None],
        *,
        lifted: Sequence[str] = (),
    ) -> bool:
        """Replace the list; False if ``changed`` returns None, given all names."""
        key = sealed_key(keys)
        for _ in range(_ATTEMPTS):
            before, known, pauses, now_ms = await self._read(keys)
            listed = dict(known.found.freezes)
            if not known.is_believed:
                # The whole tenant stays frozen until people unfreeze it; adding a
                # freeze must not end that.
                listed = {NOT_BELIEVED.name: NOT_BELIEVED}
            freezes = changed(listed, pauses)
            if freezes is None:
                return False
            after = known.found.with_(freezes=freezes)
            stored, epoch = self.sealed(keys, after, now_ms=now_ms)
            # The epoch in the audit log exposes an older list after a restart.
            told = [event.with_(data={**event.data, EPOCH: str(epoch)})]
            checks: list[Check] = [(["GET", key], before)]
            writes: list[list[Argument]] = [["SET", key, stored]]
            if lifted:
                writes.append(["HDEL", keys.frozen, *lifted])
            if await write_if(
                self._conn, keys, checks, *writes, outbox=told, audit=told
            ):
                await self.learn(keys, stored)
                return True
        raise StoreUnavailable(_BUSY)

    def known(self, keys: Keys) -> KnownList:
        """Return the list that was last verified."""
        return self._known.get(sealed_key(keys), KnownList(FreezeList()))

    def compared(self, keys: Keys, names: Iterable[str]) -> list[str]:
        """Return values for a script to compare: the seal of the list, and pauses.

        If the cached list freezes one of the names, the values match no seal. The
        script then reports a conflict, and the caller reads the freezes again.
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
        """Read the list; reject it if it is older than an epoch."""
        self._sealing.is_older(sealed_key(keys), epoch)
        return await self.refresh(keys)

    async def learn(self, keys: Keys, stored: bytes) -> KnownList:
        """Verify a list that was read; report a rejected one."""
        key, found = sealed_key(keys), FreezeList()
        body = self._sealing.opened(Sealed.FREEZES, (key,), stored) if stored else b"{}"
        if body is not None:
            found = FreezeList.model_validate_json(body)
        is_older = body is not None and self._sealing.is_older(key, found.epoch)
        known = KnownList(found, stored[_SEAL].hex())
        if body is None or is_older:
            known = KnownList(FreezeList(), known.seal, is_believed=False)
        self._known[key] = known
        if not known.is_believed:
            await self._sealing.refuse(keys, Sealed.FREEZES, stored, is_older=is_older)
        return known

    def sealed(
        self, keys: Keys, found: FreezeList, *, now_ms: int
    ) -> tuple[bytes, int]:
        """Return the next list in stored form, and its greater epoch."""
        key = sealed_key(keys)
        # Based on the time, so that it exceeds all epochs even after a rollback.
        epoch = max(found.epoch + 1, self._sealing.newest(key) + 1, now_ms)
        body = found.with_(epoch=epoch).model_dump_json(exclude_defaults=True)
        return self._sealing.sealed(Sealed.FREEZES, (key,), body.encode()), epoch

    def in_force(
        self, keys: Keys, names: Sequence[str] | None, pauses: Mapping[str, bytes]
    ) -> dict[str, Freeze]:
        """Return freezes and pauses by name.

        Args:
            keys: keys of the tenant.
            names: names to return; None for all.
            pauses: pauses of agents in stored form.
        """
        known = self.known(keys)
        listed = known.found.freezes
        wanted = listed if names is None else names
        found = {name: listed[name] for name in wanted if name in listed}
        for name, stored in pauses.items():
            if name.startswith(_PAUSED):
                found[name] = _pause(name, stored)
        if not known.is_believed:
            found[NOT_BELIEVED.name] = NOT_BELIEVED
        return found


_OF: WeakKeyDictionary[Connection, FreezeStore] = WeakKeyDictionary()


def freezes_of(conn: Connection) -> FreezeStore:
    """Return the freezes of the store of a connection."""
    return _OF[conn]


def sealed_key(keys: Keys) -> str:
    """String: the sealed list of a tenant's freezes; scripts derive this key."""
    return f"{keys.frozen}_sealed"


def _pause(name: str, stored: bytes) -> Freeze:
    scope = FreezeScope(kind=ScopeKind.AGENT, name=name.removeprefix(_PAUSED))
    # A pause is not sealed, so only its time is shown.
    at_ms = 0
    with suppress(ValidationError):
        at_ms = Freeze.model_validate_json(stored).at_ms
    reason = "its calls were rejected in a row"
    return Freeze(scope=scope, by=BY_GATEWAY, reason=reason, at_ms=at_ms, is_pause=True)
