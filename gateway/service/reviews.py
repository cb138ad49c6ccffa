"""Facade for a chat front end: decide, batch, report, preview, message an agent."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from keyturn.gateway.approvals import deadline_changes, inquiring
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.collected import collected, is_collected
from keyturn.gateway.approvals.decisions import (
    Click,
    Decision,
    Edit,
    GestureOutcome,
    Outcome,
    Refusal,
    Reviewer,
)
from keyturn.gateway.approvals.gestures import Gesture, Partition
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, Inquiry, Item, Origin
from keyturn.gateway.approvals.requirement import Role
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.evaluate import asks_for_precedents
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.on_call import (
    QuietRule,
    asked_from,
    last_end,
    on_call,
    turn_at,
)
from keyturn.gateway.policy.rules import BatchRule, Policy
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.audit_reading import LiveMetrics, StatisticsService
from keyturn.gateway.service.call_evaluation import (
    depends_on_others,
    evaluate_decision,
    evaluate_waiting,
    shown_as,
)
from keyturn.gateway.service.deciding import DecisionService, Voters
from keyturn.gateway.service.freezing import FreezeService, ReviewerFreezes
from keyturn.gateway.service.quality_checks import SeededDefectService, SpotCheckService
from keyturn.gateway.service.queue import MAX_QUEUE, DelegationService, ReviewQueue
from keyturn.gateway.service.runs import RunService
from keyturn.gateway.service.standing import StandingService
from keyturn.gateway.service.tenant_service import PolicyService
from keyturn.gateway.store.atomic_write import Loaded, Write
from keyturn.gateway.store.jobs import Job, JobKind
from keyturn.gateway.store.store import Store
from keyturn.gateway.store.threads import ThreadFacts

MAX_REEVALUATED = 50
"""Waiting approvals that are evaluated again at most when a window may have changed."""


class ReviewService(PolicyService):
    """What a chat front end may ask on behalf of a person it verified."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self.store = store
        self.reach = Reach(policy)
        self.queue = ReviewQueue(store, tenant=tenant)
        self._shown_by = ""
        self.decisions = DecisionService(store, policy, tenant=tenant)
        self.freezes = FreezeService(store, tenant=tenant)
        self.reviewer_freezes = ReviewerFreezes(store, policy, tenant=tenant)
        self.statistics = StatisticsService(store, tenant=tenant)
        self.live_metrics = LiveMetrics(store, policy, tenant=tenant)
        self.seeded_defects = SeededDefectService(store, policy, tenant=tenant)
        self.spot_checks = SpotCheckService(store, policy, tenant=tenant)
        self.runs = RunService(store, policy, tenant=tenant)
        self.delegations = DelegationService(store, tenant=tenant)
        self.collected_cards = CollectedCardService(store, policy, tenant=tenant)
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
        gesture = Gesture.on_call(click, decision)
        found = await self.decisions.decide(gesture, reviewer, voters=voters, seen=seen)
        # The other outcomes name calls of a card.
        return cast("Outcome", found)

    async def decide_card(
        self,
        shown: Approval,
        click: Click,
        partition: Partition,
        reviewer: Reviewer,
        *,
        voters: Voters | None = None,
        seen: Loaded | None = None,
    ) -> GestureOutcome:
        """Decide the calls of a card by one gesture, in one write.

        All of the partition counts or nothing. Only calls that the policy of this
        moment escalates, and those that repeat another, are left out and named.

        Args:
            shown: the record of the card, as the person saw it.
            click: approval and version; its hash is the digest that was shown.
            partition: a decision for each call that waits.
            reviewer: who they are.
            voters: as for `decide`.
            seen: as for `decide`.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when a record is corrupt.
        """
        of_members = is_collected(shown)
        versions = await self.collected_cards.versions(shown.id) if of_members else {}
        gesture = Gesture.on_card(shown, click, partition, versions)
        return await self.decisions.decide(
            gesture, reviewer, voters=voters, seen=None if of_members else seen
        )

    async def report(self, approval_id: str, reporter: Reviewer, text: str) -> bool:
        """Keep what somebody reports of calls; False when they did before.

        Raises:
            StoreUnavailable: when it is not known to be kept.
        """

        async def compute(loaded: Loaded) -> Write | None:
            approval, now_ms = loaded.approval, loaded.now_ms
            if approval.tenant != self._tenant:
                return None
            change = inquiring.add_report(approval, reporter, text, now_ms)
            return Write(change) if change else None

        return await self.store.approvals.change(approval_id, compute) is not None

    async def ask_agent(
        self,
        agent: str,
        thread: str,
        text: str,
        *,
        requester: Person,
        origin: Origin | None,
        message_key: str = "",
    ) -> bool:
        """Give an agent a person's message; a worker runs it.

        Everybody who spoke in the thread is a principal of every call that comes of
        it. A message into a thread that waits supersedes what waits there.

        Args:
            agent: who is asked.
            thread: where.
            text: what.
            requester: who asks.
            origin: where in Slack the agent's words belong.
            message_key: names the message where it may be delivered again.

        Returns:
            False when this message was kept before: it runs once.

        Raises:
            StoreUnavailable: when it is not known to be kept; deliver it again.
            TooManySpeakers: when more people spoke here than are remembered.
        """

        def change(before: ThreadFacts) -> ThreadFacts:
            return before.asked_by(requester).with_(origin=origin)

        job = Job(
            kind=JobKind.START,
            tenant=self._tenant,
            agent=agent,
            thread=thread,
            input=text,
            id=secrets.token_hex(8),
        )
        key = message_key or job.id
        return await self._store.threads.ask(self._keys, job, key, change)

    async def was_asked(self, message_key: str) -> bool:
        """Return whether a message was kept for an agent."""
        threads = self._store.threads
        return await threads.was_asked(self._keys, message_key)

    async def extend(self, approval_id: str, reviewer: Reviewer) -> Change | Refusal:
        """Extend the deadline; see `deadline_changes.extend`.

        Raises:
            StoreUnavailable: when it is not known to be written; as the next three.
        """
        return await self._change_own(
            approval_id,
            lambda approval, now_ms: deadline_changes.extend(
                approval, reviewer, now_ms
            ),
        )

    async def acknowledge(
        self, approval_id: str, reviewer: Reviewer
    ) -> Change | Refusal:
        """Mark who handles it; see `deadline_changes.acknowledge`."""
        return await self._change_own(
            approval_id,
            lambda approval, now_ms: deadline_changes.acknowledge(
                approval, reviewer, now_ms
            ),
        )

    async def ask_requester(
        self, approval_id: str, call: int | None, reviewer: Reviewer, text: str
    ) -> Change | Inquiry | Refusal:
        """Add a question to the requester; see `inquiring.ask`."""
        return await self._change_own(
            approval_id,
            lambda approval, now_ms: inquiring.ask(
                approval, call, reviewer, text, now_ms
            ),
        )

    async def reply(
        self, approval_id: str, person: Person, text: str, ts: str
    ) -> Change | Inquiry | Refusal:
        """Add a reply of the requester; see `inquiring.reply`."""
        return await self._change_own(
            approval_id,
            lambda approval, now_ms: inquiring.reply(
                approval, person, text, ts, now_ms
            ),
        )

    def usergroups(self, item: Item) -> frozenset[str]:
        """Return the user groups that may matter for an item, then or now.

        Those of its pinned requirement, and those that the policy names for its tool at
        any tier: people whom either asks may come first.
        """
        pinned = (group for role in item.requirement.roles for group in role.usergroups)
        rules = EffectiveRules(self._policy(), item.ctx.agent, item.tool)
        named = (group for role in rules.everybody() for group in role.usergroups)
        return frozenset({*named, *pinned})

    async def waiting(self, limit: int = MAX_QUEUE) -> list[Loaded]:
        """Return approvals with an item that waits for a person, soonest due first.

        At most ``limit`` are looked at, so that a long queue costs no more.
        """
        return [loaded async for loaded in self.queue.waiting(limit)]

    async def as_of_now(self, loaded: Loaded) -> Loaded:
        """Return an approval as it is to be shown: needing what it needs now."""
        policy = self._policy()
        evaluated = await evaluate_waiting(self.store, policy, loaded.approval)
        shown = shown_as(loaded.approval, evaluated)
        return self.reach.resolved(Loaded(shown, loaded.now_ms))

    async def read_as_of_now(self, approval_id: str) -> Loaded | None:
        """Return what `read` does, as it is to be shown; never decide over this."""
        loaded = await self.read(approval_id)
        if loaded is not None and is_collected(loaded.approval):
            return await self.collected_cards.read(approval_id, self.as_of_now)
        return None if loaded is None else await self.as_of_now(loaded)

    async def reevaluated_waiting(self) -> list[Loaded]:
        """Return waiting approvals as of now; what is due soonest comes first."""
        policy = self._policy()
        found = [await self.as_of_now(one) async for one in self.queue.waiting()]
        # After all were read: if the store fails in between, the next look starts over.
        self._shown_by = policy.digest
        return found

    async def reevaluated(self, limit: int = MAX_REEVALUATED) -> list[Loaded]:
        """Return waiting approvals whose calls depend on others, soonest due first.

        Those of another policy are among them, unless all were returned under it;
        ``limit`` bounds what it costs.
        """
        policy = self._policy()
        is_new = policy.digest != self._shown_by
        if not (policy.windows or asks_for_precedents(policy) or is_new):
            return []
        waiting = self.queue.waiting(MAX_QUEUE if is_new else limit)
        found = [
            await self.as_of_now(loaded)
            async for loaded in waiting
            if depends_on_others(policy, loaded.approval)
            or (is_new and loaded.approval.policy_digest != policy.digest)
        ]
        self._shown_by = policy.digest
        return found

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


class CollectedCardService(PolicyService):
    """What collected cards show, by their id, and which calls the policy collects."""

    def rule(self, approval: Approval) -> BatchRule | None:
        """Return by which rule of the policy a single call may share a card; or None.

        Where the rule is about tasks, a call without one does not.
        """
        tool = approval.items[0].tool
        rule = EffectiveRules(self._policy(), approval.agent, tool).first.batch
        is_without = rule is not None and rule.by == "task" and not approval.task
        return None if is_without else rule

    def is_used(self) -> bool:
        """Return whether the policy lets any call share a card."""
        return any(rule.batch for _, rule in self._policy().tool_rules())

    async def read(
        self, card: str, shown: Callable[[Loaded], Awaitable[Loaded]] | None = None
    ) -> Loaded | None:
        """Return the record of a collected card; None when the id is of none.

        Args:
            card: its id.
            shown: returns a member as it is to be shown; without it each is as stored.
        """
        members, left = await self._members(card)
        if not members:
            return None
        seen = [await shown(one) for one in members] if shown else members
        now_ms = max(one.now_ms for one in seen)
        shows = [one.approval for one in seen]
        return Loaded(collected(card, shows, left=left), now_ms)

    async def read_short(self, short: str) -> list[Loaded]:
        """Return the records of the tenant's collected cards with a short id."""
        ids = await self._store.approvals.with_short_id(self._keys, short)
        found = [await self.read(one) for one in ids]
        return [one for one in found if one is not None]

    async def versions(self, card: str) -> dict[str, int]:
        """Return the versions of the approvals that a card shows, by id."""
        members, _ = await self._members(card)
        return {one.approval.id: one.approval.version for one in members}

    async def _members(self, card: str) -> tuple[list[Loaded], int]:
        keys = self._store.keys_of_approval(card)
        if keys is None:
            return [], 0
        found: list[Loaded] = []
        members, left = await self._store.collected_cards.members(keys, card)
        for approval_id in members:
            try:
                loaded = await self._store.approvals.load(approval_id)
            except CorruptRecord:
                loaded = None
            # Of one that is corrupt, or kept no longer, nothing can be shown or
            # decided, and that must not keep people from the others.
            if loaded is not None and loaded.approval.tenant == self._tenant:
                found.append(loaded)
        return found, left + len(members) - len(found)


@dataclass(frozen=True, slots=True)
class Reach:
    """Whom to ask now: on-call rotations and quiet hours of the policy in force.

    Worked out whenever an approval is read to be shown, and never stored: it changes
    who is asked and nothing about who may decide.
    """

    policy: Callable[[], Policy]

    def resolved(self, loaded: Loaded) -> Loaded:
        """Return an approval whose roles say whom of them to ask now."""
        approval, now_ms = loaded.approval, loaded.now_ms
        policy = self.policy()
        rules = policy.roles
        turns = {
            name: _has_turn(policy, name, now_ms)
            for rule in rules.values()
            if (name := rule.on_call) is not None
        }
        if not turns and not any(rule.quiet for rule in rules.values()):
            return loaded

        def asked(item: Item, role: Role) -> Role:
            rule = rules.get(role.name)
            if rule is None:
                return role
            asking = role.asked.with_(
                on_call=turns.get(rule.on_call or "", ()),
                quiet_until_ms=_quiet_until_ms(rule.quiet, approval, item, now_ms),
            )
            return role.with_(asking=asking)

        return Loaded(approval.with_roles(asked), now_ms)

    def changed_ms(self, now_ms: int) -> int:
        """Return when others began to be asked last; 0 when the policy is the same.

        At that moment quiet hours ended, or a turn of a rotation began.
        """
        moments = self._changes(utc(now_ms))
        return max((int(one.timestamp() * 1000) for one in moments), default=0)

    def _changes(self, now: datetime) -> Iterator[datetime]:
        policy = self.policy()
        for rule in policy.roles.values():
            if rule.quiet is not None:
                yield last_end(rule.quiet, now)
        for rotation in policy.on_call.values():
            turn = turn_at(rotation, now)
            if turn is not None:
                yield rotation.begin(turn)


def _has_turn(policy: Policy, rotation: str, now_ms: int) -> tuple[str, ...]:
    """Return who is on call; nobody before the first turn: then everybody is asked."""
    rule = policy.on_call.get(rotation)
    found = on_call(rule, utc(now_ms)) if rule else ""
    return (found,) if found else ()


def _quiet_until_ms(
    rule: QuietRule | None, approval: Approval, item: Item, now_ms: int
) -> int:
    # A call in doubt may have run, and its agent waits without a deadline: people are
    # asked at any hour.
    if rule is None or not item.is_pending:
        return 0
    expires = utc(approval.expires_at_ms)
    begin = asked_from(rule, item.tier, now=utc(now_ms), expires=expires)
    return int(begin.timestamp() * 1000) if begin else 0
