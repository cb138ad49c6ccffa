"""Erase approvals that have ended, and entries of the audit log that are in files."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Literal, cast

from keyturn.gateway.approvals.events import Event, EventName, approval_event
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.repeating import precedent_of
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.protocol import digest
from keyturn.gateway.store import audit_segments
from keyturn.gateway.store.agent_load import fingerprint
from keyturn.gateway.store.audit_seals import event_texts
from keyturn.gateway.store.audit_segments import Row
from keyturn.gateway.store.audit_tree import TreeFiles
from keyturn.gateway.store.connection import text
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.precedents import body_of
from keyturn.gateway.store.script import Script
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.seals import Purpose, seal_keys

ERASE = Script("erase")

_ASKED_BY = "asked_by"
_NAME = re.compile(r"[UW][A-Z0-9]{2,}")

Outcome = Literal["erased", "open", "running", "moved"]
"""What came of it; see `erase.lua`."""


@dataclass(frozen=True)
class Wanted:
    """What is to be erased: these approvals, and one person in the audit log.

    Attributes:
        tenant: whose they are.
        approvals: their ids.
        user: id of a person in Slack; "" for nobody.
    """

    tenant: str
    approvals: frozenset[str]
    user: str = ""

    def has(self, row: Row) -> bool:
        """Return whether an entry of the audit log is about any of it."""
        try:
            found = Event.model_validate_json(row.event)
        except ValueError:
            # Erased before, or none of ours.
            return False
        # Who erased it is to be known.
        if found.tenant != self.tenant or found.name is EventName.APPROVAL_ERASED:
            return False
        if found.approval in self.approvals:
            return True
        # Who acted, and details that name a person.
        return bool(self.user) and self.user in _NAME.findall(row.event)


async def erase_approval(
    store: Store,
    keys: Keys,
    approval: Approval,
    *,
    over: bytes,
    by: str,
    is_person: bool,
) -> Outcome:
    """Erase an approval as it was read, in one step.

    Args:
        store: where it is.
        keys: of its tenant.
        approval: as it was read.
        over: what stands in place of the verdicts on its turn.
        by: who does it, for the audit log.
        is_person: who asked in its thread is erased as well.

    Raises:
        StoreUnavailable: when it is not known to be done.
    """
    run = approval.run_ref
    event = approval_event(approval, EventName.APPROVAL_ERASED).with_(
        actor=by, data=_mark(store, approval)
    )
    calls = [fingerprint(one.tool, one.requested_args) for one in approval.items]
    reply = await ERASE(
        store.conn,
        head=keys.head(approval.id),
        document=keys.document(approval.id),
        facts=keys.thread_facts(run.agent, run.thread),
        outbox=keys.outbox,
        audit=keys.audit,
        rejected=keys.rejected(approval.agent, approval.thread),
        seen_by=keys.opened(approval.id),
        turn=keys.turn(turn_key_of(approval)),
        rev=str(approval.rev),
        calls=json.dumps(calls),
        precedents=json.dumps(_precedents(store, keys, approval)),
        events=event_texts(
            store.conn, keys, [event], of=[approval.id], rev=approval.rev + 1
        ),
        is_person=is_person,
        over=over,
        keep_ms=KEEP_MS,
    )
    outcome = cast("Outcome", text(reply[0]))
    if outcome == "erased":
        # What is lost by a crash before this is redacted when its time is over.
        await store.posted_messages.erase(keys, approval.id)
    return outcome


def turn_key_of(approval: Approval) -> str:
    """Return the key of the turn that an approval was opened by."""
    return digest.turn_key(
        tenant=approval.tenant,
        agent=approval.agent,
        thread=approval.thread,
        ns=approval.ns,
        message_id=approval.message_id,
    )


def is_asked_by(store: Store, event: Event, user: str) -> bool:
    """Return whether an approval that was erased was asked for by a person.

    The entry about it does not name them: it has a keyed hash.
    """
    keys, mark = seal_keys(store.conn.secrets, Purpose.FACTS), event.data.get(_ASKED_BY)
    try:
        seal = bytes.fromhex(mark or "")
    except ValueError:
        return False
    is_erased = event.name is EventName.APPROVAL_ERASED
    return is_erased and keys.is_valid(
        seal, _ASKED_BY, (event.tenant, event.approval), user.encode()
    )


def _mark(store: Store, approval: Approval) -> dict[str, str]:
    if approval.requester is None:
        return {}
    keys = seal_keys(store.conn.secrets, Purpose.FACTS)
    place = (approval.tenant, approval.id)
    seal = keys.make(_ASKED_BY, place, approval.requester.user.encode())
    return {_ASKED_BY: seal.hex()}


def _precedents(
    store: Store, keys: Keys, approval: Approval
) -> list[tuple[str, str, str]]:
    """Return what is left of precedents: that there was a call, and no words."""
    rows: list[tuple[str, str, str]] = []
    for item in approval.items:
        found = precedent_of(approval, item)
        if found is not None:
            key = keys.precedents(item.effect)
            people = tuple(one.with_(name="") for one in found.by)
            left = found.with_(reason="", by=people)
            rows.append((key, item.id, body_of(store.conn, key, left)))
    return rows


async def erase_entries(
    store: Store, keys: Keys, wanted: Wanted, *, is_dry_run: bool
) -> tuple[int, int]:
    """Erase names and words in entries of segments; count those in the store.

    The hashes of the entries stay, so log, tree and proofs verify as before.

    Args:
        store: where the log is.
        keys: of the tenant.
        wanted: what is to be erased.
        is_dry_run: count them only.

    Returns:
        How many are erased (or would be), and how many are in the store alone, which
        cannot be changed there.

    Raises:
        AuditUnreadable: when a segment cannot be read.
        ThreadUnavailable: when a gateway seals at this moment.
    """
    log, folder = store.audit(keys), store.audit_folder
    sealed = await log.sealed()
    live = [row async for row in log.live(sealed.last)]
    count = 0
    for segment in await log.segments(sealed):
        assert folder is not None  # noqa: S101 - `segments` has refused it
        files = TreeFiles(folder, keys.tenant)
        rows = await asyncio.to_thread(audit_segments.read_segment, files, segment)
        seqs = {one.seq for one in rows if wanted.has(one)}
        count += len(seqs)
        if seqs and not is_dry_run:
            # Under the lease and lock of who moves entries, and removes segments.
            async with store.threads.lease(keys, "", "audit"):
                with files.locked("erasing") as was_last:
                    if was_last is None:
                        raise ThreadUnavailable
                    await asyncio.to_thread(audit_segments.erase, files, segment, seqs)
    return count, sum(wanted.has(one) for one in live)
