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
from typing import NamedTuple, TypeAlias

from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.store.connection import Connection, number, text
from keyturn.gateway.store.keys import LISTED_BYTES, Keys
from keyturn.gateway.store.listed_members import Due, pages_by_score, readable

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
    return _rows(keys, _members_of(approval))


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


def _rows(keys: Keys, members: Iterable[Members]) -> list[Row]:
    return [_row(keys, users, groups) for users, groups in members]


def moves(
    keys: Keys, before: Approval, after: Approval, *, is_due_moved: bool
) -> dict[str, object]:
    """Return what a script is told of a change: queues to leave, and to be in.

    Nothing where it stays in its queues, and the deadlines of what waits are the same.
    """
    members, before_members = _members_of(after), _members_of(before)
    if members == before_members and not is_due_moved:
        return {}
    enters = _rows(keys, members)
    stays = {queue for queue, _, _ in enters}
    # Without the lists that name them: nobody enters these.
    were = (keys.person_queue(*one) for one in before_members)
    leaves = [queue for queue in were if queue not in stays]
    groups = keys.queue_groups
    return {"leaves": leaves, "enters": enters, "groups": groups}


def _row(keys: Keys, users: Sequence[str], groups: Sequence[str]) -> Row:
    names = [*((_USER, one) for one in users), *((_GROUP, one) for one in groups)]
    lists = [keys.queues_of(kind, one) for kind, one in names]
    return keys.person_queue(users, groups), lists, [*groups]


class PersonQueues:
    """What waits, by people, of all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def groups(self, keys: Keys) -> frozenset[str]:
        """Return the user groups that something waits for.

        Raises:
            StoreUnavailable: when the store does not answer.
        """
        key = keys.queue_groups
        named = await self._conn.command("SMEMBERS", key)
        groups = sorted(readable(named, text))
        found = await self._lists(keys, ((_GROUP, one) for one in groups))
        known = [queue for queues in found for queue in queues]
        if not known:
            return frozenset()
        replies = await self._conn.transaction(*(["EXISTS", one] for one in known))
        pairs = zip(known, replies, strict=True)
        alive = {queue for queue, reply in pairs if number(reply)}
        rows = zip(groups, found, strict=True)
        return frozenset(one for one, queues in rows if not alive.isdisjoint(queues))

    async def queues(
        self, keys: Keys, users: Iterable[str], groups: Iterable[str]
    ) -> list[str]:
        """Return the queues in which something of these people or groups may wait."""
        names = [*((_USER, one) for one in users), *((_GROUP, one) for one in groups)]
        found = await self._lists(keys, names)
        return sorted({queue for queues in found for queue in queues})

    async def page(
        self, keys: Keys, queues: Collection[str], after: Place, size: int
    ) -> QueuePage:
        """Return what comes behind a place in these queues, at most ``size``.

        What is added, removed or moved between two pages may be missed, or come twice.
        """
        found = dict[str, float]()
        ends = list[Place]()
        for queue in queues:
            rows, is_cut = await self._behind(keys, queue, after, size)
            found |= {one.approval: one.due_ms for one in rows}
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
        self, keys: Keys, queue: str, after: Place, size: int
    ) -> tuple[list[Place], bool]:
        """Return what a queue has behind a place, and whether it has more."""
        start = Due(repr(after.due_ms), keys.listed(after.approval))
        pages = pages_by_score(
            self._conn, queue, after=None if after == FIRST else start, size=size
        )
        async for page in pages:
            # By what came and not by what it means: something else may be listed.
            if rows := _places(keys, page):
                return rows, len(page) == size
        return [], False

    async def _lists(
        self, keys: Keys, names: Iterable[tuple[str, str]]
    ) -> list[list[str]]:
        lists = [keys.queues_of(kind, one) for kind, one in names]
        if not lists:
            return []

        def queue(member: bytes) -> str:
            # Whatever it names is read: it has to be of this kind.
            if not (name := text(member)).startswith(keys.person_queues):
                raise ValueError("no queue")
            return name

        replies = await self._conn.transaction(*(["SMEMBERS", one] for one in lists))
        return [sorted(readable(reply, queue)) for reply in replies]


def _places(keys: Keys, page: Iterable[Due]) -> list[Place]:
    """Return those members of a queue that are approvals, with their deadlines."""
    return [
        Place(float(one.at), keys.unlisted(one.member))
        for one in page
        if len(one.member) == LISTED_BYTES
    ]
