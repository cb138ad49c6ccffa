"""Recognise turns whose every call runs by the policy alone, and open them unread.

What is decided of such a turn depends neither on its arguments, nor on the moment, nor
on earlier calls. So nothing is read before it opens: one round trip less. What stops a
call in spite of its policy (a freeze, a pause, a rejection, an earlier submit of the
turn) is compared in the step that opens it; where there is any, nothing is written, and
the turn is evaluated as every other one.
"""

from __future__ import annotations

from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.evaluate import Evaluation, evaluate
from twokey.gateway.policy.remembered import Remembered
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.wire import ProposedCall, Turn


class AlwaysAuto:
    """What policies say of tools whose calls they always let run."""

    def __init__(self) -> None:
        self._said = Remembered(_always)

    def evaluations(self, policy: Policy, turn: Turn) -> list[Evaluation] | None:
        """Return what is said of each call; None when not every one always runs."""
        # A draw, and what it is drawn of, is different each time.
        if policy.spot_checks is not None:
            return None
        found: list[Evaluation] = []
        for call in turn.calls:
            one = self._said.of(policy, turn.ref.agent, call.tool)
            if one is None or not _is_plain(call):
                return None
            found.append(one)
        return found


def _is_plain(call: ProposedCall) -> bool:
    """Return whether nothing but the policy has a say in a call."""
    return bool(call.tool) and not (call.hint or call.problem or call.is_question)


def _always(policy: Policy, agent: str, tool: str) -> Evaluation | None:
    """Return the evaluation of every call of a tool; None when calls may differ."""
    rules = EffectiveRules(policy, agent, tool)
    tier, _ = rules.tier()
    may_differ = (
        tier is not Tier.AUTO
        or rules.raising()
        or rules.first.args_schema is not None
        or rules.triage(tier) is not None
        or any(window.covers(tool) for window in policy.windows.values())
    )
    return None if may_differ else evaluate(policy, agent=agent, tool=tool, args={})
