"""List what waits for a tenant's reviewers, earliest deadline first."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing

from twokey.gateway.approvals.decisions import Reviewer
from twokey.gateway.approvals.lifecycle import ApprovalState
from twokey.gateway.approvals.timing import end_of, is_over
from twokey.gateway.service.away_parts import AwayParts, of_each
from twokey.gateway.service.merging import merged
from twokey.gateway.service.tenant_service import TenantService
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.keys import Keys
from twokey.gateway.store.person_queues import FIRST, Place

MAX_QUEUE = 2000
"""How many waiting approvals one look at the queue reads at most."""

MAX_OF_PERSON = 5000
"""How many approvals one look at what waits for one person reads at most."""

_PAGE = 100


class ReviewQueue(TenantService):
    """What waits for people of one tenant, whatever else its shards are busy with."""

    async def waiting(
        self,
        limit: int = MAX_QUEUE,
        *,
        part: Keys | None = None,
        away: AwayParts | None = None,
    ) -> AsyncGenerator[Loaded]:
        """Yield approvals with an item that waits for a person, the soonest due first.

        They are read as they are asked for, so the caller may stop early; ``limit``
        bounds how many are looked at, of each part of the tenant.

        Args:
            limit: how many.
            part: the only part of the tenant to look at; None for all.
            away: notes what is left out: parts that do not answer, and what a newer
                version wrote.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        parts = self._parts if part is None else (part,)
        newer = None if away is None else away.newer
        each = [(keys, self._waiting(keys, limit, newer)) for keys in parts]
        rows = merged(_answering(each, away), _due)
        left = limit
        async with aclosing(rows):
            async for loaded in rows:
                if left <= 0:
                    return
                yield loaded
                left -= 1

    async def _waiting(
        self, keys: Keys, limit: int, newer: set[str] | None
    ) -> AsyncGenerator[Loaded]:
        ids = await self._store.pending.soonest(keys, self._tenant, limit)
        # In pages: a caller that stops early has read at most a page too much.
        for start in range(0, len(ids), _PAGE):
            page = ids[start : start + _PAGE]
            for loaded in await self._store.approvals.load_each(page, newer=newer):
                if self._waits(loaded):
                    yield loaded

    async def groups(self, *, away: AwayParts | None = None) -> frozenset[str]:
        """Return the user groups that something waits for.

        Args:
            away: parts that do not answer, which are left out.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        queues = self._store.person_queues
        found = await of_each(
            self._parts, lambda keys: queues.groups(keys, self._tenant), away
        )
        return frozenset[str]().union(*found)

    async def concerning(
        self,
        people: Iterable[Reviewer],
        read: dict[str, Loaded] | None = None,
        *,
        away: AwayParts | None = None,
    ) -> AsyncGenerator[Loaded]:
        """Yield what waits and what one of these may decide, or asked for.

        The soonest due comes first. Some of it may be none of theirs, such as what they
        have voted on: the caller compares each. It is read by pages, so that a caller
        that stops early costs little, and others' approvals cost nothing. It ends at
        the end, and not after a number: the caller counts. One whose time is changed
        meanwhile comes once.

        Args:
            people: as resolved now; those whom they stand in for have to be among them.
            read: what was read a moment ago, by id; what is read is added.
            away: as for `waiting`.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        actors = list(people)
        groups = {
            group for one in actors for group in (*one.usergroups, *one.unknown_groups)
        }
        users = {one.user for one in actors}
        known = dict[str, Loaded]() if read is None else read
        newer = None if away is None else away.newer
        each = [
            (keys, self._concerning(keys, users, groups, known, newer))
            for keys in self._parts
        ]
        rows = merged(_answering(each, away), _due)
        async with aclosing(rows):
            async for loaded in rows:
                yield loaded

    async def _concerning(
        self,
        keys: Keys,
        users: set[str],
        groups: set[str],
        known: dict[str, Loaded],
        newer: set[str] | None,
    ) -> AsyncGenerator[Loaded]:
        queues = self._store.person_queues
        names = await queues.queues(keys, self._tenant, users, groups)
        place: Place | None = FIRST
        given = set[str]()
        while place is not None:
            page = await queues.page(keys, names, place, _PAGE)
            missing = [one for one in page.approvals if one not in known]
            for loaded in await self._store.approvals.load_each(missing, newer=newer):
                known[loaded.approval.id] = loaded
            for one in page.approvals:
                found = known.get(one)
                # More time moves it behind the place that the reading has come to.
                if one in given or found is None or not self._waits(found):
                    continue
                given.add(one)
                yield found
            place = page.next

    async def read_short(
        self, short: str, *, away: AwayParts | None = None
    ) -> list[Loaded]:
        """Return the tenant's approvals with a short id; nearly always one.

        Args:
            short: the id.
            away: parts that do not answer, which are left out.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        approvals = self._store.approvals

        async def read(keys: Keys) -> list[Loaded]:
            return await self.read_each(await approvals.with_short_id(keys, short))

        found = await of_each(self._parts, read, away)
        return [loaded for of_part in found for loaded in of_part]

    async def read_each(self, approval_ids: Iterable[str]) -> list[Loaded]:
        """Return those of these approvals that are there and can be read."""
        loaded = await self._store.approvals.load_each(approval_ids)
        return [one for one in loaded if one.approval.tenant == self._tenant]

    def _waits(self, loaded: Loaded) -> bool:
        approval = loaded.approval
        return (
            approval.tenant == self._tenant
            and approval.state is ApprovalState.OPEN
            and not is_over(approval, loaded.now_ms)
        )


def _answering(
    each: Iterable[tuple[Keys, AsyncGenerator[Loaded]]], away: AwayParts | None
) -> list[AsyncGenerator[Loaded]]:
    return [rows if away is None else away.rows(keys, rows) for keys, rows in each]


def _due(loaded: Loaded) -> tuple[int, str]:
    """Return by what a queue is in order: when the first waiting call expires.

    The id breaks ties, so that two looks show one order.
    """
    approval = loaded.approval
    waiting = (end_of(approval, item) for item in approval.items if item.is_pending)
    return min(waiting, default=approval.expires_at_ms), approval.id
