"""Hide private data in the words of agents and tools, before they are stored."""

from __future__ import annotations

from collections.abc import Iterable

from twokey.gateway.approvals.private_text import private_values, without_private
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.digest import action_args
from twokey.gateway.protocol.records import Result


def with_hidden_words(approval: Approval, policy: Policy) -> Approval:
    """Return a new approval in whose words private data reads as hidden."""
    written = [approval.says, approval.task]
    if not any((*written, *(item.agent_description for item in approval.items))):
        return approval
    kinds, values = policy.privacy.hide, _values(approval.items)
    items = [
        item.with_(
            agent_description=without_private(item.agent_description, kinds, values)
        )
        for item in approval.items
    ]
    says, task = (without_private(text, kinds, values) for text in written)
    return approval.with_(says=says, task=task, items=tuple(items))


def with_hidden_summary(result: Result, item: Item, policy: Policy) -> Result:
    """Return a result in whose words private data reads as hidden."""
    if not result.summary:
        return result
    hidden = without_private(result.summary, policy.privacy.hide, _values([item]))
    return result if hidden == result.summary else result.with_(summary=hidden)


def _values(items: Iterable[Item]) -> frozenset[str]:
    """Return what cards hide of calls, as these were requested and as they run."""
    found: set[str] = set()
    for item in items:
        if item.redact:
            found |= private_values(action_args(item.requested), item.redact)
            found |= private_values(item.args, item.redact)
    return frozenset(found)
