"""Resolve a Slack user to a reviewer: kind of account, and roles by user group.

Slack expects the response to a click within three seconds, so all requests for one
click run at once. A group for which Slack gives no answer is listed as unknown in the
result, and an unknown group gives nobody a role.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from keyturn.bot.user_cache import Account, NoAnswer, Snapshot, UserCache
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer


@dataclass(frozen=True, slots=True)
class Reviewers:
    """The people of one workspace, as reviewers.

    Attributes:
        users: cached answers of Slack about them.
        team: the workspace's id.
        enterprise: the organization above it, "" for none; its people are members.
        clock: that of the cache.
        unknown: told of each person of whom Slack did not say who they are.
    """

    users: UserCache
    team: str
    clock: Callable[[], float]
    enterprise: str = ""
    unknown: Callable[[str], Awaitable[None]] | None = None

    async def resolve(
        self,
        user: str,
        *,
        user_team: str,
        groups: Iterable[str] = (),
        fresh: bool = False,
        is_glance: bool = False,
    ) -> Reviewer:
        """Return who somebody is; never raises.

        Args:
            user: Slack id of the person who clicked.
            user_team: home of their account, from the payload.
            groups: the user groups to look up; no others are.
            fresh: for decisions of several people, where an answer a minute old is too
                old; see `keyturn.bot.user_cache`. A person found in none of the groups
                is always looked up again freshly, so nobody is refused because they got
                their role within that minute.
            is_glance: nothing is refused by it, so nobody is looked up again.
        """
        wanted = sorted(set(groups))
        found = await self._found(user, wanted, user_team, fresh=fresh)
        # A role that was taken away within the minute still counts in a decision of one
        # person: the vote is stored with the age of Slack's answer.
        is_nobody = bool(wanted) and not (found.usergroups or found.unknown_groups)
        is_final = fresh or is_glance
        if is_nobody and not is_final and found.account is AccountKind.MEMBER:
            return await self._found(user, wanted, user_team, fresh=True)
        return found

    async def _found(
        self, user: str, groups: list[str], user_team: str, *, fresh: bool
    ) -> Reviewer:
        account, members = await asyncio.gather(
            self.users.account(user, fresh=fresh),
            self._lookup_groups(groups, fresh=fresh),
        )
        if self.unknown is not None and any(
            isinstance(one, NoAnswer) for one in (account, *members.values())
        ):
            await self.unknown(user)
        return self._reviewer(user, user_team, account, members)

    def _reviewer(
        self,
        user: str,
        user_team: str,
        account: Snapshot[Account] | NoAnswer,
        members: Mapping[str, Snapshot[frozenset[str]] | NoAnswer],
    ) -> Reviewer:
        snapshots = {
            group: one for group, one in members.items() if isinstance(one, Snapshot)
        }
        # No answer is UNKNOWN, which decides nothing. STRANGER would refuse the person
        # for good.
        known = (
            account.value
            if isinstance(account, Snapshot)
            else Account(AccountKind.UNKNOWN)
        )
        answers = [account, *members.values()]
        asked = [one.asked_at for one in answers if isinstance(one, Snapshot)]
        waits = [one.retry_in_s for one in answers if isinstance(one, NoAnswer)]
        # The oldest of the answers: the audit log shows the age of the oldest fact that
        # this decision used.
        age_s = self.clock() - min(asked, default=self.clock())
        return Reviewer(
            team=self.team,
            user=user,
            name=known.name,
            usergroups=frozenset(
                group for group, people in snapshots.items() if user in people.value
            ),
            unknown_groups=frozenset(members.keys() - snapshots.keys()),
            empty_groups=frozenset(
                group for group, people in snapshots.items() if not people.value
            ),
            account=self._kind(known, user_team),
            membership_age_ms=int(1000 * max(0.0, age_s)),
            # The longest wait: trying again earlier would leave one of the groups open
            # again.
            retry_in_s=max(waits, default=0),
        )

    async def _lookup_groups(
        self, groups: list[str], *, fresh: bool
    ) -> dict[str, Snapshot[frozenset[str]] | NoAnswer]:
        found = await asyncio.gather(
            *(self.users.group(group, fresh=fresh) for group in groups)
        )
        return dict(zip(groups, found, strict=True))

    def _kind(self, known: Account, user_team: str) -> AccountKind:
        # In an organization (Enterprise Grid) people act from other workspaces of it;
        # `look_up_account` has compared the organization.
        is_elsewhere = not self.enterprise and user_team != self.team
        if known.kind is AccountKind.MEMBER and is_elsewhere:
            return AccountKind.STRANGER
        return known.kind
