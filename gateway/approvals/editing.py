"""Build the record of an edit."""

from __future__ import annotations

from typing import cast

import jsonpatch

from keyturn.gateway.approvals.evidence import original_text
from keyturn.gateway.approvals.record import Item
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.digest import is_same_but_state, state_in, with_state
from keyturn.gateway.protocol.records import EditRecord, Person, Reading
from keyturn.gateway.protocol.strict_json import JsonObject, parse_object


def edited_document(item: Item, args: JsonObject) -> str:
    """Return the action document of an item with other arguments.

    The tool, the context and the salt are taken from the request, and the business
    state from the current action, so an edit can change only the arguments.

    Raises:
        BadJson: when the arguments are not strict JSON or too large.
    """
    # From the stored request, not the form: an edit may change only arguments.
    requested = parse_object(item.requested)
    document = digest.action_document(
        tool=item.tool,
        args=args,
        ctx=item.ctx.as_dict(),
        # The same salt: equal arguments get an equal hash, so an edit without
        # changes is detected.
        salt=str(requested["salt"]),
    )
    state = state_in(item.action)
    return document if state is None else with_state(document, state)


def edit_record(
    item: Item, document: str, *, by: Person, at_ms: int, reason: str = ""
) -> EditRecord | None:
    """Return the change from the request to this document; None for no change."""
    if is_same_but_state(item.requested, document):
        return None
    original, edited = item.requested_args, digest.action_args(document)
    return EditRecord(
        item_id=item.id,
        tool=item.tool,
        tool_call_id=item.ctx.tool_call_id,
        original_args=original,
        edited_args=edited,
        patch=json_patch(original, edited),
        original_hash=digest.action_hash(item.requested),
        edited_hash=digest.action_hash(document),
        by=by,
        at_ms=at_ms,
        reason=reason,
    )


def json_patch(before: JsonObject, after: JsonObject) -> tuple[JsonObject, ...]:
    """Return the RFC 6902 patch that turns one object into the other."""
    patch = jsonpatch.make_patch(before, after)
    # jsonpatch has no types; each operation is a JSON object (RFC 6902, section 4).
    return tuple(cast("list[JsonObject]", patch.patch))


def reading_of(item: Item) -> Reading | None:
    """Return the tool's reading of a waiting call's edit; None: exactly as written."""
    found = item.revoked.reading if item.revoked and item.is_pending else None
    return found if found and found.action_hash == item.action_hash else None


def as_read(item: Item) -> Item:
    """Return a waiting call with the tool's reading of its edit."""
    found = reading_of(item)
    if found is None or found.args is None:
        return item
    return item.with_(action=edited_document(item, found.args))


def reading_text(item: Item) -> str:
    """Return the tool's different reading of an edit as text, or ""."""
    found = reading_of(item)
    if found is None:
        return ""
    if found.args is not None:
        return original_text(found.args, item.args, item.redact)
    # The agent's text may repeat a value that the policy hides.
    return "" if item.redact else found.problem
