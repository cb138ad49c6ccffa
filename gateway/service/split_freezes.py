"""Freeze in every shard of a tenant that is split by agent, and lift it in each.

Neither is acknowledged before every shard has it. Where one does not answer, the others
have the change, the person is told that it is incomplete, and `spread`, which every
gateway calls all the time, makes it wherever it is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from twokey.gateway.approvals.events import Event
from twokey.gateway.errors import FreezeIncomplete, StoreUnavailable
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.freeze_changes import FreezeChange, PartFreezes
from twokey.gateway.store.freezes import Freeze, FreezeScope, ScopeKind, paused
from twokey.gateway.store.keys import Keys

logger = logging.getLogger(__name__)

# Each attempt that fails had somebody else's change of the same freeze in between.
_ATTEMPTS = 8

# Together less than Slack waits for a command: a shard that hangs must not keep a
# freeze from the others.
_READ_S, _APPLY_S = 0.6, 1.2

Found = TypeVar("Found")


@dataclass(frozen=True)
class IncompleteFreeze:
    """A freeze, or its end, that some shards have and others lack.

    Attributes:
        name: what is frozen, such as ``tool refund``.
        is_set: whether it was frozen; False where it was unfrozen.
        lacking: the shards that answer and lack it.
    """

    name: str
    is_set: bool
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class FreezesSeen:
    """What is frozen or paused, as far as shards answer.

    Attributes:
        freezes: of any shard, oldest first.
        incomplete: what has not reached every shard.
        away: the shards that do not answer.
        parts: how many shards the tenant has.
    """

    freezes: tuple[Freeze, ...]
    incomplete: tuple[IncompleteFreeze, ...] = ()
    away: tuple[str, ...] = ()
    parts: int = 1


class SplitFreezes(TenantService):
    """The freezes of one tenant that is split."""

    async def set(self, freeze: Freeze, event: Event) -> bool:
        """Stop something; False when it is frozen already, in every shard by then.

        Raises:
            FreezeIncomplete: some shards have it, and not every one.
            StoreUnavailable: when it is not known to be in any.
        """
        return await self._change(freeze.scope, freeze, event)

    async def lift(self, scope: FreezeScope, event: Event) -> bool:
        """Let something run again; False when nothing stopped it.

        Raises:
            FreezeIncomplete: it is lifted in some shards, and not in every one.
            StoreUnavailable: when it is not known to be lifted in any.
        """
        return await self._change(scope, None, event)

    async def look(self) -> FreezesSeen:
        """Return what is frozen or paused in any shard, and what is incomplete.

        Raises:
            StoreUnavailable: when no shard answers.
        """
        parts = await self._read_some()
        incomplete = _incomplete(parts)
        if incomplete:
            # A change that is made now reaches one shard after the other.
            parts = await self._read_some()
            before = {(one.name, one.is_set) for one in incomplete}
            incomplete = [
                one for one in _incomplete(parts) if (one.name, one.is_set) in before
            ]
        found: dict[str, Freeze] = {}
        for part in parts.values():
            for name, one in part.frozen.items():
                found.setdefault(name, one)
        return FreezesSeen(
            freezes=tuple(sorted(found.values(), key=lambda one: one.at_ms)),
            incomplete=tuple(incomplete),
            away=tuple(sorted(one.shard for one in self._parts if one not in parts)),
            parts=len(self._parts),
        )

    async def _read_some(self) -> dict[Keys, PartFreezes]:
        parts = await self._read()
        if not parts:
            raise StoreUnavailable("No shard of the store answers.")
        return parts

    async def spread(self) -> None:
        """Make the newest change of each freeze in every shard that lacks it.

        A shard that does not answer is passed over.
        """
        parts = await self._read()
        for name in {name for part in parts.values() for name in part.changes}:
            newest = _newest(parts.values(), name)
            for keys, part in parts.items():
                if newest is not None and part.changes.get(name) != newest:
                    await self._spread_to(keys, newest)

    async def _spread_to(self, keys: Keys, change: FreezeChange) -> None:
        try:
            await self._apply(keys, change)
        except StoreUnavailable as error:
            logger.warning("freeze.incomplete shard=%s error=%s", keys.shard, error)
        else:
            logger.warning("freeze.spread shard=%s name=%r", keys.shard, change.name)

    async def _change(
        self, scope: FreezeScope, freeze: Freeze | None, event: Event
    ) -> bool:
        for _ in range(_ATTEMPTS):
            parts = await self._read_some()
            change, is_new = self._made(parts, scope, freeze, event)
            if change is None:
                return False
            replies = await asyncio.gather(
                *(self._apply(keys, change) for keys in self._parts),
                return_exceptions=True,
            )
            missing = [
                keys.shard
                for keys, reply in zip(self._parts, replies, strict=True)
                if isinstance(reply, StoreUnavailable)
            ]
            for reply in replies:
                if isinstance(reply, BaseException) and not isinstance(
                    reply, StoreUnavailable
                ):
                    raise reply
            if "older" in replies:
                continue
            if len(missing) == len(self._parts):
                raise StoreUnavailable("No shard of the store took the change.")
            if missing:
                raise FreezeIncomplete(
                    str(scope), missing, len(self._parts), is_set=freeze is not None
                )
            return is_new
        raise StoreUnavailable(
            f"Others froze or unfroze {scope} at the same time; see what is frozen, "
            "and try again."
        )

    def _made(
        self,
        parts: Mapping[Keys, PartFreezes],
        scope: FreezeScope,
        freeze: Freeze | None,
        event: Event,
    ) -> tuple[FreezeChange | None, bool]:
        """Return the change to make, and whether it is one; None: there is nothing."""
        name = str(scope)
        pause = paused(scope.name) if scope.kind is ScopeKind.AGENT else ""
        newest = _newest(parts.values(), name)
        stands = newest is not None and newest.freeze is not None
        # The first freeze keeps its author and reason, which people are told.
        if freeze is not None and stands:
            return newest, False
        is_paused = any(pause in part.frozen for part in parts.values())
        if freeze is None and not (stands or is_paused):
            # Made again: one that was lifted in some shards alone ends in all of them.
            return newest, False
        at_ms = max(part.now_ms for part in parts.values())
        before: tuple[tuple[int, str], ...] = ()
        if newest is not None:
            # Later than what it follows, whatever the clocks of the shards say.
            at_ms = max(at_ms, newest.at_ms + 1)
            own = parts.get(self._parts[0])
            is_told = own is not None and own.changes.get(name) == newest
            before = () if is_told else newest.events
        told = (*before, (at_ms, event.model_dump_json(exclude_defaults=True)))
        stopped = freeze.with_(at_ms=at_ms) if freeze else None
        change = FreezeChange(
            name=name, at_ms=at_ms, freeze=stopped, pause=pause, events=told
        )
        return change, True

    async def _read(self) -> dict[Keys, PartFreezes]:
        """Return what the shards have that answer."""
        replies = await asyncio.gather(
            *(
                _in_time(self._store.freeze_changes.read(one, self._tenant), _READ_S)
                for one in self._parts
            ),
            return_exceptions=True,
        )
        found: dict[Keys, PartFreezes] = {}
        for keys, reply in zip(self._parts, replies, strict=True):
            if isinstance(reply, PartFreezes):
                found[keys] = reply
            elif not isinstance(reply, StoreUnavailable):
                raise reply
        return found

    async def _apply(self, keys: Keys, change: FreezeChange) -> str:
        # What there is to tell is told once: by the tenant's own shard.
        applied = self._store.freeze_changes.apply(
            keys, self._tenant, change, is_told=keys is self._parts[0]
        )
        return await _in_time(applied, _APPLY_S)


async def _in_time(asked: Awaitable[Found], within_s: float) -> Found:
    """Wait for a shard, and for one that hangs no longer than others can wait."""
    try:
        async with asyncio.timeout(within_s):
            return await asked
    except TimeoutError:
        raise StoreUnavailable(f"There was no answer within {within_s} s.") from None


def _incomplete(parts: Mapping[Keys, PartFreezes]) -> list[IncompleteFreeze]:
    found: list[IncompleteFreeze] = []
    for name in sorted({name for part in parts.values() for name in part.changes}):
        newest = _newest(parts.values(), name)
        is_set = newest is not None and newest.freeze is not None
        # By what it stops, and not by the change: how a freeze ended is not kept for
        # ever, and a shard without it that stops nothing lacks nothing.
        lacking = sorted(
            keys.shard
            for keys, part in parts.items()
            if (name in part.frozen) != is_set
        )
        if lacking:
            found.append(IncompleteFreeze(name, is_set, tuple(lacking)))
    return found


def _newest(parts: Iterable[PartFreezes], name: str) -> FreezeChange | None:
    found = [part.changes[name] for part in parts if name in part.changes]
    return max(found, key=lambda one: one.order, default=None)
