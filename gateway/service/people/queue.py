"""List a tenant's waiting approvals and past decisions, and delegate queues."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import timedelta

from keyturn.gateway.approvals.decisions import Gesture, Reviewer
from keyturn.gateway.approvals.ending import end_without_reviewers
from keyturn.gateway.approvals.events import BY_GATEWAY, Event, EventName
from keyturn.gateway.approvals.lifecycle import ApprovalState
from keyturn.gateway.approvals.quorum import is_dead_end
from keyturn.gateway.approvals.record import Approval, Concerned, Item
from keyturn.gateway.approvals.timing import is_over
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.failures import log_failure
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.protocol.records import Person, Tier
from keyturn.gateway.service.submit.call_evaluation import as_of_now
from keyturn.gateway.service.tenant_service import TenantService
from keyturn.gateway.store.connection.listed_members import approvals_by_score
from keyturn.gateway.store.records.atomic_write import Loaded, Write
from keyturn.gateway.store.reviewers.bot_records import MOST_DELEGATIONS, Delegation
from keyturn.gateway.store.store import Store

logger = logging.getLogger(__name__)

MAX_ENTRIES = 2000
"""Most audit entries that one reading goes back."""

DECIDED = frozenset(
    {
        EventName.ITEM_AUTHORIZED,
        EventName.ITEM_VOTED,
        EventName.ITEM_REJECTED,
        EventName.ITEM_ANSWERED,
        EventName.ITEM_WITHDRAWN,
        EventName.ITEM_EXPIRED,
        EventName.ITEM_RECONCILED,
    }
)
"""Events that end a reviewer's part in a call, or its waiting."""


class PastDecisions(TenantService):
    """The decided calls of one tenant, and the calls that expired undecided."""

    async def newest(
        self, limit: int = MAX_ENTRIES
    ) -> AsyncGenerator[tuple[Event, Approval]]:
        """Yield decisions on calls that are still kept, each with its approval.

        Calls that the policy cleared are skipped: no person decided them.

        Args:
            limit: how many entries are read.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        seen: dict[str, Approval | None] = {}
        async for event in self._store.audit(self._keys).newest(limit):
            if not _is_decision(event):
                continue
            if event.approval not in seen:
                found = await self._load_each([event.approval])
                seen[event.approval] = found[0].approval if found else None
            if (approval := seen[event.approval]) is not None:
                yield event, approval


def _is_decision(event: Event) -> bool:
    if event.name is EventName.ITEM_AUTHORIZED and event.actor in {"", BY_GATEWAY}:
        return False  # a claim was released; this is no decision
    return event.name in DECIDED and not event.is_auto_approved


MAX_QUEUE = 2000
"""Most waiting approvals that are read from the queue at once."""

MAX_OF_PERSON = 5000
"""Most approvals that are read from one person's queue at once."""

LONGEST = timedelta(days=30)
"""Longest time for which a queue can be delegated at once."""

_PAGE = 100


_Page = list[tuple[str, Concerned]]


class ReviewQueue(TenantService):
    """The approvals of one tenant that wait for people."""

    async def waiting(self, limit: int = MAX_QUEUE) -> AsyncGenerator[Loaded]:
        """Yield approvals with an item that waits for a person, the soonest due first.

        They are read lazily, in pages: a caller that stops early has read at most one
        page too much. An approval whose deadline changes during the reading is yielded
        once.

        Args:
            limit: most approvals to yield.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        async for found in self._read(self._listed(), {}, limit):
            yield found

    async def waiting_by_tool(
        self, agent: str, channel: str
    ) -> tuple[Mapping[str, int], int]:
        """Return the number of an agent's waiting calls by tool.

        Only tools of the channel are named, since its members may not read others. The
        second number is that of the calls in other channels.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        pending = await self._store.agent_load.pending(self._keys, agent)
        tools, elsewhere = Counter[str](), 0
        for start in range(0, len(pending), _PAGE):
            for one in await self.read_each(pending[start : start + _PAGE]):
                if _waits(one):
                    called = [it.tool for it in one.approval.items if it.is_pending]
                    if one.approval.channel == channel:
                        tools.update(called)
                    else:
                        elsewhere += len(called)
        return tools, elsewhere

    async def end_without_reviewers(self) -> int:
        """End what needs people, because nobody can decide here any more.

        Returns:
            The number of approvals in which something ended.

        Raises:
            StoreUnavailable: some may have ended; call it again.
        """

        async def compute(loaded: Loaded) -> Write | None:
            change = end_without_reviewers(loaded.approval, loaded.now_ms)
            return Write(change) if change else None

        ended = 0
        for approval_id in await self._store.approvals.scheduled(self._keys):
            try:
                found = await self._store.approvals.change(approval_id, compute)
            except CorruptRecord as error:  # the sweep sets it aside
                log_failure(logger, error, "record.corrupt")
            else:
                ended += found is not None
        return ended

    async def groups(self) -> frozenset[str]:
        """Return the user groups that waiting approvals name.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        found = set[str]()
        async for page in self._listed():
            found.update(*(concerned.groups for _, concerned in page))
        return frozenset(found)

    async def concerning(
        self, people: Iterable[Reviewer], read: dict[str, Loaded] | None = None
    ) -> AsyncGenerator[Loaded]:
        """Yield waiting approvals that these people may decide or requested.

        The soonest due comes first. Some approvals may not need these people any more,
        for example after their vote: the caller has to check each. There is no limit:
        the caller counts.

        Args:
            people: as resolved now, together with those who delegated to them.
            read: cache of approvals by id; approvals that are read are added.
        """
        actors = list(people)
        groups = {
            group for one in actors for group in (*one.usergroups, *one.unknown_groups)
        }
        pages = self._listed(Concerned({one.user for one in actors}, groups))
        async for found in self._read(pages, {} if read is None else read, None):
            yield found

    async def _listed(self, people: Concerned | None = None) -> AsyncGenerator[_Page]:
        """Yield the waiting approvals, by pages; only those of some people, if given.

        The records are not read: a page of a queue costs little, although thousands of
        approvals wait for others.
        """
        conn, keys = self._store.conn, self._keys
        # Every waiting approval has a deadline, and so have some others.
        async for ids in approvals_by_score(conn, keys, keys.expiry, size=_PAGE):
            found = await self._store.approvals.concerned(keys, ids)
            yield [
                (one, each)
                for one, each in zip(ids, found, strict=True)
                if each and (people is None or each.includes(people))
            ]

    async def _read(
        self, pages: AsyncGenerator[_Page], known: dict[str, Loaded], limit: int | None
    ) -> AsyncGenerator[Loaded]:
        given = set[str]()
        async for page in pages:
            ids = [one for one, _ in page]
            missing = [one for one in ids if one not in known]
            for loaded in await self._load_each(missing):
                known[loaded.approval.id] = loaded
            for one in ids:
                found = known.get(one)
                # An extension moves an approval behind the current page.
                if one in given or found is None or not _waits(found):
                    continue
                if len(given) == limit:
                    return
                given.add(one)
                yield found

    async def read_each(self, approval_ids: Iterable[str]) -> list[Loaded]:
        """Return the tenant's approvals among these that exist and can be read."""
        return await self._load_each(approval_ids)


def _waits(loaded: Loaded) -> bool:
    is_open = loaded.approval.state is ApprovalState.OPEN
    return is_open and not is_over(loaded.approval, loaded.now_ms)


# Each takes separate readings, and this runs at each change of the policy.
MOST_LOOKED_AT = 1_000
"""Most approvals that are checked for dead ends, the soonest due first."""


async def dead_ends(store: Store, policy: Policy, *, tenant: str) -> list[Item]:
    """Return waiting calls without possible approvers under this policy.

    The policy changes while calls wait: people are replaced, roles are renamed, a tool
    is forbidden. Such a call can still be rejected, and it expires. The operator of the
    gateway should learn of it before that.

    Args:
        store: the store with the calls.
        policy: the policy in force.
        tenant: the tenant of the calls.

    Raises:
        StoreUnavailable: when the store does not answer.
    """
    found: list[Item] = []
    waiting = ReviewQueue(store, tenant=tenant).waiting(MOST_LOOKED_AT)
    async for loaded in waiting:
        shown = await as_of_now(store, policy, loaded.approval)
        found += [item for item in shown.items if _is_stuck(shown, item)]
    return found


def _is_stuck(approval: Approval, item: Item) -> bool:
    if not item.is_pending:
        return False
    return item.tier is Tier.DENY or is_dead_end(approval, item, item.requirement)


class DelegationService(TenantService):
    """The delegations of one tenant.

    A delegate has the roles of the owner, not their identity. They vote once, as
    themselves, and this vote uses up the owner's. A delegate cannot delegate the queue
    further.
    """

    async def delegate(
        self,
        owner: Person,
        to: str,
        lasting: timedelta,
        *,
        gesture: Gesture = Gesture.API,
    ) -> int:
        """Delegate a queue; return the end of the delegation in Unix milliseconds.

        Args:
            owner: owner of the queue; the front end has verified them.
            to: Slack user id of a member whom the front end has looked up.
            lasting: at most `LONGEST`.
            gesture: the owner's gesture, for the audit log.

        Raises:
            ValueError: when the owner names themselves, when the time is not positive
                or too long, and when the tenant has too many delegations.
            StoreUnavailable: when it is not known to be written.
        """
        # Harmless, but it would look like a delegation in force.
        if to == owner.user:
            raise ValueError("you cannot delegate to yourself; name a colleague.")
        if not timedelta(0) < lasting <= LONGEST:
            raise ValueError(
                f"{lasting} cannot be used; choose a time of up to {LONGEST.days} days."
            )
        event = self._event(EventName.DELEGATION_SET, owner, gesture)
        event = event.with_(data={**event.data, "to": to})
        for_ms = int(lasting.total_seconds() * 1000)
        until_ms = await self._store.delegations.change(
            self._keys, owner.user, event, to=to, for_ms=for_ms
        )
        if until_ms is None:
            raise ValueError(
                f"{MOST_DELEGATIONS:,} people have delegated their queue, which is as "
                "many as can at once; try again when one of them has ended."
            )
        return until_ms

    async def take_back(self, owner: Person, *, gesture: Gesture = Gesture.API) -> bool:
        """Take one's queue back; False when it was not delegated."""
        event = self._event(EventName.DELEGATION_LIFTED, owner, gesture)
        delegations = self._store.delegations
        return await delegations.change(self._keys, owner.user, event) is not None

    async def given_to(
        self, user: str, read: Sequence[Delegation] | None = None
    ) -> tuple[Delegation, ...]:
        """Return the delegations in force to a user; ``read`` are all, if known."""
        found = await self._store.delegations.all(self._keys) if read is None else read
        # One step only: a delegate cannot delegate the queue further.
        return tuple(one for one in found if one.to == user)

    def _event(self, name: EventName, owner: Person, gesture: Gesture) -> Event:
        return Event(
            name=name,
            tenant=self._tenant,
            actor=f"{owner.team}/{owner.user}",
            data={"gesture": gesture.value},
        )
