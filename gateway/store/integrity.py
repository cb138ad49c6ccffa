"""Compare the parts of a stored approval with each other."""

from __future__ import annotations

from collections.abc import Sequence

from twokey.gateway.approvals.record import Approval, Context, Item, item_id
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.business_state import is_same_but_state
from twokey.gateway.protocol.strict_json import parse_object


def is_whole(found: Approval, hashes: Sequence[bytes | None]) -> bool:
    """Return whether every item is this approval's and its action the one hashed."""
    # The seal keeps others from moving an approval from one call to another. This finds
    # what we put together wrongly ourselves, and is all there is of an unsealed record.
    return all(
        (item.index, item.id) == (index, item_id(found.id, index))
        and item.ctx.with_(tool_call_id="") == _context(found)
        and hashes[index] in {None, digest.to_raw(item.action_hash)}
        and _says(item, item.action)
        and (_is_edited(item) or _is_as_requested(item))
        # Parsing its bounds raises where they are none.
        and (item.bounds is not None) is item.is_standing
        for index, item in enumerate(found.items)
    )


def _context(found: Approval) -> Context:
    return Context(
        tenant=found.tenant,
        agent=found.agent,
        thread=found.thread,
        ns=found.ns,
        message_id=found.message_id,
        tool_call_id="",
    )


def _is_as_requested(item: Item) -> bool:
    """Return whether nothing but the business state differs from the request."""
    return is_same_but_state(item.requested, item.action)


def _is_edited(item: Item) -> bool:
    edit = item.edit
    return (
        edit is not None
        and edit.requested_hash == digest.action_hash(item.requested)
        and edit.executed_hash == item.action_hash
        and _says(item, item.requested)
    )


def _says(item: Item, document: str) -> bool:
    """Return whether an action document is about the call that the record names."""
    action = parse_object(document)
    return (action["tool"], action["ctx"]) == (item.tool, item.ctx.as_dict())
