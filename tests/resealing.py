"""Let tests change stored records like a process that has the secret.

Many tests move a clock, or damage a record, by writing into its head. They are not
about the seal, so a record that was sealed before such a write is sealed after it, too,
and no process compares it with the earlier seal. Forgeries are written without this, by
a separate connection (see `tests.security`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import pytest

from keyturn.gateway.errors import KeyturnError
from keyturn.gateway.store.connection.connection import (
    Argument,
    Connection,
    Reply,
    fields,
)
from keyturn.gateway.store.records.approvals import Lasting
from keyturn.gateway.store.records.codec import (
    CHECKED,
    CHECKED_SEAL,
    SEAL,
    RecordSeals,
    Stored,
)

_RECORD = re.compile(r"(?P<base>tk:\{[^}]+\}:)[ap]:(?P<id>ap_[\w-]+_[0-9a-f]{32})")
_WRITES = {"HSET", "HDEL", "HINCRBY", "SET"}


class _Name(NamedTuple):
    """Of a record: what its keys begin with, and its id."""

    base: str
    approval: str

    @property
    def head(self) -> bytes:
        return f"{self.base}a:{self.approval}".encode()

    @property
    def document(self) -> bytes:
        return f"{self.base}p:{self.approval}".encode()


def reseal_writes(patch: pytest.MonkeyPatch) -> None:
    """Seal anew what commands that are sent one by one change of a record."""
    command, transaction = Connection.command, Connection.transaction
    is_replayed, replaced = Lasting.is_replayed, set[bytes]()

    def is_replayed_under_our_seals(known: Lasting, rev: int, seal: bytes) -> bool:
        # Either may have been read before the record was sealed anew.
        is_ours = known.seal in replaced or seal in replaced
        return is_replayed(Lasting(known.rev) if is_ours else known, rev, seal)

    async def command_and_seal(conn: Connection, *words: Argument) -> Reply:
        if not (found := await _sealed_ones(transaction, conn, [words])):
            return await command(conn, *words)
        return (await write(conn, [words], found))[0]

    async def transaction_and_seal(
        conn: Connection, *commands: Sequence[Argument]
    ) -> list[Reply]:
        if not (found := await _sealed_ones(transaction, conn, commands)):
            return await transaction(conn, *commands)
        return await write(conn, commands, found)

    async def write(
        conn: Connection,
        commands: Sequence[Sequence[Argument]],
        found: Mapping[_Name, Stored],
    ) -> list[Reply]:
        replaced.update(one.seal for one in found.values())
        # In one step: a worker that reads in between would find a forgery.
        seals = [
            _sealing(conn, name, _after(stored, name, commands))
            for name, stored in found.items()
        ]
        replies = await transaction(conn, *commands, *(one for one in seals if one))
        for name in found:
            now = await _stored(transaction, conn, name)
            # If something else was written in between.
            if not _is_sealed(conn, name, now) and (again := _sealing(conn, name, now)):
                await transaction(conn, again)
        return replies[: len(commands)]

    patch.setattr(Connection, "command", command_and_seal)
    patch.setattr(Connection, "transaction", transaction_and_seal)
    patch.setattr(Lasting, "is_replayed", is_replayed_under_our_seals)


async def _sealed_ones(
    ask: Any, conn: Connection, commands: Iterable[Sequence[Argument]]
) -> dict[_Name, Stored]:
    """Return the records that these commands write to and that are sealed now."""
    names = {
        str(one[1])
        for one in commands
        if len(one) > 1 and str(one[0]).upper() in _WRITES
    }
    found = {
        _Name(match["base"], match["id"])
        for name in names
        if (match := _RECORD.fullmatch(name))
    }
    stored = {name: await _stored(ask, conn, name) for name in found}
    return {name: one for name, one in stored.items() if _is_sealed(conn, name, one)}


def _is_sealed(conn: Connection, name: _Name, stored: Stored) -> bool:
    try:
        RecordSeals(conn).check(name.approval, stored)
    except KeyturnError:
        return False
    return SEAL in stored.head


def _after(
    stored: Stored, name: _Name, commands: Iterable[Sequence[Argument]]
) -> Stored:
    """Return a record as it is after these commands."""
    head, document = dict(stored.head), stored.document
    for verb, key, *rest in (map(_text, one) for one in commands):
        if key == name.head and verb == b"HSET":
            head |= {
                one.decode(): new
                for one, new in zip(rest[::2], rest[1::2], strict=True)
            }
        elif key == name.head and verb == b"HDEL":
            head = {one: old for one, old in head.items() if one.encode() not in rest}
        elif key == name.head and verb == b"HINCRBY":
            field, by = rest
            head[field.decode()] = _text(int(head.get(field.decode(), 0)) + int(by))
        elif key == name.document and verb == b"SET":
            document = rest[0]
    return Stored(head, document)


def _text(one: Argument) -> bytes:
    return one if isinstance(one, bytes) else str(one).encode()


def _sealing(conn: Connection, name: _Name, stored: Stored) -> list[Argument]:
    """Return the command that seals a record; empty where there is none."""
    if not stored.head or not stored.document:
        return []
    seals = RecordSeals(conn)
    words: list[Argument] = ["HSET", name.head.decode()]
    words += [SEAL, seals.of(name.approval, stored)]
    if CHECKED in stored.head:
        at = stored.head[CHECKED].decode()
        words += [CHECKED_SEAL, seals.of_moment(name.approval, CHECKED, at)]
    return words


async def _stored(ask: Any, conn: Connection, name: _Name) -> Stored:
    head, document = await ask(
        conn, ["HGETALL", name.head.decode()], ["GET", name.document.decode()]
    )
    return Stored(fields(head), cast("bytes", document or b""))
