"""Evaluate a policy for a standing approval: the people who give it, and its bounds.

The evaluation runs when one is proposed and at each vote. Every covered call is also
evaluated on its own, by the rules of its tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from keyturn.gateway.approvals.similar import Bounds
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.evaluate import Evaluation
from keyturn.gateway.policy.rules import Policy, SimilarRule
from keyturn.gateway.protocol.records import Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject

NOT_OFFERED = "The policy does not let people allow similar calls of this tool."
CHANGED = "The policy changed since this was proposed, so it has to be proposed again."
OUTSIDE = "The policy does not let people allow as much as this."
HIDDEN = (
    "The policy hides an argument that would have to be equal, so reviewers could not "
    "see what is allowed."
)


@dataclass(frozen=True)
class Offer:
    """The standing approval that a person may give, starting from one call.

    Attributes:
        rule: the bounds set by the policy.
        equal: the arguments that have to be equal.
        each_micro: the amount of the call, in millionths; 0 without a sum.
        may_repeat: a call that repeats an earlier effect is covered, too.
    """

    rule: SimilarRule
    equal: JsonObject
    each_micro: int
    may_repeat: bool = False


@dataclass(frozen=True)
class Chosen:
    """Bounds that a person chose within an offer; amounts are in millionths."""

    lasting: timedelta
    uses: int
    each_micro: int = 0
    total_micro: int = 0


def similar_rule(policy: Policy, agent: str, tool: str) -> SimilarRule | None:
    """Return the bounds for standing approvals of a tool; None if there are none."""
    return EffectiveRules(policy, agent, tool).first.allow_similar


def evaluate_standing(
    policy: Policy, bounds: Bounds, *, opened_by: str, opened_ms: int
) -> Evaluation:
    """Return the requirement of a standing approval; tier ``deny`` if it is impossible.

    It needs at least the people of the tool at tier ``approve``. Requirements that
    rules added for the present call are pinned with the proposal.

    Args:
        policy: the current policy.
        bounds: the proposed bounds.
        opened_by: digest of the policy at the proposal.
        opened_ms: when it was proposed; the longest time counts from then.
    """
    rules = EffectiveRules(policy, bounds.agent, bounds.tool)
    tier, reasons = rules.tier()
    problem = CHANGED if opened_by != policy.digest else ""
    problem = problem or _problem(rules, bounds, opened_ms)
    is_possible = not problem and tier.rank <= Tier.APPROVE.rank
    reasons = (problem,) if problem else reasons
    return Evaluation(
        tier=Tier.APPROVE if is_possible else Tier.DENY,
        reasons=reasons,
        requirement=rules.requirement(Tier.APPROVE),
        policy_digest=policy.digest,
        allow=(Verb.APPROVE, Verb.REJECT),
        requires_reason=tuple(
            verb for verb in rules.requires_reason() if verb is not Verb.EDIT
        ),
        ttl_ms=rules.ttl_ms(Tier.APPROVE),
        channel=rules.channel(Tier.APPROVE),
        is_standing=True,
    )


def repeats_are_meant(policy: Policy, bounds: Bounds) -> bool:
    """Return whether all covered calls have one effect, so repeats are intended.

    Otherwise a repeated effect goes to people, who see the earlier calls.
    """
    return may_repeat(policy, bounds.agent, bounds.tool, bounds.free)


def may_repeat(policy: Policy, agent: str, tool: str, free: tuple[str, ...]) -> bool:
    """Return whether calls that differ only in these arguments have one effect."""
    same_by = EffectiveRules(policy, agent, tool).first.same_by
    if not same_by:
        return not free
    return not any(_overlap(path, one) for path in same_by for one in free)


def _problem(rules: EffectiveRules, bounds: Bounds, opened_ms: int) -> str:
    rule = rules.first.allow_similar
    if rule is None or Verb.APPROVE not in rules.allow():
        return NOT_OFFERED
    is_within = (
        bounds.uses <= rule.uses
        and bounds.until_ms <= opened_ms + rule.within_ms
        and set(bounds.may_differ) <= set(rule.may_differ)
        and bounds.amount == (rule.sum or "")
        and bounds.total_micro <= rule.total_micro
        and bounds.each_micro <= bounds.total_micro
    )
    if not is_within:
        return OUTSIDE
    return HIDDEN if _hides(rules.redact(), bounds) else ""


def _hides(redact: tuple[str, ...], bounds: Bounds) -> bool:
    """Return whether a hidden argument would have to be equal, or be added up."""
    free = bounds.may_differ
    return any(
        not any(f"{path}.".startswith(f"{one}.") for one in free) for path in redact
    )


def _overlap(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")
