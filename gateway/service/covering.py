"""Match a turn's calls to the standing approvals that cover them.

The calls were evaluated before: only what the policy gives to people at tier
``approve`` is looked at. What is found here is compared again in the step that opens
the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from twokey.gateway.approvals.precedents import PrecedentKind
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.standing import (
    Wanted,
    bounds_of,
    covered_amount,
    end_reason,
    used,
)
from twokey.gateway.policy.standing import repeats_are_meant, similar_rule
from twokey.gateway.service.precedents import TurnPrecedents
from twokey.gateway.service.proposals import EvaluatedCall
from twokey.gateway.service.standing_ends import end_standing
from twokey.gateway.store.agent_load import AgentLoad
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store


async def covered(
    store: Store,
    keys: Keys,
    same: TurnPrecedents,
    load: AgentLoad,
    evaluated: Sequence[EvaluatedCall],
) -> list[EvaluatedCall]:
    """Return the calls of a turn, those that are covered with their approval.

    Args:
        store: where the standing approvals are.
        keys: of the tenant's shard.
        same: the turn, and the effects of its calls.
        load: what was read of its agent.
        evaluated: its calls, in their order.
    """
    found = list(evaluated)
    # Who asked earlier is not known, and may have given it.
    if load.thread.is_partial:
        return found
    agent, policy = same.turn.ref.agent, same.policy
    wanted = {
        position
        for position, one in enumerate(evaluated)
        if _may_be_covered(one) and similar_rule(policy, agent, one.call.tool)
    }
    if not wanted:
        return found
    chosen = _Chosen(same, load, await _in_force(store, keys, same))
    return [
        chosen.cover(position, one) if position in wanted else one
        for position, one in enumerate(found)
    ]


async def standing_of(store: Store, item: Item) -> Approval | None:
    """Return the standing approval that covered a call, if any, as it stands."""
    if item.cover is None:
        return None
    found = await store.approvals.load(item.cover.approval)
    return found.approval if found else None


def _may_be_covered(one: EvaluatedCall) -> bool:
    is_asked = not one.refusal and one.evaluation.can_cover
    # A business state is what its approver saw; nobody looks at this one.
    is_plain = one.call.state is None and not one.call.problem
    # What a model wants people to look at is not what they meant by similar.
    raised = one.triage_result.raised_to if one.triage_result else None
    # Nor is what it could not look at: an agent may have made it fail.
    is_plain = is_plain and raised is None and not one.has_no_opinion
    return is_asked and is_plain and bool(one.effect)


async def _in_force(
    store: Store, keys: Keys, same: TurnPrecedents
) -> dict[str, Approval]:
    """Return those of the tenant; ends what the policy of now ends, for good."""
    ids = await store.standing.listed(keys, same.tenant)
    found: dict[str, Approval] = {}
    for loaded in await store.approvals.load_each(ids):
        standing = loaded.approval
        if standing.tenant != same.tenant or not standing.is_standing:
            continue
        if reason := end_reason(standing, same.policy.digest):
            await end_standing(store, keys, standing.id, reason)
        else:
            found[standing.id] = standing
    return found


class _Chosen:
    """Chooses for one call after the other; each sees the uses of those before it."""

    def __init__(
        self, same: TurnPrecedents, load: AgentLoad, standing: dict[str, Approval]
    ) -> None:
        self._same = same
        self._load = load
        self._read = standing
        self._left = dict(standing)
        self._effects = set[str]()

    def cover(self, position: int, one: EvaluatedCall) -> EvaluatedCall:
        """Return a call with the first standing approval that covers it, if any."""
        is_first = self._is_first(position, one.effect)
        for standing_id, standing in self._left.items():
            is_allowed = is_first or repeats_are_meant(
                self._same.policy, bounds_of(standing)
            )
            amount = self._amount(standing, one) if is_allowed else None
            if amount is not None:
                after, _ = used(standing, "", amount, self._load.now_ms)
                self._left[standing_id] = after
                self._effects.add(one.effect)
                read = self._read[standing_id]
                return replace(one, standing=read, amount_micro=amount)
        return one

    def _is_first(self, position: int, effect: str) -> bool:
        """Return whether nothing with the same effect was decided or is in this turn.

        What people rejected before goes to people again, as what was done does.
        """
        is_known = any(
            self._same.has_precedent(position, self._load, kind)
            for kind in PrecedentKind
        )
        return not is_known and effect not in self._effects

    def _amount(self, standing: Approval, one: EvaluatedCall) -> int | None:
        thread = self._load.thread
        asked = (thread.requester,) if thread.requester else ()
        call = Wanted(
            agent=self._same.turn.ref.agent,
            tool=one.call.tool,
            args=one.call.args,
            evaluation=one.evaluation,
            principals=(*asked, *thread.principals),
        )
        return covered_amount(standing, call, now_ms=self._load.now_ms)
