"""Compute the arguments of a change, named as in `next_version.lua`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keyturn.gateway.approvals import timing
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store import codec
from keyturn.gateway.store.atomic_write import EvaluationInputs, Loaded, Write
from keyturn.gateway.store.audit_seals import sealed_texts, with_sealed_event
from keyturn.gateway.store.connection import Connection
from keyturn.gateway.store.encryption import DATA_KEY
from keyturn.gateway.store.freezes import compared
from keyturn.gateway.store.jobs import Job
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.precedents import (
    encrypted_rows,
    rows_of_change,
    seen_precedents,
)
from keyturn.gateway.store.record_seals import SEAL, RecordSeals, Stored
from keyturn.gateway.store.windows import as_rows


def moves(
    conn: Connection, keys: Keys, seen: Loaded, what: Write
) -> tuple[dict[str, object], Stored]:
    """Return a script's arguments for one change, named as in `next_version.lua`.

    The second result is the next version in stored form.
    """
    before, change = seen.approval, what.change
    after = change.approval
    if seen.stored is None:
        raise ValueError("what is stored of the record is not known")
    uses = {str(i): as_rows(one.uses) for i, one in what.inputs.items()}
    fields, stored = following(RecordSeals(conn), seen.stored, before, after, uses)
    states = _states(before, after)
    values: dict[str, object] = {
        "id": before.id,
        "rev": str(before.rev),
        "seen_ms": seen.now_ms,
        "before_ms": change.before_ms,
        "unfrozen": compared(conn, keys, what.unfrozen),
        "fires": change.fires,
        "fields": fields,
        # The seal, not only `rev`: another master may have other changes under the same
        # revision.
        "as_read": _claims_as_read(before, fields) | {SEAL: seen.stored.seal.hex()},
        "states": states,
        "uses": [_uses(i, inputs) for i, inputs in sorted(what.inputs.items())],
        "set": [*timing.timers(before, after, now_ms=seen.now_ms), *change.timers],
        "events": sealed_texts(conn, keys, change.events),
        "job": _job_text(change),
        "rejection": with_sealed_event(
            conn,
            keys,
            keys.rejected(before.agent, before.thread),
            _rejection(before, what),
        ),
        "failed": _failed(before, after),
        "precedents": encrypted_rows(conn, rows_of_change(keys, before, after)),
        "seen": seen_precedents(one.known for one in what.inputs.values() if one.known),
        "standing": _states_as_read(what.standing),
    }
    # Omit empty values, which are the majority.
    return {name: one for name, one in values.items() if one}, stored


def following(
    seals: RecordSeals,
    seen: Stored,
    before: Approval,
    after: Approval,
    uses: Mapping[str, str],
) -> tuple[dict[str, str | bool], Stored]:
    """Return the head's fields to write, and the next version in stored form.

    Args:
        seals: seals of the records.
        seen: this version in stored form.
        before: this version, parsed.
        after: the next version.
        uses: the items' new uses of windows, by index.
    """
    fields = codec.changed(codec.head(before), codec.head(after))
    wrapped = seen.head.get(DATA_KEY, b"")
    document, data_key = seals.encryption.stored(
        after.id, codec.document(after), wrapped
    )
    if data_key != wrapped:
        fields[DATA_KEY] = data_key.hex()
    head = codec.applied(seen.head, fields | {"rev": str(before.rev + 1)})
    for i, rows in uses.items():
        if rows.encode() != head.get(f"{i}:w", b"[]"):
            head[f"{i}:w"] = rows.encode()
    stored = seals.sealed(after.id, head, document)
    return fields | {SEAL: stored.seal.hex()}, stored


def tenant_keys(keys: Keys) -> dict[str, str]:
    """Return the keys shared by a tenant's changes, by their names in the script."""
    return {
        "expiry": keys.expiry,
        "outbox": keys.outbox,
        "audit": keys.audit,
        "jobs": keys.jobs,
        "timers": keys.timers,
        "frozen": keys.frozen,
    }


def record_keys(keys: Keys, approval_id: str, agent: str, thread: str) -> list[str]:
    """Return the keys of one approval, in the order of the script."""
    return [
        keys.head(approval_id),
        keys.document(approval_id),
        keys.waiting(agent),
        keys.rejections(agent),
        keys.rejected(agent, thread),
        keys.failures(agent),
    ]


def _claims_as_read(before: Approval, fields: Iterable[str]) -> dict[str, str]:
    """Return the claims that must be unchanged since the record was read."""
    # Only claims that this change moves: heartbeats of other items do not matter.
    old = codec.head(before)
    return {field: old.get(field, "") for field in fields if field.endswith(":u")}


def _states_as_read(standing: Approval | None) -> list[tuple[str, str]]:
    return [(standing.id, standing.items[0].state.value)] if standing else []


def _states(before: Approval, after: Approval) -> dict[str, str]:
    """Return the states of items whose state or deadline changed."""
    return {
        str(item.index): item.state
        for item, was in zip(after.items, before.items, strict=True)
        if item.state is not was.state
        or (
            item.is_pending and timing.end_of(after, item) != timing.end_of(before, was)
        )
    }


def _uses(index: int, inputs: EvaluationInputs) -> dict[str, object]:
    totals = [str(inputs.totals[use.name]) for use in inputs.uses]
    return {"index": str(index), "rows": as_rows(inputs.uses), "totals": totals}


def _failed(before: Approval, after: Approval) -> list[str]:
    """Return the items whose failure this change reports."""
    return [
        item.id
        for item, was in zip(after.items, before.items, strict=True)
        # Compared by identity: `with_` copies no members, so an unchanged result is the
        # same object, while a late report replaces it.
        if item.result is not was.result and item.result and not item.result.ok
    ]


def _rejection(before: Approval, what: Write) -> dict[str, object]:
    # A human authorization ends the row of rejections, even if an earlier call of the
    # same card was rejected.
    is_authorized = any(
        item.state is ItemState.AUTHORIZED and was.state is ItemState.PENDING
        for item, was in zip(what.approval.items, before.items, strict=True)
    )
    return {**what.rejection, **({"ends": True} if is_authorized else {})}


def _job_text(change: Change) -> str:
    """Return the job that a change queues, as text; "" for none."""
    approval = change.approval
    has_agent = not (approval.is_standing or approval.resumes_itself)
    if not (change.resumes and has_agent):
        return ""
    run = approval.run_ref
    return Job.to_resume(approval.tenant, run.agent, run.thread).model_dump_json()
