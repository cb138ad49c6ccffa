"""Look up the members of user groups in Slack, for direct messages to each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from keyturn.bot.cards.mentions import MOST_COPIES
from keyturn.bot.user_cache import NoAnswer, UserCache
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Notify, Role
from keyturn.gateway.approvals.role_mapping import with_roles
from keyturn.gateway.store.atomic_write import Loaded
from keyturn.gateway.store.cards import CardCopy


@dataclass(frozen=True, slots=True)
class GroupReach:
    """Replaces user groups by their people, where people are asked one by one.

    Attributes:
        users: cached answers of Slack.
    """

    users: UserCache

    async def resolved(self, loaded: Loaded) -> Loaded:
        """Return an approval whose roles say which people of groups to ask.

        A group that is too large for direct messages, or of which Slack does not say
        who is in it, is mentioned as a group.
        """
        approval = loaded.approval
        taken = approval.acknowledged
        groups = {
            group
            for role in _roles(approval)
            if role.notify is Notify.DM or taken is not None
            for group in role.asked.usergroups
        }
        if not groups:
            return loaded
        members = {group: await self._members(group) for group in groups}

        def asked(item: Item, role: Role) -> Role:
            del item
            asking = role.asked
            if role.notify is Notify.DM:
                few = {
                    group: found
                    for group in asking.usergroups
                    if (found := members[group]) and len(found) <= MOST_COPIES
                }
                people = [one for found in few.values() for one in sorted(found)]
                asking = asking.with_(
                    users=tuple(dict.fromkeys((*asking.users, *people))),
                    usergroups=tuple(
                        one for one in asking.usergroups if one not in few
                    ),
                )
            if taken is not None:
                holding = tuple(
                    group
                    for group in asking.usergroups
                    if (found := members[group]) is None or taken.by.user in found
                )
                asking = asking.with_(taken_by=holding)
            return role.with_(asking=asking)

        return Loaded(with_roles(approval, asked), loaded.now_ms)

    async def _members(self, group: str) -> frozenset[str] | None:
        found = await self.users.group(group)
        return None if isinstance(found, NoAnswer) else found.value


def with_unreachable(approval: Approval, copies: Mapping[str, CardCopy]) -> Approval:
    """Return an approval that knows to whom Slack took no direct message."""
    refused = {user: one.refused for user, one in copies.items() if one.refused}
    if not refused:
        return approval

    def asked(item: Item, role: Role) -> Role:
        del item
        return role.with_(asking=role.asked.with_(unreachable=refused))

    return with_roles(approval, asked)


def _roles(approval: Approval) -> list[Role]:
    roles = [role for item in approval.items for role in item.requirement.roles]
    return [*roles, *approval.waiting.roles]
