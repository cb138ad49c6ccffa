"""Resolve a Slack user to a reviewer: kind of account, and roles by user group.

A decision waits for this, and Slack waits three seconds for the decision: all questions
of one click are asked at once. What Slack leaves open is said in the result, group by
group, and what is open decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from twokey.bot.membership import Account, Membership, NoAnswer, Snapshot
from twokey.gateway.approvals.decisions import AccountKind, Reviewer
from twokey.gateway.approvals.record import Approval


@dataclass(frozen=True, slots=True)
class Reviewers:
    """The people of one workspace, as reviewers.

    Attributes:
        membership: what Slack says of them.
        team: the workspace's id.
        enterprise: the organization above it, "" for none; its people are members.
        clock: that of the membership.
    """

    membership: Membership
    team: str
    clock: Callable[[], float]
    enterprise: str = ""

    async def resolve(
        self,
        user: str,
        *,
        user_team: str,
        groups: Iterable[str] = (),
        fresh: bool = False,
    ) -> Reviewer:
        """Return who somebody is; never raises.

        Args:
            user: Slack id of whoever clicked.
            user_team: home of their account, from the payload.
            groups: the user groups that matter; no others are asked about.
            fresh: for decisions in which a minute is too old; see
                `twokey.bot.membership`. Who is in none of the groups is looked up
                freshly in any case: nobody is refused for a role that they were given
                within that minute.
        """
        wanted = sorted(set(groups))
        found = await self._found(user, wanted, user_team, fresh=fresh)
        # The other way round, a role that was taken away within the minute still counts
        # in a decision of one person: the vote is stored with the age of what Slack
        # said.
        is_nobody = bool(wanted) and not (found.usergroups or found.unknown_groups)
        if is_nobody and not fresh and found.account is AccountKind.MEMBER:
            return await self._found(user, wanted, user_team, fresh=True)
        return found

    async def warm(self, approval: Approval) -> None:
        """Ask about the people who may decide this, so that a click need not."""
        roles = [role for item in approval.items for role in item.requirement.roles]
        users = {user for role in roles for user in role.users}
        groups = {group for role in roles for group in role.usergroups}
        await asyncio.gather(
            *(self.membership.account(user) for user in sorted(users)),
            *(self.membership.group(group) for group in sorted(groups)),
        )

    async def _found(
        self, user: str, groups: list[str], user_team: str, *, fresh: bool
    ) -> Reviewer:
        account, told = await asyncio.gather(
            self.membership.account(user, fresh=fresh), self._told(groups, fresh=fresh)
        )
        snapshots = {
            group: one for group, one in told.items() if isinstance(one, Snapshot)
        }
        # No answer is UNKNOWN, which decides nothing; it is never taken for a stranger,
        # who would be refused for good.
        known = (
            account.value
            if isinstance(account, Snapshot)
            else Account(AccountKind.UNKNOWN)
        )
        answers = [account, *told.values()]
        asked = [one.asked_at for one in answers if isinstance(one, Snapshot)]
        waits = [one.retry_in_s for one in answers if isinstance(one, NoAnswer)]
        # The oldest of the answers: the audit log shows how old the worst fact was that
        # this decision used.
        age_s = self.clock() - min(asked, default=self.clock())
        return Reviewer(
            team=self.team,
            user=user,
            name=known.name,
            usergroups=frozenset(
                group for group, people in snapshots.items() if user in people.value
            ),
            unknown_groups=frozenset(told.keys() - snapshots.keys()),
            account=self._kind(known, user_team),
            membership_age_ms=int(1000 * max(0.0, age_s)),
            # The longest wait: trying again earlier would leave one of the groups open
            # again.
            retry_in_s=max(waits, default=0),
        )

    async def _told(
        self, groups: list[str], *, fresh: bool
    ) -> dict[str, Snapshot[frozenset[str]] | NoAnswer]:
        found = await asyncio.gather(
            *(self.membership.group(group, fresh=fresh) for group in groups)
        )
        return dict(zip(groups, found, strict=True))

    def _kind(self, known: Account, user_team: str) -> AccountKind:
        # In an organization (Enterprise Grid) people act from other workspaces of it;
        # `account_of` has compared the organization.
        is_elsewhere = not self.enterprise and user_team != self.team
        if known.kind is AccountKind.MEMBER and is_elsewhere:
            return AccountKind.STRANGER
        return known.kind
