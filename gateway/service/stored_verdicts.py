"""Replay the verdicts of a turn, and revoke those that the current policy denies.

A turn is evaluated once. What was auto-approved may still be asked about later,
by a process that takes the turn over; then a freeze or another policy counts.
"""

from __future__ import annotations

from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.wire import Verdict, VerdictKind
from twokey.gateway.service import denials
from twokey.gateway.service.window_usage import CallUsage
from twokey.gateway.store.agent_load import AgentLoad
from twokey.gateway.store.store import Store
from twokey.gateway.store.windows import Use, use_of

NEEDS_A_PERSON = (
    "The policy changed after this call was cleared: it needs a person now, so it "
    "does not run. If it is still needed, make it again as a new call."
)
FORBIDDEN = (
    "The policy changed after this call was cleared and no longer allows it, so it "
    "does not run."
)


class StoredVerdicts(Record):
    """The verdicts on a turn and the digest of the policy that gave them, as stored."""

    policy: str
    verdicts: tuple[Verdict, ...]

    @classmethod
    def read(cls, body: str) -> StoredVerdicts:
        """Read what `dumped` wrote."""
        return cls.model_validate_json(body)

    def dumped(self) -> str:
        """Return the JSON to store."""
        return self.model_dump_json()

    def is_of(self, policy: Policy) -> bool:
        """Return whether this very policy gave these verdicts."""
        return self.policy == policy.digest

    def halted(self, load: AgentLoad, agent: str) -> StoredVerdicts:
        """Return the verdicts, without those that a freeze stops now."""
        halted = tuple(_halted(verdict, load, agent) for verdict in self.verdicts)
        return self.with_(verdicts=halted)


def recheck_verdict(verdict: Verdict, tier: Tier) -> Verdict:
    """Return the verdict for a call that has this tier now."""
    # Held calls keep their verdict: their claim asks the policy again.
    if not verdict.runs_unclaimed or tier.is_auto_approved:
        return verdict
    reason = FORBIDDEN if tier is Tier.DENY else NEEDS_A_PERSON
    return refused(verdict, reason)


def refused(verdict: Verdict, reason: str) -> Verdict:
    """Return the verdict that takes another one back."""
    return verdict.with_(kind=VerdictKind.DENY, tier=Tier.DENY, reason=reason)


async def totals_with(store: Store, blobs: str, one: CallUsage) -> dict[str, int]:
    """Return what the windows of a cleared call come to, its own share counted once.

    Args:
        store: where the windows are.
        blobs: a key of the same shard that holds nothing.
        one: what the call uses.
    """
    counted = {use.name: await _is_counted(store, use) for use in one.reserved}
    asked = [_without_share(use) if counted[use.name] else use for use in one.reserved]
    return await store.windows.totals(blobs, 0, asked)


async def _is_counted(store: Store, use: Use) -> bool:
    found = await store.conn.command("ZSCORE", use.window, use.use)
    return found is not None


def _without_share(use: Use) -> Use:
    call = use.use.partition(" ")[0]
    return use_of(
        use.window, name=use.name, call=call, micro=0, within_ms=use.within_ms
    )


def _halted(verdict: Verdict, load: AgentLoad, agent: str) -> Verdict:
    if not verdict.runs_unclaimed:
        return verdict  # its claim asks
    freeze = denials.freeze_of(load, agent, verdict.tool)
    return refused(verdict, denials.freeze_message(freeze)) if freeze else verdict
