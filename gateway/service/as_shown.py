"""Decide over an approval as it was last shown, without reading it again.

Who draws a card has just read its record and evaluated its calls. That is kept for a
while, and a click is decided from it in one step: what the decision was made from is
compared in the step that writes it. Where anything differs, nothing is written and the
decision is made from a new reading, which alone refuses anything.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from twokey.gateway.approvals import deciding
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import (
    Approve,
    Click,
    Decision,
    Outcome,
    Reviewer,
)
from twokey.gateway.approvals.record import Approval
from twokey.gateway.clock import now_s
from twokey.gateway.policy.rules import Policy
from twokey.gateway.service.call_evaluation import (
    CurrentEvaluation,
    with_own_requirement,
)
from twokey.gateway.service.decided_by import Asked, decided_by, lasts
from twokey.gateway.service.precomputed_starts import starts_of
from twokey.gateway.service.precomputing import Call, Precomputation, precompute, whole
from twokey.gateway.service.tenant_service import PolicyService
from twokey.gateway.service.voters import Voters, asked
from twokey.gateway.store.atomic_write import Assumed, Loaded, Write
from twokey.gateway.store.freezes import names_of
from twokey.gateway.store.keys import KeptText
from twokey.gateway.store.known_records import parsed_size, stored_size
from twokey.gateway.store.precomputed import Beside, MadeOnce
from twokey.gateway.store.store import Store

MOST_BYTES: Final = 100_000_000
"""How much memory what is kept takes at most, about: each process has its own."""

_EVALUATED = 6_000
"""About how many bytes an evaluation takes. What is kept of a small call, with its
parsed record, is fifty times its action document."""

_PRECOMPUTED = 20_000
"""About how many bytes a precomputation takes."""

MOST_CALLS: Final = 5
"""Of an approval with more waiting calls nothing is precomputed. Each decision makes
another version, so that one precomputation of all is used at most, and each takes the
longer the more calls there are."""

_FULL = 0.9
_AHEAD_S = 60.0
"""What is pushed out sooner than this was read ahead in vain."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody clicked who stands in for nobody, as far as anybody knows.

    Attributes:
        channel: of the card.
        ts: of the card.
        user: Slack id of who clicked.
        display: digest of what the card shows, as far as this process knows; "" if it
            does not. The decision says that its person saw that.
        seen: how the request is remembered in which they did, if nobody did that: it
            has to be new. None when somebody did.
        kept: what else is kept in the same step.
    """

    channel: str
    ts: str
    user: str
    display: str = ""
    seen: KeptText | None = None
    kept: Sequence[KeptText] = ()


@dataclass(slots=True)
class _Shown:
    loaded: Loaded
    policy: Policy
    evaluated: Mapping[int, CurrentEvaluation]
    read_s: float
    own_size: int
    precomputations: dict[int, Precomputation] = field(
        default_factory=dict[int, Precomputation]
    )
    # With which digest of its card that was tried last; None: never.
    precomputed_as: str | None = None

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return self.own_size + sum(map(_size_of, self.precomputations.values()))


class AsShownService(PolicyService):
    """Decides over approvals as this process showed them last.

    Args:
        store: where decisions are written.
        policy: returns the policy in force now.
        tenant: whose records the service reads and changes.
        clock: seconds that only go forward.

    Attributes:
        bytes: how much memory it takes, about.
    """

    def __init__(
        self,
        store: Store,
        policy: Callable[[], Policy],
        *,
        tenant: str = "default",
        clock: Callable[[], float] = now_s,
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self._clock = clock
        self._decided_by = decided_by(store)
        self._by_id: OrderedDict[str, _Shown] = OrderedDict()
        self.bytes = 0

    def keep(
        self, loaded: Loaded, policy: Policy, evaluated: Mapping[int, CurrentEvaluation]
    ) -> None:
        """Keep an approval, and what the policy said of the calls that wait in it.

        What depends on the moment, or on what nobody compares later, is left out.
        """
        approval = loaded.approval
        before = self._by_id.get(approval.id)
        self._forget(approval.id)
        lasting = {
            index: with_own_requirement(approval.items[index], one)
            for index, one in evaluated.items()
            if lasts(policy, approval.items[index], one)
        }
        if not lasting or approval.tenant != self._tenant:
            return
        size = parsed_size(approval) + stored_size(loaded.stored)
        size += _EVALUATED * len(lasting)
        # Of a queue that was read at once, the last one may be evaluated long after it
        # was read: by the moment of now it would look older than what scripts take.
        read_s = self._clock() - loaded.age_s
        shown = _Shown(loaded, policy, lasting, read_s, size)
        if before is not None and _is_as_before(before, shown):
            shown.precomputations.update(before.precomputations)
            shown.precomputed_as = before.precomputed_as
        self._by_id[approval.id] = shown
        self.bytes += shown.size
        self._make_room()

    def moved(self, approval_id: str, at_ms: int) -> None:
        """Forget an approval that changed then, unless it was read since.

        Args:
            approval_id: of the approval.
            at_ms: when it changed, in milliseconds of the store.
        """
        shown = self._by_id.get(approval_id)
        if shown is not None and shown.loaded.now_ms <= at_ms:
            self._forget(approval_id)

    def has_room(self) -> bool:
        """Return False where reading ahead would push out what was just read."""
        # Of many approvals at once nearly all would be read and computed for nothing.
        if self.bytes < _FULL * MOST_BYTES:
            return True
        oldest = next(iter(self._by_id.values()), None)
        if oldest is None or oldest.policy is not self._policy():
            return True
        return self._clock() - oldest.read_s >= _AHEAD_S

    def find(self, approval_id: str) -> Loaded | None:
        """Return an approval as it was shown last, under the policy of now.

        It may have changed since: what it says refuses nobody anything. The time is the
        store's when it was read, plus what has passed here since then.
        """
        shown = self._shown(approval_id)
        return self._loaded(shown) if shown else None

    def precompute(self, approval_id: str) -> None:
        """Precompute the approval of each shown call, where that can be done.

        It takes about as long as to decide it twice: for when nobody waits.
        """
        shown = self._shown(approval_id)
        keys = self._store.keys_of_approval(approval_id)
        if shown is None or keys is None:
            return
        display, key = self._store.cards.display_of(approval_id), self._decision_key
        # Only a worker of this process starts a call right after it is approved here.
        lease_ms = self._store.lease_ms if self._store.approvals.takers else 0
        shown.precomputed_as = display
        if len(shown.evaluated) > MOST_CALLS:
            return
        for index, evaluated in shown.evaluated.items():
            call, conn = Call(shown.loaded, index, evaluated, display), self._store.conn
            found = precompute(conn, keys, call, write_of, key=key, lease_ms=lease_ms)
            if found is None:
                continue
            before = shown.size
            shown.precomputations[index] = found
            self.bytes += shown.size - before
        self._make_room()

    def not_precomputed(self) -> list[str]:
        """Return what is to be precomputed, or again: its card was drawn since."""
        display_of, policy = self._store.cards.display_of, self._policy()
        return [
            approval_id
            for approval_id, shown in self._by_id.items()
            if shown.policy is policy
            and shown.precomputed_as != display_of(approval_id)
        ]

    def precomputed(self, click: Click) -> Precomputation | None:
        """Return the precomputation of what a click is on, under the policy of now."""
        shown = self._shown(click.approval)
        return shown.precomputations.get(click.index) if shown else None

    async def approve(
        self, click: Click, reviewer: Reviewer, place: Place | None = None
    ) -> bool:
        """Approve one item as it was precomputed; False: nothing was written.

        Args:
            click: what the person saw.
            reviewer: who they are.
            place: where they clicked, if nobody compared it with the store.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        shown = self._shown(click.approval)
        precomputation = shown.precomputations.get(click.index) if shown else None
        if shown is None or precomputation is None:
            return False
        key, now_ms = self._decision_key, self._now_ms(shown)
        moment = precomputation.moment(click, reviewer, now_ms, key)
        if moment is None:
            return False
        self._forget(click.approval)
        call, keys = precomputation.call, precomputation.keys
        beside = beside_of(call.approval, click.index, call.evaluated, place)
        make = MadeOnce(
            partial(
                whole, self._store.conn, keys, call, write_of, moment, reviewer, key
            )
        )
        seal = await self._store.approvals.write_precomputed(
            keys, precomputation.write, moment, beside, make
        )
        if not seal:
            return False
        if start := precomputation.started(moment, seal):
            starts_of(self._store).keep(call.item.id, start)
        by = Asked(shown.policy, {click.index: call.evaluated}, is_lasting=True)
        self._decided_by.keep(by, precomputation.after)
        return True

    async def decide(
        self,
        click: Click,
        decision: Decision,
        reviewer: Reviewer,
        *,
        voters: Voters | None = None,
        seen: Loaded | None = None,
        place: Place | None = None,
    ) -> Outcome | None:
        """Approve one item in one step.

        Args:
            click: what the person saw.
            decision: what they say.
            reviewer: who they are.
            voters: resolves those who voted before.
            seen: the record when the caller has just read it.
            place: where they clicked, if nobody compared it with the store.

        Returns:
            None when nothing was written: the decision has to be made from a reading.

        Raises:
            StoreUnavailable: when it is not known to be written.
        """
        shown = self._shown(click.approval)
        # A rejection ends standing approvals before it is written: never on a guess.
        if shown is None or not isinstance(decision, Approve):
            return None
        approval, evaluated = shown.loaded.approval, shown.evaluated.get(click.index)
        if evaluated is None or (seen and seen.approval.rev != approval.rev):
            return None
        people = await asked(approval, click.index, voters)
        loaded = seen or self._loaded(shown)
        result = deciding.decide(
            loaded.approval,
            click,
            decision,
            reviewer,
            now_ms=loaded.now_ms,
            policy_now=evaluated.policy_now,
            voters=people,
            key=self._decision_key,
        )
        if not isinstance(result, Change):
            return None
        # Whatever comes of it: another version stands from now on, or did before.
        self._forget(approval.id)
        write = write_of(result, click.index, evaluated, place)
        if not await self._store.approvals.write_once(loaded, write):
            return None
        by = Asked(shown.policy, {click.index: evaluated}, is_lasting=True)
        self._decided_by.keep(by, result.approval)
        return result.outcome(click.index)

    def _shown(self, approval_id: str) -> _Shown | None:
        shown = self._by_id.get(approval_id)
        # The very policy: another one was not asked about these calls.
        return shown if shown and shown.policy is self._policy() else None

    def _loaded(self, shown: _Shown) -> Loaded:
        approval, stored = shown.loaded.approval, shown.loaded.stored
        return Loaded(approval, self._now_ms(shown), remembered={}, stored=stored)

    def _now_ms(self, shown: _Shown) -> int:
        passed_ms = int(1000 * (self._clock() - shown.read_s))
        return shown.loaded.now_ms + passed_ms

    def _make_room(self) -> None:
        while self.bytes > MOST_BYTES:
            self._forget(next(iter(self._by_id)))

    def _forget(self, approval_id: str) -> None:
        shown = self._by_id.pop(approval_id, None)
        if shown is not None:
            self.bytes -= shown.size


def _size_of(one: Precomputation) -> int:
    return _PRECOMPUTED if one.start is None else 3 * _PRECOMPUTED // 2


def _is_as_before(before: _Shown, now: _Shown) -> bool:
    """Return whether all would be precomputed alike: nothing has changed."""
    return (
        before.policy is now.policy
        and before.loaded.stored == now.loaded.stored
        and before.evaluated == now.evaluated
    )


def write_of(
    change: Change,
    index: int,
    evaluated: CurrentEvaluation,
    place: Place | None = None,
) -> Write:
    """Return what is written of a change of an item."""
    beside = beside_of(change.approval, index, evaluated, place)
    return Write(
        change,
        inputs={index: evaluated.used},
        unfrozen=beside.unfrozen,
        assumed=beside.assumed,
        kept=beside.kept,
    )


def beside_of(
    approval: Approval, index: int, evaluated: CurrentEvaluation, place: Place | None
) -> Beside:
    """Return what a change of an item is compared with, and what is kept beside it."""
    used, seen = evaluated.used, place.seen if place else None
    return Beside(
        Assumed(
            totals={
                (index, use.window, use.use): used.totals[use.name] for use in used.uses
            },
            place=f"{place.channel} {place.ts}" if place else "",
            display=place.display if place else "",
            stands_in_for_nobody=place.user if place else "",
            unseen=seen.key if seen else "",
        ),
        unfrozen=names_of(approval.agent, approval.items[index].tool),
        kept=(*([seen] if seen else []), *(place.kept if place else ())),
    )
