"""Keep claims: the right to execute one authorized item once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, cast

from gateway.approvals import digest
from gateway.approvals.events import Event
from gateway.approvals.lifecycle import ItemState
from gateway.approvals.record import Approval, Result
from gateway.store import scripts
from gateway.store.attention import FAILED_MS
from gateway.store.connection import Connection, number, text
from gateway.store.freezes import Freeze, names_of
from gateway.store.keys import LEASE, RETENTION, Keys, shard_of_approval

LEASE_MS = int(LEASE.total_seconds() * 1000)
PAUSE_LIFETIME = RETENTION / 2
"""How long an authorization waits for what is asked inside its tool."""

_KEEP_MS = int(RETENTION.total_seconds() * 1000)
_PAUSE_MS = int(PAUSE_LIFETIME.total_seconds() * 1000)

JudgedClaim = Literal["start", "repeat", "doubt"]
"""What a claim was judged as: the start of an authorized call, or one that somebody
started. A dead owner's attempt is then repeated, or left in doubt."""

ClaimWord = Literal["new", "busy", "done", "in_doubt", "refused", "frozen", "gone"]


@dataclass(frozen=True)
class ClaimAnswer:
    """The claim script's word; ``fence`` for new, ``left_ms`` for busy.

    ``state`` is set for refused, ``freeze`` for frozen.
    """

    word: ClaimWord
    fence: int = 0
    left_ms: int = 0
    state: str = ""
    freeze: Freeze | None = None


class ClaimStore:
    """Claims live in their approval's record, one an item."""

    def __init__(self, conn: Connection, *, lease_ms: int = LEASE_MS) -> None:
        self._conn = conn
        self.lease_ms = lease_ms

    async def claim(
        self,
        approval: Approval,
        index: int,
        *,
        owner: str,
        judged: JudgedClaim,
        events: ClaimEvents,
    ) -> ClaimAnswer:
        """Ask for the right to run one item.

        Args:
            approval: the record.
            index: the item.
            owner: unique to this attempt.
            judged: what the policy of now was asked about, see `JudgedClaim`.
            events: what to announce.
        """
        keys, item = _keys(approval.id), approval.items[index]
        reply = await scripts.CLAIM(
            self._conn,
            head=keys.head(approval.id),
            expiry=keys.expiry,
            outbox=keys.outbox,
            audit=keys.audit,
            frozen=keys.frozen(approval.tenant),
            id=approval.id,
            index=index,
            hash=digest.to_raw(item.action_hash),
            owner=owner,
            lease_ms=self.lease_ms,
            judged=judged,
            started=json.dumps([events.started.model_dump_json()]),
            doubtful=json.dumps([events.doubtful.model_dump_json()]),
            names=json.dumps(names_of(approval.agent, item.tool)),
        )
        word = cast("ClaimWord", text(reply[0]))
        return ClaimAnswer(
            word,
            fence=number(reply[1]) if word == "new" else 0,
            left_ms=number(reply[1]) if word == "busy" else 0,
            state=text(reply[1]) if word == "refused" else "",
            freeze=(
                Freeze.model_validate_json(text(reply[1])) if word == "frozen" else None
            ),
        )

    async def heartbeat(self, approval_id: str, index: int, fence: int) -> bool:
        """Keep a claim; False when it is no longer this fence's."""
        keys = _keys(approval_id)
        reply = await scripts.HEARTBEAT(
            self._conn,
            head=keys.head(approval_id),
            expiry=keys.expiry,
            id=approval_id,
            index=index,
            fence=fence,
            lease_ms=self.lease_ms,
        )
        return text(reply[0]) == "kept"

    async def finish(
        self,
        approval: Approval,
        index: int,
        fence: int,
        *,
        state: ItemState,
        result: Result | None,
        event: Event,
        late: Event,
    ) -> bool:
        """Record the end of an execution; AUTHORIZED gives the claim back unused.

        ``late`` is announced when people had settled the doubt about it before.
        """
        keys = _keys(approval.id)
        reply = await scripts.FINISH(
            self._conn,
            head=keys.head(approval.id),
            blobs=keys.blobs(approval.id),
            expiry=keys.expiry,
            outbox=keys.outbox,
            audit=keys.audit,
            failures=keys.failures(approval.tenant, approval.agent),
            id=approval.id,
            index=index,
            fence=fence,
            state=state,
            result=result.model_dump_json() if result else "",
            keep_ms=_KEEP_MS,
            events=json.dumps([event.model_dump_json()]),
            failed_ms=FAILED_MS,
            lapse_ms=_PAUSE_MS,
            late=json.dumps([late.model_dump_json()]),
        )
        return text(reply[0]) == "done"


@dataclass(frozen=True)
class ClaimEvents:
    """What a claim announces: that it started, or that its owner died before."""

    started: Event
    doubtful: Event


def _keys(approval_id: str) -> Keys:
    shard = shard_of_approval(approval_id)
    if shard is None:
        raise ValueError(f"{approval_id!r} is not an approval id")
    return Keys(shard)
