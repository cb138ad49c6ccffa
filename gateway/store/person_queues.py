"""Index of items that wait for people: by reviewer, and by requester.

A queue is a sorted set of approvals by the earliest expiry of their pending calls. A
reviewer queue has the approvals with the same users and user groups as reviewers. A
requester queue has one principal's requests. Each user or group has a list of their
queues, so a person's items are found without a search, in pages.

The scripts that write a record update its queues in the same step. A queue may contain
too much but never too little (it ignores votes, for example): readers check each
record.
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
"""A queue, the lists that refer to it, and its user groups."""


Members: TypeAlias = tuple[list[str], list[str]]
"""Users and user groups with the same pending items."""


class Place(NamedTuple):
    """End of a page of a queue: a deadline and an approval."""

    due_ms: float
    approval: str


FIRST = Place(float("-inf"), "")


@dataclass(frozen=True)
class QueuePage:
    """Approvals, earliest deadline first, and the start of the next page, if any."""

    approvals: Sequence[str]
    next: Place | None


def rows_of(keys: Keys, approval: Approval) -> list[Row]:
    """Return the queues of an approval; none if it has no pending item."""
    return _rows(keys, _members_of(approval))


def _members_of(approval: Approval) -> list[Members]:
    """Return the users and groups of an approval's queues."""
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
    """Return a script's arguments for a change: queues to leave and to enter.

    Empty if queues and deadlines stay the same.
    """
    members, before_members = _members_of(after), _members_of(before)
    if members == before_members and not is_due_moved:
        return {}
    enters = _rows(keys, members)
    stays = {queue for queue, _, _ in enters}
    # Only the queue: the lists that refer to it stay.
    were = (keys.person_queue(*one) for one in before_members)
    leaves = [queue for queue in were if queue not in stays]
    groups = keys.queue_groups
    return {"leaves": leaves, "enters": enters, "groups": groups}


def _row(keys: Keys, users: Sequence[str], groups: Sequence[str]) -> Row:
    names = [*((_USER, one) for one in users), *((_GROUP, one) for one in groups)]
    lists = [keys.queues_of(kind, one) for kind, one in names]
    return keys.person_queue(users, groups), lists, [*groups]


class PersonQueues:
    """Pending items by person, for all tenants."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    async def groups(self, keys: Keys) -> frozenset[str]:
        """Return the user groups that have pending items.

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
        """Return the queues that may have items for these people or groups."""
        names = [*((_USER, one) for one in users), *((_GROUP, one) for one in groups)]
        found = await self._lists(keys, names)
        return sorted({queue for queues in found for queue in queues})

    async def page(
        self, keys: Keys, queues: Collection[str], after: Place, size: int
    ) -> QueuePage:
        """Return up to ``size`` approvals after a position in these queues.

        Approvals added, removed or moved between two pages may be missed, or come
        twice.
        """
        found = dict[str, float]()
        ends = list[Place]()
        for queue in queues:
            rows, is_cut = await self._behind(keys, queue, after, size)
            found |= {one.approval: one.due_ms for one in rows}
            ends += rows[-1:] if is_cut else []
        # The rest of a cut queue is unknown, so drop everything after its last row;
        # otherwise its next rows would be skipped.
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
        """Return a queue's rows after a position, and whether it has more."""
        start = Due(repr(after.due_ms), keys.listed(after.approval))
        pages = pages_by_score(
            self._conn, queue, after=None if after == FIRST else start, size=size
        )
        async for page in pages:
            # Compare the raw page size: it may include malformed members.
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
            # Foreign entries may name any key: accept only queues.
            if not (name := text(member)).startswith(keys.person_queues):
                raise ValueError("no queue")
            return name

        replies = await self._conn.transaction(*(["SMEMBERS", one] for one in lists))
        return [sorted(readable(reply, queue)) for reply in replies]


def _places(keys: Keys, page: Iterable[Due]) -> list[Place]:
    """Return the approvals in a queue with their deadlines, without junk."""
    return [
        Place(float(one.at), keys.unlisted(one.member))
        for one in page
        if len(one.member) == LISTED_BYTES
    ]
