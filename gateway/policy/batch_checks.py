"""Validate ``batch`` of a policy: find calls that could never share a card."""

from __future__ import annotations

from collections.abc import Iterator

from twokey.gateway.approvals.requirement import Notify
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.rules import Policy, ToolRule
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.validation_errors import Path, ProblemAt, dotted

_SHARE = 4
"""A card waits for other calls for a quarter of the time at most that people have."""


def batch_problems(
    policy: Policy, base: Path, rules: tuple[ToolRule, ...], floor: Tier
) -> Iterator[ProblemAt]:
    """Yield what is wrong with ``batch`` of one place of the file.

    Args:
        policy: the whole of it.
        base: the place.
        rules: the wider rule and then the narrower.
        floor: the tier that calls have at least.
    """
    rule, path = rules[-1].batch, (*base, "batch")
    if rule is None:
        return
    shares = f"{dotted(path)!r} is for calls that one gesture approves, and these "
    if floor.rank > Tier.APPROVE.rank:
        yield path, f"{shares}are {floor.value!r} at least; remove it."
    if any(Verb.APPROVE in (one.requires_reason or ()) for one in rules):
        yield path, f"{shares}need a reason each; remove one of the two."
    notified = [one.notify for one in rules if one.notify is not None]
    if notified[-1:] == [Notify.DM]:
        text = f"{dotted(path)!r} is for cards in a channel, and people get a direct "
        yield path, f"{text}message about each of these; remove one of the two."
    agent = str(base[1]) if base[0] == "agents" else ""
    ttl_ms = EffectiveRules(policy, agent, str(base[-1])).ttl_ms(Tier.APPROVE)
    most_s = ttl_ms / 1000 / _SHARE
    if rule.within_s > most_s:
        place = (*path, "within")
        text = f"{dotted(place)!r} is {rule.within_s:g} s, and people have "
        text += f"{ttl_ms / 1000:g} s to decide; a card waits for a quarter of that at "
        yield place, f"{text}most, so write {most_s:g}s or less."
