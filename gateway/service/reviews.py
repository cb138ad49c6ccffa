"""Facade for a chat front end: decide, batch, report, preview, message an agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from twokey.gateway.approvals import deciding, reporting
from twokey.gateway.approvals.batch_deciding import (
    ONE_EDIT,
    BatchChange,
    Partition,
    decide_batch,
)
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.collected import is_collected
from twokey.gateway.approvals.decisions import (
    BatchDecided,
    BatchOutcome,
    Click,
    Decision,
    Edit,
    Outcome,
    Reviewer,
    Unknown,
    has_expired,
)
from twokey.gateway.approvals.policy_decision import PolicyDecision
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.policy.effects import asks_for_precedents
from twokey.gateway.policy.rules import Policy
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.service.agent_requests import AgentRequests
from twokey.gateway.service.as_shown import AsShownService
from twokey.gateway.service.asked_groups import AskedGroups
from twokey.gateway.service.collected_cards import CollectedCardService
from twokey.gateway.service.deadlines import TimeService
from twokey.gateway.service.decided_by import Asked, decided_by
from twokey.gateway.service.delegating import DelegationService
from twokey.gateway.service.freezing import FreezeService
from twokey.gateway.service.gesture_evaluation import evaluate_partition
from twokey.gateway.service.inquiries import InquiryService
from twokey.gateway.service.queue import MAX_QUEUE, ReviewQueue
from twokey.gateway.service.reach import Reach, Rotations
from twokey.gateway.service.reading_ahead import Quiet, ReadingAhead, at_once
from twokey.gateway.service.reevaluation import (
    depends_on_others,
    edits_add_up,
    evaluate_decision,
    evaluate_waiting,
    shown_as,
)
from twokey.gateway.service.refused_decisions import RefusedDecisions
from twokey.gateway.service.rejections import rejection_of
from twokey.gateway.service.reviewer_freezes import ReviewerFreezes
from twokey.gateway.service.runs import RunService
from twokey.gateway.service.seeded_defects import SeededDefectService
from twokey.gateway.service.spot_checks import SpotCheckService
from twokey.gateway.service.standing import StandingService
from twokey.gateway.service.statistics import LiveMetrics, StatisticsService
from twokey.gateway.service.sweep import Sweeper
from twokey.gateway.service.voters import Voters, asked
from twokey.gateway.store.atomic_write import Loaded, Write
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.store import Store

MAX_REEVALUATED = 50
"""Waiting approvals that are evaluated again at most when a window may have changed."""


class ReviewService(AgentRequests):
    """What a chat front end may ask on behalf of a person it verified."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self.store = store
        self.reach = Reach(policy, Rotations(policy))
        self._sweeper = Sweeper(store)
        self.queue = ReviewQueue(store, tenant=tenant)
        self._shown_by: dict[str, str] = {}
        self._asked_groups = AskedGroups()
        self._refused = RefusedDecisions(store)
        self.freezes = FreezeService(store, tenant=tenant)
        self.reviewer_freezes = ReviewerFreezes(store, policy, tenant=tenant)
        self.times = TimeService(store, tenant=tenant)
        self.inquiries = InquiryService(store, tenant=tenant)
        self.statistics = StatisticsService(store, tenant=tenant)
        self.live_metrics = LiveMetrics(store, policy, tenant=tenant)
        self.seeded_defects = SeededDefectService(store, policy, tenant=tenant)
        self.spot_checks = SpotCheckService(store, policy, tenant=tenant)
        self.runs = RunService(store, policy, tenant=tenant)
        self.delegations = DelegationService(store, tenant=tenant)
        self.collected_cards = CollectedCardService(store, policy, tenant=tenant)
        self.as_shown = AsShownService(store, policy, tenant=tenant)
        self.reading_ahead, *others = (
            ReadingAhead(store, policy, self.as_shown, tenant=tenant, part=part)
            for part in self._parts
        )
        self.readings_ahead = (self.reading_ahead, *others)
        self.standing = StandingService(store, policy, tenant=tenant)

    @property
    def channel(self) -> str:
        """Return where the policy sends what belongs to no tool."""
        return self._policy().defaults.channel

    @property
    def channels(self) -> tuple[str, ...]:
        """Return every channel that the policy names."""
        return self._policy().channels

    async def read(self, approval_id: str) -> Loaded | None:
        """Return an approval and the store's clock, or None for an unknown id.

        The id of a collected card is that of the record which shows its members.

        Raises:
            CorruptRecord: when the record is corrupt.
        """
        loaded = await self.store.approvals.load(approval_id)
        if loaded is None:
            return await self.collected_cards.read(approval_id)
        return loaded if loaded.approval.tenant == self._tenant else None

    async def decide(
        self,
        click: Click,
        decision: Decision,
        reviewer: Reviewer,
        *,
        voters: Voters | None = None,
        seen: Loaded | None = None,
    ) -> Outcome:
        """Decide or vote on one item; atomic, and safe to repeat.

        The decision, its audit entry, its event and the job that brings the agent
        back are one write. The current policy is asked as well as the pinned one, and
        the stricter wins.

        Args:
            click: what the person saw.
            decision: what they say.
            reviewer: who they are.
            voters: resolves those who voted before, who are unknown without it.
            seen: the record when the caller has just read it; spares one reading.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when the record is corrupt.
        """
        at_once = await self.as_shown.decide(
            click, decision, reviewer, voters=voters, seen=seen
        )
        if at_once is not None:
            return at_once
        by, read = Asked(), list[Approval]()

        async def compute(loaded: Loaded) -> Write | Outcome:
            approval, index = loaded.approval, click.index
            read[:] = [approval]
            if approval.tenant != self._tenant:
                return Unknown()
            policy = self._policy()
            evaluated = await evaluate_decision(
                self.store, policy, approval, index, decision
            )
            by.note(policy, {index: evaluated} if evaluated else {})
            result = deciding.decide(
                approval,
                click,
                decision,
                reviewer,
                now_ms=loaded.now_ms,
                policy_now=evaluated.policy_now if evaluated else None,
                voters=await asked(approval, index, voters),
                key=self._decision_key,
            )
            if not isinstance(result, Change):
                return result
            item = result.approval.items[index]
            # A rejected call gives its uses back in this very write: it takes no new.
            used = evaluated and item.may_run and evaluated.used
            return Write(
                result,
                inputs={index: used} if used else {},
                rejection=await rejection_of(
                    self.store, policy, result.approval, [item]
                ),
            )

        written = await self.store.approvals.change(click.approval, compute, seen=seen)
        if isinstance(written, Write):
            decided_by(self.store).keep(by, written.approval)
            return written.change.outcome(click.index)
        # The click came before the sweep: end it now, so that the card says so.
        if has_expired(written):
            await self._sweeper.expire_one(click.approval)
        found = Unknown() if written is None else written
        return await self._refused.noted(found, read, click, decision.kind, reviewer)

    async def decide_batch(
        self,
        click: Click,
        partition: Partition,
        reviewer: Reviewer,
        *,
        voters: Voters | None = None,
        seen: Loaded | None = None,
    ) -> BatchOutcome:
        """Decide every waiting call of an approval by one gesture, in one write.

        All of the partition counts or nothing; only calls that the policy of this
        moment escalates are left out and named.

        Args:
            click: approval and version; its hash is the batch digest that was shown.
            partition: what is decided of each call that waits.
            reviewer: who says it.
            voters: as for `decide`.
            seen: as for `decide`.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when the record is corrupt.
        """
        settled: list[BatchDecided] = []
        by, read = Asked(), list[Approval]()

        async def compute(loaded: Loaded) -> Write | BatchOutcome:
            approval = loaded.approval
            read[:] = [approval]
            if approval.tenant != self._tenant:
                return Unknown()
            policy = self._policy()
            if edits_add_up(policy, approval, partition):
                return ONE_EDIT
            found = await evaluate_partition(self.store, policy, loaded, partition)
            evaluated = found.calls
            by.note(policy, evaluated)
            result = decide_batch(
                approval,
                click,
                partition,
                reviewer,
                now_ms=loaded.now_ms,
                policies={index: one.policy_now for index, one in evaluated.items()},
                voters={
                    index: await asked(approval, index, voters) for index in evaluated
                },
                repeats=found.repeats,
                key=self._decision_key,
            )
            if not isinstance(result, BatchChange):
                return result
            settled[:] = [result.outcome]
            after = result.change.approval.items
            rejected = [after[index] for index in result.outcome.rejected]
            return Write(
                result.change,
                inputs={
                    index: one.used
                    for index, one in evaluated.items()
                    if one.used and after[index].may_run
                },
                rejection=await rejection_of(
                    self.store, policy, result.change.approval, rejected
                ),
            )

        written = await self.store.approvals.change(click.approval, compute, seen=seen)
        if isinstance(written, Write):
            decided_by(self.store).keep(by, written.approval)
            return settled[0]
        if has_expired(written):
            await self._sweeper.expire_one(click.approval)
        found = Unknown() if written is None else written
        return await self._refused.noted(found, read, click, "batch", reviewer)

    async def report(self, approval_id: str, reporter: Reviewer, text: str) -> bool:
        """Keep what somebody reports of calls; False when they did before.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """

        async def compute(loaded: Loaded) -> Write | None:
            approval, now_ms = loaded.approval, loaded.now_ms
            if approval.tenant != self._tenant:
                return None
            change = reporting.add_report(approval, reporter, text, now_ms)
            return Write(change) if change else None

        return await self.store.approvals.change(approval_id, compute) is not None

    def usergroups(self, item: Item) -> frozenset[str]:
        """Return the user groups that may matter for an item, then or now."""
        return self._asked_groups.of(self._policy(), item)

    async def waiting(self, limit: int = MAX_QUEUE) -> list[Loaded]:
        """Return approvals with an item that waits for a person, soonest due first.

        At most ``limit`` are looked at, so that a long queue costs no more.
        """
        return [loaded async for loaded in self.queue.waiting(limit)]

    async def as_of_now(self, loaded: Loaded) -> Loaded:
        """Return an approval as it is to be shown: needing what it needs now."""
        policy = self._policy()
        evaluated = await evaluate_waiting(self.store, policy, loaded.approval)
        self.as_shown.keep(loaded, policy, evaluated)
        shown = shown_as(loaded.approval, evaluated)
        return await self.reach.resolved(Loaded(shown, loaded.now_ms))

    async def read_as_of_now(self, approval_id: str) -> Loaded | None:
        """Return what `read` does, as it is to be shown; never decide over this."""
        loaded = await self.read(approval_id)
        if loaded is not None and is_collected(loaded.approval):
            return await self.collected_cards.read(approval_id, self.as_of_now)
        return None if loaded is None else await self.as_of_now(loaded)

    async def reevaluated_waiting(
        self, part: Keys | None = None, *, quiet: Quiet = at_once
    ) -> list[Loaded]:
        """Return waiting approvals as of now; what is due soonest comes first.

        With a ``part`` of the tenant, those of it alone; ``quiet`` is waited for before
        each.
        """
        policy = self._policy()
        found = [
            await self.as_of_now(one)
            async for one in _calmly(self.queue.waiting(MAX_QUEUE, part=part), quiet)
        ]
        self._note_shown(policy, part)
        return found

    async def reevaluated(
        self,
        limit: int = MAX_REEVALUATED,
        *,
        part: Keys | None = None,
        quiet: Quiet = at_once,
    ) -> list[Loaded]:
        """Return waiting approvals whose calls depend on others, soonest due first.

        Those of another policy are among them, unless all were returned under it;
        ``limit`` bounds what it costs. With a ``part`` of the tenant, only those of it
        are looked at; ``quiet`` is waited for before each.
        """
        policy = self._policy()
        is_new = policy.digest != self._shown_by.get(_place(part), "")
        if not (policy.windows or asks_for_precedents(policy) or is_new):
            return []
        waiting = self.queue.waiting(MAX_QUEUE if is_new else limit, part=part)
        found = [
            await self.as_of_now(loaded)
            async for loaded in _calmly(waiting, quiet)
            if depends_on_others(policy, loaded.approval)
            or (is_new and loaded.approval.policy_digest != policy.digest)
        ]
        self._note_shown(policy, part)
        return found

    def _note_shown(self, policy: Policy, part: Keys | None) -> None:
        # After all were read: if the store fails in between, the next look starts over.
        self._shown_by[_place(part)] = policy.digest

    async def preview(
        self, approval: Approval, index: int, args: JsonObject
    ) -> PolicyDecision | None:
        """Return what the policy would ask for if these arguments were to run.

        Nothing is recorded or reserved. None when there is no such item, or when the
        arguments are not strict JSON.
        """
        evaluated = await evaluate_decision(
            self.store, self._policy(), approval, index, Edit(args=args)
        )
        return evaluated.policy_now if evaluated else None


def _place(part: Keys | None) -> str:
    return part.shard if part else ""


async def _calmly(rows: AsyncGenerator[Loaded], quiet: Quiet) -> AsyncGenerator[Loaded]:
    async for one in rows:
        await quiet()
        yield one
