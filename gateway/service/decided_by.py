"""Keep by what calls were decided, for the moment in which they start.

Right before a call starts, the policy of now is asked about it. In the process in which
somebody just decided it, that was done a moment ago: where nothing that is not compared
in the step that writes could make it say something else, it is not asked again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.clock import now_s
from twokey.gateway.policy.effects import reads_moment
from twokey.gateway.policy.rules import Policy
from twokey.gateway.service.call_evaluation import CurrentEvaluation
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.store import Store

MOST_KEPT: Final = 2_000
"""Of how many calls it is kept at most."""

KEPT_S: Final = 60.0
"""How long it is kept: a call that did not start by then may start elsewhere."""


@dataclass
class Asked:
    """Which policy was asked about calls last, and what it said of each, by index.

    ``is_lasting`` when `lasts` was asked of all of them, and they do.
    """

    policy: Policy | None = None
    evaluated: Mapping[int, CurrentEvaluation] = field(
        default_factory=dict[int, CurrentEvaluation]
    )
    is_lasting: bool = False

    def note(self, policy: Policy, evaluated: Mapping[int, CurrentEvaluation]) -> None:
        """Take what a policy said, in place of what one said before."""
        self.policy, self.evaluated = policy, evaluated


@dataclass(frozen=True)
class _Kept:
    policy: Policy
    action_hash: str
    evaluation: CurrentEvaluation
    at_s: float


class DecidedBy:
    """What the policy said of calls when they were decided, by their action hash."""

    def __init__(self) -> None:
        self._by_item = OrderedDict[str, _Kept]()
        # Event loops of several threads share one store.
        self._lock = threading.Lock()

    def keep(self, by: Asked, approval: Approval) -> None:
        """Keep by what the calls of an approval were decided that may start now."""
        policy = by.policy
        if policy is None:
            return
        at_s = now_s()
        with self._lock:
            for index, one in by.evaluated.items():
                item = approval.items[index]
                if not item.may_run or _is_shared(one):
                    continue
                if by.is_lasting or lasts(policy, item, one):
                    kept = _Kept(policy, item.action_hash, one, at_s)
                    self._by_item[item.id] = kept
                    self._by_item.move_to_end(item.id)
            while self._by_item and self._has_one_too_many(at_s):
                self._by_item.popitem(last=False)

    def _has_one_too_many(self, at_s: float) -> bool:
        oldest = next(iter(self._by_item.values()))
        return len(self._by_item) > MOST_KEPT or at_s - oldest.at_s >= KEPT_S

    def find(self, policy: Policy, item: Item) -> CurrentEvaluation | None:
        """Return what this very policy said of a call, if it is the same call."""
        kept = self._by_item.get(item.id)
        if kept is None or kept.policy is not policy:
            return None
        return kept.evaluation if kept.action_hash == item.action_hash else None


_KEPT = WeakKeyDictionary[Store, DecidedBy]()


def decided_by(store: Store) -> DecidedBy:
    """Return what is kept beside a store: its services do not know each other."""
    found = _KEPT.get(store)
    return _KEPT.setdefault(store, DecidedBy()) if found is None else found


def decided_just_now(
    store: Store, policy: Policy, loaded: Loaded, item: Item
) -> CurrentEvaluation | None:
    """Return by what a call was decided that is to start now, if this is known."""
    # Only where nobody read the record: then a change is made of it, in which the store
    # compares record and freezes, and no refusal.
    if loaded.remembered is None:
        return None
    return decided_by(store).find(policy, item)


def lasts(policy: Policy, item: Item, one: CurrentEvaluation) -> bool:
    """Return whether an evaluation holds as long as what is compared stays the same."""
    if item.is_question or item.is_standing:
        return False
    # A window that counts requests may have a total of this moment.
    is_compared = set(one.used.totals) == {use.name for use in one.used.uses}
    return is_compared and not reads_moment(policy, item.ctx.agent, item.tool)


def _is_shared(one: CurrentEvaluation) -> bool:
    """Return whether other calls, or a freeze, have a part in an evaluation."""
    used = one.used
    return bool(used.uses) or used.known is not None or one.freeze is not None
