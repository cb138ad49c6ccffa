"""Index of what waits for people, by who may decide it or take it back.

A queue is a sorted set of approvals by when the first of their waiting calls expires.
One holds what the same people may decide, by the users and user groups that the
records name; one for each principal holds what they asked for. Each name lists the
queues it is in, so a person's part is found whatever else waits, and read by pages.

The scripts that write a record move it between queues in the same step. A queue lists
too much rather than too little (who has voted, say): readers compare each record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from twokey.gateway.approvals.record import Approval
from twokey.gateway.store.connection import Argument, Reply, number, text
from twokey.gateway.store.keys import LISTED_BYTES, Keys
from twokey.gateway.store.listed_members import ListedMembers

_USER, _GROUP = "user", "group"

Row: TypeAlias = tuple[str, list[str], list[str]]
"""A queue, the lists that name it, and the user groups of it."""


Members: TypeAlias = tuple[list[str], list[str]]
"""Users and user groups for whom the same waits."""


class Place(NamedTuple):
    """Where a page of a queue ended: a deadline, and which approval of it."""

    due_ms: float
    approval: str


FIRST = Place(float("-inf"), "")


@dataclass(frozen=True)
class QueuePage:
    """Approvals, the soonest due first, and where the next page begins, if any."""

    approvals: Sequence[str]
    next: Place | None


def rows_of(keys: Keys, approval: Approval) -> list[Row]:
    """Return the queues that an approval belongs in: none when nothing of it waits."""
    return _rows(keys, approval.tenant, _members_of(approval))


def _members_of(approval: Approval) -> list[Members]:
    """Return the users and groups of the queues that an approval belongs in."""
    waiting = [item for item in approval.items if item.is_pending]
    if not waiting:
        return []
    users, groups = set[str](), set[str]()
    asked = {one.user for one in approval.principals}
    if approval.requester:
        asked.add(approval.requester.user)
    for item in waiting:
        for role in item.requirement.roles:
            users.update(role.users)
            groups.update(role.usergroups)
        asked.update([one.user for one in item.principals])
        if item.edit:
            asked.add(item.edit.by.user)
    found: list[Members] = [([user], []) for user in sorted(asked)]
    if users or groups:
        found.append((sorted(users), sorted(groups)))
    return found


def _rows(keys: Keys, tenant: str, members: Iterable[Members]) -> list[Row]:
    return [_row(keys, tenant, users, groups) for users, groups in members]


def moves(
    keys: Keys, before: Approval, after: Approval, *, is_due_moved: bool
) -> dict[str, object]:
    """Return what a script is told of a change: queues to leave, and to be in.

    Nothing where it stays in its queues, and the deadlines of what waits are the same.
    """
    members, before_members = _members_of(after), _members_of(before)
    if members == before_members and not is_due_moved:
        return {}
    enters = _rows(keys, after.tenant, members)
    stays = {queue for queue, _, _ in enters}
    # Without the lists that name them: nobody enters these.
    were = (keys.person_queue(before.tenant, *one) for one in before_members)
    leaves = [queue for queue in were if queue not in stays]
    groups = keys.queue_groups(after.tenant)
    return {"leaves": leaves, "enters": enters, "groups": groups}


def _row(keys: Keys, tenant: str, users: Sequence[str], groups: Sequence[str]) -> Row:
    names = [*((_USER, one) for one in users), *((_GROUP, one) for one in groups)]
    lists = [keys.queues_of(tenant, kind, one) for kind, one in names]
    return keys.person_queue(tenant, users, groups), lists, [*groups]


class PersonQueues:
    """What waits, by people, of all tenants."""

    def __init__(self, members: ListedMembers) -> None:
        self._conn = members.conn
        self._members = members

    async def groups(self, keys: Keys, tenant: str) -> frozenset[str]:
        """Return the user groups that something waits for.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        key = keys.queue_groups(tenant)
        named = await self._conn.command("SMEMBERS", key)
        groups = sorted(await self._members.read(keys, key, named, text, tenant=tenant))
        found = await self._lists(keys, tenant, ((_GROUP, one) for one in groups))
        known = [queue for queues in found for queue in queues]
        if not known:
            return frozenset()
        replies = await self._conn.transaction(*(["EXISTS", one] for one in known))
        pairs = zip(known, replies, strict=True)
        alive = {queue for queue, reply in pairs if number(reply)}
        rows = zip(groups, found, strict=True)
        return frozenset(one for one, queues in rows if not alive.isdisjoint(queues))

    async def queues(
        self, keys: Keys, tenant: str, users: Iterable[str], groups: Iterable[str]
    ) -> list[str]:
        """Return the queues in which something of these people or groups may wait."""
        names = [*((_USER, one) for one in users), *((_GROUP, one) for one in groups)]
        found = await self._lists(keys, tenant, names)
        return sorted({queue for queues in found for queue in queues})

    async def page(
        self, keys: Keys, queues: Collection[str], after: Place, size: int
    ) -> QueuePage:
        """Return what comes behind a place in these queues, at most ``size``.

        What is added, removed or moved between two pages may be missed, or come twice.
        """
        found = dict[str, float]()
        ends = list[Place]()
        for rows, is_cut in await self._behind(keys, queues, after, size):
            found.update((one.approval, one.due_ms) for one in rows)
            ends += rows[-1:] if is_cut else []
        # What a cut queue has behind its last row is not known: nothing later is
        # returned, or it would be passed over.
        end = min(ends, default=None)
        ordered = sorted(Place(due_ms, one) for one, due_ms in found.items())
        known = [one for one in ordered if end is None or one <= end]
        page = known[:size]
        has_more = end is not None or len(known) > size
        return QueuePage(
            [one.approval for one in page], page[-1] if page and has_more else None
        )

    async def _behind(
        self, keys: Keys, queues: Collection[str], after: Place, size: int
    ) -> list[tuple[list[Place], bool]]:
        """Return of each queue what is behind a place, and whether it has more."""
        found = list[tuple[list[Place], bool]]()
        left, limit = list(queues), size
        while left:
            commands: list[list[Argument]] = [
                ["ZRANGEBYSCORE", queue, repr(after.due_ms), "+inf", "WITHSCORES",
                 "LIMIT", 0, limit]
                for queue in left
            ]  # fmt: skip
            again = list[str]()
            replies = await self._conn.transaction(*commands)
            for queue, reply in zip(left, replies, strict=True):
                rows = await self._places(keys, queue, reply)
                behind = [one for one in rows if one > after]
                # By what came and not by what it means: something else may be listed.
                is_cut = len(cast("list[Reply]", reply or [])) >= 2 * limit
                # So many at one moment that all of them were on the pages before.
                if is_cut and not behind:
                    again.append(queue)
                elif behind:
                    found.append((behind, is_cut))
            left, limit = again, 2 * limit
        return found

    async def _lists(
        self, keys: Keys, tenant: str, names: Iterable[tuple[str, str]]
    ) -> list[list[str]]:
        lists = [keys.queues_of(tenant, kind, one) for kind, one in names]
        if not lists:
            return []

        def queue(member: bytes) -> str:
            # Whatever it names is read: it has to be of this kind.
            if not (name := text(member)).startswith(keys.person_queues):
                raise ValueError("no queue")
            return name

        replies = await self._conn.transaction(*(["SMEMBERS", one] for one in lists))
        return [
            sorted(await self._members.read(keys, one, reply, queue, tenant=tenant))
            for one, reply in zip(lists, replies, strict=True)
        ]

    async def _places(self, keys: Keys, queue: str, reply: Reply) -> list[Place]:
        """Read approvals with their deadlines."""

        def approval(member: bytes) -> str:
            if len(member) != LISTED_BYTES:
                raise ValueError("no approval")
            return keys.unlisted(member)

        rows = await self._members.scored(keys, queue, reply, approval)
        return [Place(due_ms, approval) for approval, due_ms in rows]
