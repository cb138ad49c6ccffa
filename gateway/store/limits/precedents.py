"""Store and read precedents: the outcomes of the latest calls with each effect.

Precedents are written in the step that changes a call, and read with the other inputs
of an evaluation, so both need no extra round trip. For each effect and kind, at most
`MOST_KEPT` calls are stored, as long as approvals are. Calls that the policy alone
authorized count in rules for one day, but are stored as long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic_core import from_json

from keyturn.gateway.approvals.precedents import DAY_MS, KINDS, Precedent
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.repeating import precedent_of
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.connection.connection import Connection, Reply, fields, text
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.sealing.sealing import Sealed, Seals

logger = logging.getLogger(__name__)

_ELSEWHERE = {"call", "since_ms", "at_ms"}
_CHANGES = "n"
"""Field with the number of the latest change."""

_STATES = {kind.value: state for state, kind in reversed(KINDS.items())}

Row = tuple[str, str, str | bool, str, int]
"""Key, call, kind or False, body, lifetime: a precedent for scripts to write."""


@dataclass(frozen=True)
class Known:
    """The precedents of one effect at the time of the read.

    Attributes:
        key: their key in the store.
        changes: number of the latest change; "" before the first.
        precedents: newest first.
    """

    key: str
    changes: str = ""
    precedents: tuple[Precedent, ...] = ()


def encrypted_rows(conn: Connection, rows: Iterable[Row]) -> list[Row]:
    """Return rows with their bodies in stored form."""
    return [
        (key, call, kind, body and _stored(conn, key, call, body), keep_ms)
        for key, call, kind, body, keep_ms in rows
    ]


def read(conn: Connection, key: str, found: Mapping[str, bytes]) -> Known:
    """Parse the precedents of one effect; malformed ones are skipped."""
    precedents: list[Precedent] = []
    for call, value in found.items():
        if call == _CHANGES:
            continue
        try:
            at, age, kind, stored = (value.split(b" ", 3) + [b""] * 4)[:4]
            body = Seals(conn).opened_text(Sealed.PRECEDENT, (key, call), stored)
            times = {"since_ms": int(at) - int(age), "at_ms": int(at)}
            if body is None:
                # It can only stop a call, so it counts, without what it contains.
                logger.warning("precedent.unsealed call=%s", call)
            known = from_json(body) if body else {"state": _STATES[text(kind)]}
            one = Precedent.model_validate({**known, "call": call, **times})
        except (KeyError, TypeError, ValueError):
            logger.warning("precedent.unreadable call=%s", call)
            continue
        if one.state in KINDS:
            precedents.append(one)
    precedents.sort(key=lambda one: (one.at_ms, one.call), reverse=True)
    return Known(key, text(found.get(_CHANGES, b"")), tuple(precedents))


def read_all(
    conn: Connection, keys: Sequence[str], replies: Iterable[Reply]
) -> dict[str, Known]:
    """Parse the precedents of several effects, by key."""
    pairs = zip(keys, replies, strict=True)
    return {key: read(conn, key, fields(found)) for key, found in pairs}


def rows_of_change(keys: Keys, before: Approval, after: Approval) -> list[Row]:
    """Return the changed precedents after a change of an approval.

    The bodies are plain; see `encrypted_rows`.
    """
    rows: list[Row] = []
    for was, now in zip(before.items, after.items, strict=True):
        if was is now:
            continue
        old, new = _placed(keys, before, was), _placed(keys, after, now)
        if old == new:
            continue
        if old is not None and (new is None or new[0] != old[0]):
            rows.append((old[0], was.id, False, "", KEEP_MS))
        if new is not None:
            rows.append(_row(*new))
    return rows


def rows_of_opening(keys: Keys, approvals: Iterable[Approval]) -> list[Row]:
    """Return the precedents of new calls that the policy alone authorized."""
    placed = (_placed(keys, one, item) for one in approvals for item in one.items)
    return [_row(*found) for found in placed if found is not None]


def row_of_auto_run(
    keys: Keys, effect: str, call: str, agent: str, args_hash: str
) -> Row:
    """Return the precedent of a call of tier ``auto``, which has no record."""
    # Authorized, with unknown result.
    state = ItemState.AUTHORIZED
    found = Precedent(call=call, state=state, agent=agent, args_hash=args_hash)
    return *_row(keys.precedents(effect), found)[:4], DAY_MS


def seen_precedents(known: Iterable[Known]) -> list[tuple[str, str]]:
    """Return values for a script to compare with the current precedents."""
    return [(one.key, one.changes) for one in known]


def _placed(keys: Keys, approval: Approval, item: Item) -> tuple[str, Precedent] | None:
    found = precedent_of(approval, item)
    if found is None:
        return None
    return keys.precedents(item.effect), found


def body_of(conn: Connection, key: str, what: Precedent) -> str:
    """Return a precedent's body in stored form."""
    return _stored(conn, key, what.call, _json(what))


def _stored(conn: Connection, key: str, call: str, body: str) -> str:
    return Seals(conn).sealed_text(Sealed.PRECEDENT, (key, call), body)


def _json(what: Precedent) -> str:
    return what.model_dump_json(exclude=_ELSEWHERE, exclude_defaults=True)


def _row(key: str, what: Precedent) -> Row:
    return key, what.call, KINDS[what.state].value, _json(what), KEEP_MS
