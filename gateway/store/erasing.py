"""Erase ended approvals, and audit log entries that are in files."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Literal, cast

from keyturn.gateway.approvals.events import Event, EventName, approval_event
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.repeating import precedent_of
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.protocol import digest
from keyturn.gateway.store.audit import files as audit_files
from keyturn.gateway.store.audit.files import Row, TreeFiles
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.events.outbox import EntryId
from keyturn.gateway.store.keys import KEEP_MS, Keys
from keyturn.gateway.store.limits.history import body_of, fingerprint
from keyturn.gateway.store.scripts.script import Script
from keyturn.gateway.store.sealing.event_seals import sealed_texts
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.seals import Purpose, seal_keys

ERASE = Script("erase")

_ASKED_BY = "asked_by"
_NAME = re.compile(r"[UW][A-Z0-9]{2,}")

Outcome = Literal["erased", "open", "running", "moved"]
"""Result of an erasure; see `erase.lua`."""


@dataclass(frozen=True)
class Wanted:
    """Data to erase: approvals, and one person's data in the audit log.

    Attributes:
        tenant: owner of the data.
        approvals: ids of approvals.
        user: Slack user id of a person; "" for none.
    """

    tenant: str
    approvals: frozenset[str]
    user: str = ""

    def has(self, row: Row) -> bool:
        """Return whether an audit log entry is about this data."""
        try:
            found = Event.model_validate_json(row.event)
        except ValueError:
            # Erased before, or invalid.
            return False
        # The record of the erasure itself stays.
        if found.tenant != self.tenant or found.name is EventName.APPROVAL_ERASED:
            return False
        if found.approval in self.approvals:
            return True
        # The person who acted, or a person in the details.
        return bool(self.user) and self.user in _NAME.findall(row.event)


async def erase_approval(
    store: Store,
    keys: Keys,
    approval: Approval,
    *,
    over: bytes,
    by: str,
    is_person: bool,
    is_dry_run: bool,
) -> Outcome:
    """Erase an approval in one step, if it is as it was read.

    Args:
        store: its store.
        keys: keys of its tenant.
        approval: the record that was read.
        over: replacement for the turn's verdicts.
        by: the person who erases it, for the audit log.
        is_person: also erase the thread's requesters.
        is_dry_run: change nothing, and return the outcome.

    Raises:
        StoreUnavailable: when the result is unknown.
    """
    run, turn_key = approval.run_ref, turn_key_of(approval)
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
        turn=keys.turn(turn_key),
        begun=keys.begun(turn_key),
        rev=str(approval.rev),
        calls=calls,
        precedents=_precedents(store, keys, approval),
        events=sealed_texts(store.conn, keys, [event]),
        is_person=is_person,
        over=over,
        keep_ms=KEEP_MS,
        is_dry=is_dry_run,
    )
    outcome = cast("Outcome", text(reply[0]))
    if outcome == "erased" and not is_dry_run:
        # If a crash prevents this, the messages are redacted after their retention.
        await store.posted_messages.erase(keys, approval.id)
    return outcome


def turn_key_of(approval: Approval) -> str:
    """Return the key of the turn that opened an approval."""
    return digest.turn_key(
        tenant=approval.tenant,
        agent=approval.agent,
        thread=approval.thread,
        ns=approval.ns,
        message_id=approval.message_id,
    )


def is_asked_by(store: Store, event: Event, user: str) -> bool:
    """Return whether a person was the requester of an erased approval.

    The entry has a keyed hash instead of the person's id.
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
    """Return the remains of precedents: the calls, without texts."""
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
    """Erase people and texts in segment entries; count matching entries in the store.

    The entries' hashes stay, so log, tree and proofs still verify.

    Args:
        store: the log's store.
        keys: keys of the tenant.
        wanted: the data to erase.
        is_dry_run: only count the entries.

    Returns:
        The number of erased entries (or matches in a dry run), and the number of
        matches in the store, where entries cannot be changed.

    Raises:
        AuditUnreadable: when a segment cannot be read.
        ThreadUnavailable: when a gateway is sealing the log right now.
    """
    log, folder, count = store.audit(keys), store.tree_folder, 0
    # Without a configured folder, entries stay in the store as well.
    after: EntryId = (0, 0)
    for segment in await log.segments():
        assert folder is not None  # noqa: S101 - there are segments
        files = TreeFiles(folder, keys.tenant)
        after = files.last if store.audit_folder else after
        rows = await asyncio.to_thread(audit_files.read_segment, files, segment)
        seqs = {one.seq for one in rows if wanted.has(one)}
        count += len(seqs)
        if seqs and not is_dry_run:
            # Under the lease and lock used for sealing and for removing segments.
            async with store.threads.lease(keys, "", "audit"):
                with files.locked("erasing") as was_last:
                    if was_last is None:
                        raise ThreadUnavailable
                    await asyncio.to_thread(audit_files.erase, files, segment, seqs)
    live = [wanted.has(row) async for row in log.live(after)]
    return count, sum(live)
