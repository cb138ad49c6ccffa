"""Let tests change stored records as a process that has the secret would.

Many tests move a clock, or damage a record, by writing into its head. What they are
about is not the seal, so a record that was sealed before such a write is sealed after
it, too, and no process holds it against the seal that it knew. Forgeries are written
past this, by a connection of their own (see `tests.security`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from twokey.gateway.errors import TwokeyError
from twokey.gateway.store.connection import Argument, Connection, Reply, fields
from twokey.gateway.store.known_records import Lasting
from twokey.gateway.store.record_heads import sealed
from twokey.gateway.store.record_seals import (
    CHECKED,
    CHECKED_SEAL,
    SEAL,
    RecordSeals,
    Stored,
)

_RECORD = re.compile(r"(?P<base>tk:\{s\d+\}:)[ap]:(?P<id>ap_s\d+_[0-9a-f]{32})")
_WRITES = {"HSET", "HDEL", "HINCRBY", "SET"}


def reseal_writes(patch: pytest.MonkeyPatch) -> None:
    """Seal anew what commands that are sent one by one change of a record."""
    command, transaction = Connection.command, Connection.transaction
    is_replayed, replaced = Lasting.is_replayed, set[bytes]()

    def is_replayed_under_our_seals(known: Lasting, rev: int, seal: bytes) -> bool:
        # Either may have been read before the record was sealed anew.
        is_ours = known.seal in replaced or seal in replaced
        return is_replayed(Lasting(known.rev) if is_ours else known, rev, seal)

    async def command_then_seal(conn: Connection, *words: Argument) -> Reply:
        found = await _sealed_ones(transaction, conn, [words])
        reply = await command(conn, *words)
        replaced.update(await _seal(transaction, conn, found))
        return reply

    async def transaction_then_seal(
        conn: Connection, *commands: Sequence[Argument]
    ) -> list[Reply]:
        found = await _sealed_ones(transaction, conn, commands)
        replies = await transaction(conn, *commands)
        replaced.update(await _seal(transaction, conn, found))
        return replies

    patch.setattr(Connection, "command", command_then_seal)
    patch.setattr(Connection, "transaction", transaction_then_seal)
    patch.setattr(Lasting, "is_replayed", is_replayed_under_our_seals)


async def _sealed_ones(
    ask: Any, conn: Connection, commands: Iterable[Sequence[Argument]]
) -> list[tuple[str, str]]:
    """Return which records these commands write to that are sealed now."""
    names = {
        str(one[1])
        for one in commands
        if len(one) > 1 and str(one[0]).upper() in _WRITES
    }
    found = {
        (match["base"], match["id"])
        for name in names
        if (match := _RECORD.fullmatch(name))
    }
    return [one for one in found if await _is_sealed(ask, conn, *one)]


async def _is_sealed(ask: Any, conn: Connection, base: str, approval: str) -> bool:
    stored = await _stored(ask, conn, base, approval)
    try:
        RecordSeals(conn).check(approval, stored)
    except TwokeyError:
        return False
    return SEAL in stored.head


async def _seal(ask: Any, conn: Connection, found: list[tuple[str, str]]) -> set[bytes]:
    """Seal records anew; return the seals that they had."""
    seals, replaced = RecordSeals(conn), set[bytes]()
    for base, approval in found:
        stored = await _stored(ask, conn, base, approval)
        if not stored.head or not stored.pinned:
            continue
        words: list[Argument] = ["HSET", f"{base}a:{approval}"]
        after = sealed(seals, approval, stored)
        words += [SEAL, after.seal]
        if CHECKED in stored.head:
            at = stored.head[CHECKED].decode()
            words += [CHECKED_SEAL, seals.of_moment(approval, CHECKED, at)]
        await ask(conn, words)
        replaced.add(stored.seal)
    return replaced


async def _stored(ask: Any, conn: Connection, base: str, approval: str) -> Stored:
    head, pinned = await ask(
        conn, ["HGETALL", f"{base}a:{approval}"], ["GET", f"{base}p:{approval}"]
    )
    return Stored(fields(head), cast("bytes", pinned or b""))
