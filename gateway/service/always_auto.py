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
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.wire import ProposedCall, Turn

_MOST = 1024
"""Of how many tools what the policy says is remembered: agents choose their names."""


_Known = dict[tuple[str, str], Evaluation | None]


class AlwaysAuto:
    """What one policy says of tools whose calls it always lets run."""

    def __init__(self) -> None:
        self._known: tuple[Policy | None, _Known] = (None, {})

    def evaluations(self, policy: Policy, turn: Turn) -> list[Evaluation] | None:
        """Return what is said of each call; None when not every one always runs."""
        # A draw, and what it is drawn of, is different each time.
        if policy.spot_checks is not None:
            return None
        found: list[Evaluation] = []
        for call in turn.calls:
            one = self._of(policy, turn.ref.agent, call.tool)
            if one is None or not _is_plain(call):
                return None
            found.append(one)
        return found

    def _of(self, policy: Policy, agent: str, tool: str) -> Evaluation | None:
        # By identity: to compare policies takes longer than to ask one.
        of_policy, known = self._known
        if of_policy is not policy or len(known) >= _MOST:
            known = {}
            # In one step: a thread with another policy must not add to these.
            self._known = policy, known
        if (agent, tool) not in known:
            known[agent, tool] = _always(policy, agent, tool)
        return known[agent, tool]


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
