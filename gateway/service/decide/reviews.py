"""Facade for a chat front end: decide, batch, report, preview, message an agent."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, cast

from keyturn.gateway.approvals import quorum, waiting_changes
from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.decisions import (
    Changed,
    Click,
    Decision,
    Edit,
    GestureOutcome,
    Outcome,
    Reviewer,
)
from keyturn.gateway.approvals.gestures import Gesture, Partition
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import (
    LEFT,
    Approval,
    Item,
    Origin,
    collected,
    is_collected,
)
from keyturn.gateway.approvals.requirement import Asking, Notify, Role
from keyturn.gateway.policy import on_call
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.evaluate import asks_for_precedents
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.rules import BatchRule, Policy
from keyturn.gateway.protocol.records import Person, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.decide.deciding import DecisionService, Voters
from keyturn.gateway.service.people.freezing import ReviewerFreezes, RunService
from keyturn.gateway.service.people.queue import (
    MAX_QUEUE,
    DelegationService,
    ReviewQueue,
)
from keyturn.gateway.service.report.audit_reading import LiveMetrics
from keyturn.gateway.service.submit.call_evaluation import (
    as_of_now,
    call_by,
    depends_on_others,
    evaluate_now,
)
from keyturn.gateway.service.submit.quality_checks import (
    SeededDefectService,
    SpotCheckService,
)
from keyturn.gateway.service.submit.standing import StandingService
from keyturn.gateway.store import keys as store_keys
from keyturn.gateway.store.keys import tenant_of_approval
from keyturn.gateway.store.records.atomic_write import Loaded
from keyturn.gateway.store.reviewers.bot_records import Delegation
from keyturn.gateway.store.reviewers.cards import CardPlace
from keyturn.gateway.store.runs.jobs import Job, JobKind
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store

MAX_REEVALUATED = 50
"""Most waiting approvals to evaluate again after a window may have changed."""


@dataclass(frozen=True)
class ClickedApproval:
    """An approval, its card, and all delegations, in one snapshot.

    Attributes:
        loaded: the approval.
        place: its card; None before it was posted.
        delegations: those in force.
    """

    loaded: Loaded
    place: CardPlace | None = None
    delegations: tuple[Delegation, ...] = ()


class ReviewService(DecisionService):
    """The services that a chat front end uses on behalf of verified people."""

    def __init__(
        self, store: Store, policy: Callable[[], Policy], *, tenant: str = "default"
    ) -> None:
        super().__init__(store, policy, tenant=tenant)
        self.store = store
        self.queue = ReviewQueue(store, tenant=tenant)
        self._shown_by = ""
        self.freezes = ReviewerFreezes(store, policy, tenant=tenant)
        self.statistics = LiveMetrics(store, policy, tenant=tenant)
        self.seeded_defects = SeededDefectService(store, policy, tenant=tenant)
        self.spot_checks = SpotCheckService(store, policy, tenant=tenant)
        self.runs = RunService(store, policy, tenant=tenant)
        self.delegations = DelegationService(store, tenant=tenant)
        self.standing = StandingService(store, policy, tenant=tenant)

    async def read(self, approval_id: str) -> Loaded | None:
        """Return an approval and the store's clock, or None for an unknown id.

        For the id of a collected card, return the record that shows its members.

        Raises:
            CorruptRecord: when the record is corrupt.
        """
        loaded = await self._load(approval_id)
        return loaded or await self.read_collected(approval_id)

    async def read_clicked(self, approval_id: str) -> ClickedApproval | None:
        """Return the result of `read`, with the other data that a click needs."""
        keys, store = self._keys, self._store
        if tenant_of_approval(approval_id) != self._tenant:
            return None
        loaded, (card, rows) = await store.approvals.load_with(
            keys,
            approval_id,
            store.cards.reading(keys, approval_id),
            store.delegations.reading(keys),
        )
        loaded = loaded or await self.read_collected(approval_id)
        if loaded is None:
            return None
        return ClickedApproval(
            loaded,
            await store.cards.place_in(keys, card),
            await store.delegations.in_force(keys, rows, loaded.now_ms),
        )

    async def decide(
        self,
        click: Click,
        decision: Decision,
        reviewer: Reviewer,
        *,
        voters: Voters | None = None,
        read: Loaded | None = None,
    ) -> Outcome:
        """Decide or vote on one item; atomic, and safe to repeat.

        The decision, its audit entry, its event and the job that resumes the agent are
        one write. Both the pinned and the current policy apply, and the stricter one
        wins.

        Args:
            click: the approval, item and version that the person saw.
            decision: their decision.
            reviewer: the person.
            voters: resolves the earlier voters; without it they are unknown.
            read: the approval, if it was read for this click.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when the record is corrupt.
        """
        gesture = Gesture.on_call(click, decision)
        found = await self.decide_gesture(gesture, reviewer, voters=voters, read=read)
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
    ) -> GestureOutcome:
        """Decide the calls of a card by one gesture, in one write.

        All decisions of the partition are recorded, or none. The exceptions are calls
        that the current policy escalates and calls that repeat another one: they keep
        waiting, and the outcome names them.

        Args:
            shown: the record of the card, as the person saw it.
            click: approval and version; its hash is the shown digest.
            partition: a decision for each waiting call.
            reviewer: the person.
            voters: as for `decide`.

        Raises:
            StoreUnavailable: when it is not known to be written.
            CorruptRecord: when a record is corrupt.
        """
        members, left = list[Loaded](), 0
        if is_collected(shown):
            members, left = await self._members(shown.id)
        approvals = [one.approval for one in members]
        if approvals:
            now = collected(shown.id, approvals, left=left).version
            # A call that came back has a new version and the same hash. One that left
            # in its first version, such as an answered seeded defect, changes nothing.
            if (now - shown.version) % LEFT:
                return Changed(seen_version=shown.version, version=now)
        versions = {one.id: one.version for one in approvals}
        gesture = Gesture.on_card(shown, click, partition, versions)
        return await self.decide_gesture(gesture, reviewer, voters=voters)

    async def report(self, approval_id: str, reporter: Reviewer, text: str) -> bool:
        """Record a person's report about calls; False if they made one before.

        Raises:
            StoreUnavailable: when it is not known to be recorded.
        """
        change = waiting_changes.add_report
        found = await self.change_own(approval_id, change, reporter, text)
        return isinstance(found, Change)

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
        """Queue a person's message to an agent; a worker runs it.

        All people who spoke in the thread are principals of its later calls. A message
        in a thread with waiting calls supersedes them.

        Args:
            agent: name of the agent.
            thread: its thread.
            text: the message.
            requester: the person.
            origin: place in Slack for the agent's replies.
            message_key: name of the message, if it may be delivered again.

        Returns:
            False if this message was queued before: it runs once.

        Raises:
            StoreUnavailable: when it is not known to be queued; deliver it again.
            TooManySpeakers: when the thread has more people than the store can record.
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
        """Return whether a message was queued for an agent."""
        return await self._store.threads.was_asked(self._keys, message_key)

    def usergroups(self, item: Item) -> frozenset[str]:
        """Return the user groups whose members may have to decide an item.

        These are the groups of its pinned requirement, and the groups that the current
        policy names for its tool at any tier.
        """
        pinned = (group for role in item.requirement.roles for group in role.usergroups)
        rules = EffectiveRules(self._policy(), item.ctx.agent, item.tool)
        named = (group for role in rules.everybody() for group in role.usergroups)
        return frozenset({*named, *pinned})

    async def as_of_now(self, loaded: Loaded) -> Loaded:
        """Return an approval for display, with its current requirements."""
        shown = await as_of_now(self.store, self._policy(), loaded.approval)
        return await self._with_reach(Loaded(shown, loaded.now_ms))

    async def read_as_of_now(self, approval_id: str) -> Loaded | None:
        """Return the result of `read` for display; never decide on this record."""
        loaded = await self._load(approval_id)
        if loaded is not None:
            return await self.as_of_now(loaded)
        return await self.read_collected(approval_id, self.as_of_now)

    async def reevaluated(self, *, is_whole: bool = False) -> list[Loaded]:
        """Return waiting approvals as needed now, soonest due first.

        These are all of them if ``is_whole``, and once after a change of the policy
        those from another policy. Else they are those whose calls depend on others:
        `MAX_REEVALUATED` are looked at.
        """
        policy = self._policy()
        is_new = policy.digest != self._shown_by
        if not (is_whole or is_new or policy.windows or asks_for_precedents(policy)):
            return []
        most = MAX_QUEUE if is_whole or is_new else MAX_REEVALUATED
        found = [
            await self.as_of_now(loaded)
            async for loaded in self.queue.waiting(most)
            if is_whole
            or depends_on_others(policy, loaded.approval)
            or (is_new and loaded.approval.policy_digest != policy.digest)
        ]
        # After all were read: if the store fails in between, the next call starts over.
        self._shown_by = policy.digest
        return found

    async def preview(
        self, approval: Approval, index: int, args: JsonObject
    ) -> PolicyDecision:
        """Return the policy's decision on a call with these arguments.

        Nothing is recorded or reserved.
        """
        call = await call_by(approval, approval.items[index], Edit(args=args))
        return (await evaluate_now(self._store, self._policy(), call)).policy_now

    # Collected cards: the records of their members, and the rules for collecting.

    def collecting_rule(self, approval: Approval) -> BatchRule | None:
        """Return the rule that lets a single call share a card, or None.

        A rule by task needs a call with a task.
        """
        tool = approval.items[0].tool
        if self._is_flood(approval):
            return _FLOOD
        rule = EffectiveRules(self._policy(), approval.agent, tool).first.batch
        is_without = rule is not None and rule.by == "task" and not approval.task
        return None if is_without else rule

    async def read_collected(
        self, card: str, shown: Callable[[Loaded], Awaitable[Loaded]] | None = None
    ) -> Loaded | None:
        """Return the record of a collected card; None for any other id.

        Args:
            card: its id.
            shown: prepares a member for display; without it members are as stored.
        """
        members, left = await self._members(card)
        if not members:
            return None
        seen = [await shown(one) for one in members] if shown else members
        now_ms = max(one.now_ms for one in seen)
        shows = [one.approval for one in seen]
        return Loaded(collected(card, shows, left=left), now_ms)

    async def list_together(self, approvals: Sequence[str]) -> Loaded | None:
        """Return approvals of one call each as the record of a new list.

        The list can be read by its id, like a collected card, and has no card.
        """
        listed = store_keys.approval_id(self._tenant, secrets.token_hex(16))
        store = self._store.collected_cards
        await store.list_together(self._keys, listed, approvals)
        return await self.read_collected(listed)

    async def read_short(self, short: str) -> list[Loaded]:
        """Return the tenant's approvals and collected cards with a short id.

        Nearly always this is one.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        ids = await self._store.approvals.with_short_id(self._keys, short)
        collected = [await self.read_collected(one) for one in ids]
        found = await self._load_each(ids)
        return [*found, *(one for one in collected if one is not None)]

    async def _members(self, card: str) -> tuple[list[Loaded], int]:
        keys = self._store.keys_of_approval(card)
        if keys is None:
            return [], 0
        members, left = await self._store.collected_cards.members(keys, card)
        # A corrupt or expired member cannot be shown or decided, and must not block the
        # others.
        found = await self._load_each(members)
        # A list for a form may have the seeded defect, which has no record.
        if len(found) < len(members) and (
            seeded := await self.seeded_defects.waiting()
        ):
            found += [seeded] if seeded.approval.id in members else []
            found.sort(key=lambda one: members.index(one.approval.id))
        return found, left + len(members) - len(found)

    # The people to notify now, by on-call rotations and quiet hours of the policy.
    #
    # Computed whenever an approval is read for display, and never stored: it affects
    # notifications only, not the right to decide.

    async def _with_reach(self, loaded: Loaded) -> Loaded:
        """Return an approval whose roles name the people to notify now."""
        approval, now_ms = loaded.approval, loaded.now_ms
        policy = self._policy()
        rules = policy.roles
        # Empty before the first turn of a rotation: then all are notified.
        turns = {
            name: tuple(filter(None, [on_call.on_call(rotation, utc(now_ms))]))
            for name, rotation in policy.on_call.items()
        }
        silent, often = await self._silence(approval)
        is_timed = turns or any(rule.quiet for rule in rules.values())
        is_flood = self._is_flood(approval)
        if not (is_timed or is_flood or often):
            return loaded

        def asked(item: Item, role: Role) -> Role:
            if is_flood and role.notify is Notify.DM:
                # Direct messages have one card for each call.
                role = role.with_(notify=Notify.MENTION)
            asking = _without(approval, item, role.asked, often, silent)
            rule = rules.get(role.name)
            if rule is None:
                return role.with_(asking=asking)
            asking = asking.with_(
                on_call=turns.get(rule.on_call or "", ()),
                quiet_until_ms=_quiet_until_ms(rule.quiet, approval, item, now_ms),
            )
            return role.with_(asking=asking)

        return Loaded(approval.with_roles(asked), now_ms)

    async def _silence(
        self, approval: Approval
    ) -> tuple[Literal["", "flood"], set[str]]:
        """Return the reason for no notifications, and the people at their limit.

        Both are empty after a reminder, and for calls that are not at ``approve``.
        """
        limit, often = self._policy().attention, set[str]()
        if (
            not _is_usual(approval)
            or approval.reminded_at_ms
            or approval.escalated_at_ms
        ):
            return "", often
        if self._is_flood(approval):
            return "flood", often
        if limit is not None:
            for whom in _asked_by(approval):
                # Not by the present time: a card names the same people when it is drawn
                # again.
                before_ms = approval.created_at_ms
                count = await self._store.cards.notified(
                    self._keys, whom, before_ms, limit.within
                )
                if count >= limit.per_person:
                    often.add(whom)
        return "", often

    def _is_flood(self, approval: Approval) -> bool:
        """Return whether the agent made so many requests that its calls share cards."""
        flood = self._policy().protect.flood_per_10m
        return _is_usual(approval) and approval.recent_requests > flood

    def reach_changed_ms(self, now_ms: int) -> int:
        """Return the last change of the people to notify, in ms; 0 without one.

        This is the last end of quiet hours, or the last begin of a rotation's turn.
        """
        policy, now = self._policy(), utc(now_ms)
        moments = [
            on_call.last_end(rule.quiet, now)
            for rule in policy.roles.values()
            if rule.quiet
        ]
        for rotation in policy.on_call.values():
            turn = on_call.turn_at(rotation, now)
            moments += [] if turn is None else [rotation.begin(turn)]
        return max((int(one.timestamp() * 1000) for one in moments), default=0)


def _is_usual(approval: Approval) -> bool:
    return {item.tier for item in approval.items} == {Tier.APPROVE}


def _asked_by(approval: Approval) -> set[str]:
    """Return the people and user groups who can be notified of pending calls."""
    pending = [item for item in approval.items if item.is_pending]
    roles = [role.asked for item in pending for role in item.requirement.roles]
    return {one for asked in roles for one in (*asked.users, *asked.usergroups)}


def _without(
    approval: Approval,
    item: Item,
    asking: Asking,
    often: set[str],
    silent: Literal["", "flood"],
) -> Asking:
    """Return the people to ask without those who had enough cards."""
    users = tuple(one for one in asking.users if one not in often)
    groups = tuple(one for one in asking.usergroups if one not in often)
    barred = (*approval.principals, *quorum.editors(item, item.requirement))
    voted = (vote.by for vote in item.votes_now)
    left = {*users, *groups} - {one.user for one in (*barred, *voted)}
    why = silent or ("enough" if often and not left else "")
    return asking.with_(users=users, usergroups=groups, silent=why)


_FLOOD = BatchRule(within=timedelta(seconds=10))
"""Calls of a flood share cards, whatever the rules of their tools."""


def _quiet_until_ms(
    rule: on_call.QuietRule | None, approval: Approval, item: Item, now_ms: int
) -> int:
    # A call in doubt may have run, and its agent waits without a deadline, so people
    # are notified at any hour.
    if rule is None or not item.is_pending:
        return 0
    expires = utc(approval.expires_at_ms)
    begin = on_call.asked_from(rule, item.tier, now=utc(now_ms), expires=expires)
    return int(begin.timestamp() * 1000) if begin else 0
