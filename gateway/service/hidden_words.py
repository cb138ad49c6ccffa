"""Hide private data in the words of agents and tools, before they are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from keyturn.gateway.approvals.private_text import (
    PrivateData,
    private_values,
    without_private,
)
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.digest import action_args
from keyturn.gateway.protocol.records import Result

MAX_WORDS = 16 * 1024
"""How many characters of an agent's or a tool's own words are kept."""

_AROUND = 1024
"""What is hidden by its form is shorter than this."""


def with_hidden_words(approval: Approval, policy: Policy) -> Approval:
    """Return a new approval in whose words private data reads as hidden."""
    written = [approval.says, approval.task]
    if not any((*written, *(item.agent_description for item in approval.items))):
        return approval
    kinds, values = policy.privacy.hide, _values(approval.items)
    items = [
        item.with_(agent_description=_kept(item.agent_description, kinds, values))
        for item in approval.items
    ]
    says, task = (_kept(text, kinds, values) for text in written)
    return approval.with_(says=says, task=task, items=tuple(items))


def with_hidden_summary(result: Result, item: Item, policy: Policy) -> Result:
    """Return a result in whose words private data reads as hidden."""
    if not result.summary:
        return result
    hidden = _kept(result.summary, policy.privacy.hide, _values([item]))
    return result if hidden == result.summary else result.with_(summary=hidden)


def _kept(text: str, kinds: Collection[PrivateData], values: frozenset[str]) -> str:
    """Return a text without private data, cut where it is very long."""
    if len(text) <= MAX_WORDS:
        return without_private(text, kinds, values)
    # A cut must not leave the half of what would be hidden: it is looked for beyond
    # the cut, and nothing is kept of where it may go on after what was looked at.
    around = max(_AROUND, *map(len, values))
    looked_at = text[: MAX_WORDS + around]
    hidden = without_private(looked_at, kinds, values)
    left = len(hidden) if looked_at == text else len(hidden) - around
    kept = hidden[: max(0, min(MAX_WORDS, left))]
    return f"{kept}… ({len(text) - MAX_WORDS} more characters)"


def _values(items: Iterable[Item]) -> frozenset[str]:
    """Return what cards hide of calls, as these were requested and as they run."""
    found: set[str] = set()
    for item in items:
        if item.redact:
            found |= private_values(action_args(item.requested), item.redact)
            found |= private_values(item.args, item.redact)
    return frozenset(found)
