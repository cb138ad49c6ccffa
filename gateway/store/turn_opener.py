"""Open the approvals of a turn, sealed as they are stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import cast

from pydantic_core import to_json

from twokey.gateway.approvals.events import Event
from twokey.gateway.approvals.record import Approval
from twokey.gateway.protocol import digest
from twokey.gateway.store import codec, run_list, turn_opening
from twokey.gateway.store.agent_load import ASKED_MS
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.audit_seals import event_texts
from twokey.gateway.store.connection import Argument, Reply, number, text
from twokey.gateway.store.freeze_list import compared
from twokey.gateway.store.keys import KEEP_MS, Keys
from twokey.gateway.store.known_records import KnownRecords
from twokey.gateway.store.listed_members import ListedMembers
from twokey.gateway.store.packing import packed
from twokey.gateway.store.pending import PendingIndex
from twokey.gateway.store.precedents import (
    encrypted_rows,
    rows_of_opening,
    seen_precedents,
)
from twokey.gateway.store.script import Script
from twokey.gateway.store.server_clocks import ServerClocks
from twokey.gateway.store.turn_opening import OpenedTurn, Place, Preconditions
from twokey.gateway.store.windows import as_rows

OPEN = Script("open", is_fenced=True)


class TurnOpener:
    """Opens approvals in all shards.

    Args:
        members: reads lists of the server.
        known: what this process knows of approvals.
        load: reads one.
    """

    def __init__(
        self,
        members: ListedMembers,
        known: KnownRecords,
        load: Callable[[str], Awaitable[Loaded | None]],
    ) -> None:
        self._conn = members.conn
        self._known = known
        self._load = load
        self._pending = PendingIndex(members)
        self._clocks = ServerClocks()

    async def open(
        self,
        keys: Keys,
        turn_key: str,
        approvals: Sequence[Approval],
        *,
        verdicts: bytes,
        events: Sequence[Event],
        thread: tuple[str, str],
        preconditions: Preconditions,
    ) -> OpenedTurn | None:
        """Store the approvals of one turn, their events and the verdicts, once.

        Args:
            keys: of the tenant's shard.
            turn_key: the same for every submit of this turn.
            approvals: new records; their times are set here.
            verdicts: to answer this turn with again; see `open.lua`.
            events: what to announce.
            thread: agent and thread id.
            preconditions: what must not have changed meanwhile.

        Returns:
            None when something moved since the calls were evaluated: evaluate them
            again.
        """
        # Before the script, not in it: an agent that is listed without anything pending
        # costs one look, one that is pending without being listed is never shown to
        # reviewers.
        if approvals:
            await self._pending.add(keys, preconditions.tenant, thread[0])
        stored = [codec.new(one) for one in approvals]
        encryption = self._known.seals.encryption
        kept = [
            encryption.opening(one.id, packed(new.pinned))
            for one, new in zip(approvals, stored, strict=True)
        ]
        pinned = [text for text, _ in kept]
        standing = await self._standing_rows(preconditions.standing)
        if standing is None:
            return None
        run = keys.run(preconditions.tenant, preconditions.run_ref)
        turn = keys.turn(turn_key)
        values: dict[str, Argument | Sequence[Argument]] = {
            "turn": turn,
            "run": run,
            "expiry": keys.expiry,
            "outbox": keys.outbox,
            "audit": keys.audit,
            "reservation": _reservation(keys, turn_key, preconditions),
            "frozen": keys.frozen(preconditions.tenant),
            "waiting": keys.waiting(preconditions.tenant, thread[0]),
            "requests_10m": keys.requests_10m(preconditions.tenant, thread[0]),
            "rejected": keys.rejected(preconditions.tenant, *thread),
            "timers": keys.timers,
            "outdated": keys.outdated(preconditions.tenant),
            "queue_groups": keys.queue_groups(preconditions.tenant),
            "first": keys.head(keys.first_of_turn(turn_key)),
            "records": [
                key
                for one in approvals
                for key in (keys.head(one.id), keys.pinned(one.id))
            ],
            "keep_ms": KEEP_MS,
            "verdicts": verdicts,
            "events": event_texts(
                self._conn, keys, events, of=[one.id for one in approvals], rev=1
            ),
            "names": _rows(compared(self._conn, keys, *preconditions.unfrozen)),
            "limits": _limits(preconditions.waiting, preconditions.requests_10m),
            "counted": as_rows(preconditions.counted),
            "refused": as_rows(preconditions.refused),
            "is_reserved": bool(preconditions.reserved),
            "precedents": _rows(
                encrypted_rows(
                    self._conn,
                    [*rows_of_opening(keys, approvals), *preconditions.auto_runs],
                )
            ),
            "seen": _rows(seen_precedents(preconditions.known)),
            "standing": _rows(standing),
            "shared": _encoded(
                {
                    digest.to_raw(name).hex(): body
                    for one in stored
                    for name, body in one.shared.items()
                }
            ),
            "not_rejected": _rows([*preconditions.not_rejected]),
            "pinned": pinned,
        }
        of_turn = turn if verdicts else ""

        async def write() -> list[Reply]:
            known_ms = self._clocks.now_ms(keys.shard)
            created_ms = max(known_ms, preconditions.now_ms)
            place = Place(keys, run, of_turn, created_ms)
            rows = [
                turn_opening.row(self._known.seals, place, *each, preconditions.held)
                for each in zip(approvals, stored, kept, strict=True)
            ]
            return await OPEN(
                self._conn, **values, approvals=_rows(rows), created_ms=created_ms
            )

        reply = await write()
        if text(reply[0]) == "late":
            # The first submit of a process does not know the time, and a clock may have
            # been set.
            self._clocks.saw(keys.shard, number(reply[1]))
            reply = await write()
        match text(reply[0]):
            case "opened":
                self._clocks.saw(keys.shard, number(reply[2]))
                return OpenedTurn(older=run_list.listed(keys, reply[1]))
            case "exists":
                return OpenedTurn(kept=cast("bytes", reply[1]))
            case _:
                return None

    async def _standing_rows(
        self, used: Sequence[Approval]
    ) -> list[dict[str, object]] | None:
        """Return what is written of standing approvals; None: one has moved."""
        found: list[dict[str, object]] = []
        for one in used:
            # It was read a moment ago, to see what it covers.
            seen = self._known.latest(one.id)
            if seen is None or seen.approval.with_(uses=one.uses) != one:
                seen = await self._load(one.id)
            if seen is None or seen.stored is None or seen.approval.rev != one.rev:
                return None
            found.append(turn_opening.standing_row(self._known.seals, seen.stored, one))
        return found


def _encoded(value: object) -> str:
    # Several times as fast as `json`, and each turn needs half a dozen.
    return to_json(value).decode()


def _reservation(keys: Keys, turn_key: str, preconditions: Preconditions) -> str:
    reserved = preconditions.reserved
    # Where nothing is reserved the script does not look, and every turn names the same.
    return keys.reservation(turn_key if reserved else "", as_rows(reserved))


def _rows(rows: Sequence[object]) -> str:
    """Return rows as the script reads them; most turns have none of most kinds."""
    return _encoded(rows) if rows else "[]"


@lru_cache(maxsize=64)
def _limits(waiting: int, requests_10m: int) -> str:
    """Return how much an agent may ask of people, as the script reads it."""
    return _encoded(
        {"waiting": waiting, "requests_10m": requests_10m, "asked_ms": ASKED_MS}
    )
