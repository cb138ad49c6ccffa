"""Compute what scripts are told of a change, by the names of `next_version.lua`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from twokey.gateway.approvals import timing
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.store import codec
from twokey.gateway.store.atomic_write import (
    Assumed,
    EvaluationInputs,
    Loaded,
    Write,
)
from twokey.gateway.store.audit_seals import (
    sealed_text,
    texts_of,
    with_sealed_event,
)
from twokey.gateway.store.connection import Connection
from twokey.gateway.store.freeze_list import compared
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.person_queues import moves as queue_moves
from twokey.gateway.store.precedents import (
    Row,
    encrypted_rows,
    rows_of_change,
    seen_precedents,
)
from twokey.gateway.store.record_heads import following, sealed, with_format
from twokey.gateway.store.record_seals import SEAL, RecordSeals, Stored
from twokey.gateway.store.record_texts import changed_texts
from twokey.gateway.store.resume_jobs import job_text
from twokey.gateway.store.script import Script
from twokey.gateway.store.windows import as_rows

CHANGE = Script("change")
FENCED_CHANGE = Script("change", is_fenced=True)


@dataclass(frozen=True)
class Unsealed:
    """A change before its seals are made.

    Attributes:
        values: what scripts are told, but for what is sealed.
        fields: of the head, to write or False to delete.
        events: the text of each, and of which ``rev`` of the approval it is.
        precedents: rows with their bodies as they are.
        stored: the next version.
    """

    values: Mapping[str, object]
    fields: Mapping[str, str | bool]
    events: Sequence[tuple[str, int]]
    precedents: Sequence[Row]
    stored: Stored


def moves(
    conn: Connection, keys: Keys, seen: Loaded, what: Write
) -> tuple[dict[str, object], Stored]:
    """Return what a script is told of one change, by the names of `next_version.lua`.

    Beside it stands what is stored from then on.
    """
    found = unsealed(conn, keys, seen, what)
    after = sealed(RecordSeals(conn), seen.approval.id, found.stored)
    values = dict(found.values)
    values["fields"] = {**found.fields, SEAL: after.seal.hex()}
    values["events"] = [
        sealed_text(conn, keys, one, rev=rev) for one, rev in found.events
    ]
    values["precedents"] = encrypted_rows(conn, found.precedents)
    return without_empty(values), after


def unsealed(conn: Connection, keys: Keys, seen: Loaded, what: Write) -> Unsealed:
    """Return a change before its seals are made."""
    before, change = seen.approval, what.change
    after = change.approval
    # Comparing identities spares the JSON of the items that nothing happened to.
    pairs = zip(before.items, after.items, strict=True)
    moved = [(was, now) for was, now in pairs if was is not now]
    were, are = [was for was, _ in moved], [now for _, now in moved]
    old = codec.head(before, were)
    head = codec.changed(old, codec.head(after, are))
    states = _states(before, after)
    stored = seen.stored
    if stored is None:
        raise ValueError("what is stored of the record is not known")
    # Only what changed is sent: most changes are about one of six large texts.
    texts = changed_texts(before, after, moved)
    encryption = RecordSeals(conn).encryption
    texts = encryption.changes(before.id, before.tenant, stored.head, texts)
    fields = with_format(stored.head, head | texts)
    uses = {str(i): as_rows(one.uses) for i, one in what.inputs.items()}
    values: dict[str, object] = {
        "id": before.id,
        "rev": str(before.rev),
        "seen_ms": seen.now_ms,
        "before_ms": change.before_ms,
        "unfrozen": compared(conn, keys, before.tenant, what.unfrozen),
        "fires": change.fires,
        # The seal says more than the `rev`: another master may have other changes under
        # the same number.
        "as_read": _as_read(old, head, seen) | {SEAL: stored.seal.hex()},
        "states": states,
        "uses": {str(i): _uses(inputs) for i, inputs in what.inputs.items()},
        "set": [*timing.timers(before, after), *change.timers],
        "job": job_text(change),
        "rejection": with_sealed_event(
            conn,
            keys,
            script_keys_of(keys, before)["rejected"],
            _rejection(before, what),
        ),
        "failed": _failed(before, after),
        "seen": seen_precedents(one.known for one in what.inputs.values() if one.known),
        "standing": _states_as_read(what.standing),
        "queues": queue_moves(keys, before, after, is_due_moved=bool(states)),
        "assumed": assumptions(
            keys, before, what.assumed, large=_large_as_read(seen, were)
        ),
        "kept": what.kept,
    }
    return Unsealed(
        without_empty(values),
        fields,
        texts_of(change.events, of=[before.id], rev=before.rev + 1),
        rows_of_change(keys, before, after),
        following(stored, fields, uses),
    )


def without_empty(values: Mapping[str, object]) -> dict[str, object]:
    """Return what is told of a change without what is empty, as most of it is."""
    return {name: one for name, one in values.items() if one}


def script_keys_of(keys: Keys, approval: Approval) -> dict[str, str]:
    """Return the keys of a change of an approval, by their names in its script."""
    of_one = script_keys(keys, approval.id, approval.tenant, approval.agent)
    rejected = keys.rejected(approval.tenant, approval.agent, approval.thread)
    return {**of_one, "rejected": rejected}


def script_keys(
    keys: Keys, approval_id: str, tenant: str, agent: str
) -> dict[str, str]:
    """Return the keys of a change, by the names that they have in its script."""
    return {
        "head": keys.head(approval_id),
        "pinned": keys.pinned(approval_id),
        "expiry": keys.expiry,
        "outbox": keys.outbox,
        "audit": keys.audit,
        "jobs": keys.jobs,
        "waiting": keys.waiting(tenant, agent),
        "timers": keys.timers,
        "frozen": keys.frozen(tenant),
        "rejections": keys.rejections(tenant, agent),
        "failures": keys.failures(tenant, agent),
    }


def _as_read(
    old: Mapping[str, str], head: Iterable[str], seen: Loaded
) -> dict[str, str]:
    """Return which fields of the head have to be as they were read."""
    if seen.remembered is not None:
        return {**dict.fromkeys(head, ""), **old}
    # Only claims that this change moves: a heartbeat of another item of the card is
    # none of its business.
    return {field: old.get(field, "") for field in head if field.endswith(":u")}


def _large_as_read(seen: Loaded, moved: Iterable[Item]) -> dict[str, str]:
    """Return the SHA-1 of what is remembered of an approval and of these items."""
    indexes = {str(item.index) for item in moved}
    return {
        # As scripts can make it. It is compared with what was in the same field.
        name: hashlib.sha1(value, usedforsecurity=False).hexdigest()
        for name, value in (seen.remembered or {}).items()
        if not (index := name.partition(":")[0]).isdigit() or index in indexes
    }


def _states_as_read(standing: Approval | None) -> list[tuple[str, str]]:
    return [(standing.id, standing.items[0].state.value)] if standing else []


def assumptions(
    keys: Keys, before: Approval, what: Assumed, *, large: Mapping[str, str]
) -> dict[str, object]:
    """Return what a script is told that has to be as it was assumed to be."""
    # What is not assumed is left out: most changes assume nothing.
    found: dict[str, object] = {
        "large": large,
        "totals": [[*use, str(total)] for use, total in what.totals.items()],
        "place": what.place,
        "display": what.display,
        "alone": what.stands_in_for_nobody,
        "unseen": what.unseen,
    }
    if what.stands_in_for_nobody:
        found["delegations"] = keys.delegations(before.tenant)
    return {name: one for name, one in found.items() if one}


def _states(before: Approval, after: Approval) -> dict[str, str]:
    """Return the states of items that moved, or whose deadline did."""
    return {
        str(item.index): item.state
        for item, was in zip(after.items, before.items, strict=True)
        if item.state is not was.state
        or (
            item.is_pending and timing.end_of(after, item) != timing.end_of(before, was)
        )
    }


def _uses(inputs: EvaluationInputs) -> dict[str, object]:
    totals = [str(inputs.totals[use.name]) for use in inputs.uses]
    return {"rows": as_rows(inputs.uses), "totals": totals}


def _failed(before: Approval, after: Approval) -> list[str]:
    """Return the items whose execution was reported as failed by this change."""
    return [
        item.id
        for item, was in zip(after.items, before.items, strict=True)
        # By identity: a late report replaces the result, while an unchanged one is the
        # same object (`with_` copies no members).
        if item.result is not was.result and item.result and not item.result.ok
    ]


def _rejection(before: Approval, what: Write) -> dict[str, object]:
    # An authorization by people ends the row of rejections, also when an earlier call
    # of the same card was rejected.
    is_authorized = any(
        item.state is ItemState.AUTHORIZED and was.state is ItemState.PENDING
        for item, was in zip(what.approval.items, before.items, strict=True)
    )
    return {**what.rejection, **({"ends": True} if is_authorized else {})}
