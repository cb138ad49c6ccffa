"""Tell by a digest whether a card shows what its pending calls need."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from twokey.bot.ids import key_id
from twokey.gateway.approvals.record import Approval
from twokey.gateway.approvals.repeating import other_calls
from twokey.gateway.protocol import digest

POLICY_DECISION_TAG = "twokey/v1/policy-decision"


def without_freeze(record: Approval) -> Approval:
    """Return an approval as if nothing were frozen."""
    frozen = [item for item in record.items if item.is_frozen]
    return record.replacing(*(item.with_(is_frozen=False) for item in frozen))


def policy_decision_digest(
    record: Approval, key: bytes, *, sent: Sequence[str] = ()
) -> str:
    """Return a digest of what a card's pending calls need, and of what they repeat.

    It covers the key that seals the buttons: after a key change cards need a redraw;
    and, while calls are pending, who has got a copy, if the card names them.
    """
    rows: list[JsonValue] = [key_id(key)]
    for item in record.items:
        if item.is_pending:
            requirement = item.requirement.model_dump(mode="json")
            # Only pending calls: a decided one keeps its decision, so a policy change
            # must not make its card outdated.
            rows.append([item.index, item.tier.value, [*item.reasons], requirement])
            # Only where there are any: else every card would be drawn again once by
            # the first version that shows them.
            if done := other_calls(record, item.past):
                rows.append([f"{one.call} {one.state}" for one in done])
            if item.is_frozen:
                rows.append("frozen")
    if sent and len(rows) > 1:
        rows.append(["sent", *sent])
    return digest.tagged_hash(POLICY_DECISION_TAG, digest.canonical(rows))
