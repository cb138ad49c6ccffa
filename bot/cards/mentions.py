"""Choose which people and user groups a card mentions.

Slack notifies people of a mention in a new message, and of none in a changed one. So a
card mentions its reviewers when it is posted, and a thread reply mentions those who are
needed later. All ids come from the policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from twokey.bot.text_types import Template, joined, template, user, usergroup
from twokey.gateway.approvals import permission, quorum
from twokey.gateway.approvals.record import Approval, Item
from twokey.gateway.approvals.requirement import Notify, Role, Vote
from twokey.gateway.protocol.records import Person
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.tiers import Tier

MOST = 8
"""Mentions in one message; the policy can name hundreds of people."""


@dataclass(frozen=True, slots=True)
class Mentions:
    """Whom a card asks for a decision.

    Attributes:
        roles: the names of the roles that are mentioned.
        mentions: one per user group or user, in the order in which they are named.
    """

    roles: tuple[str, ...]
    mentions: tuple[Template, ...]

    @property
    def named(self) -> Template:
        """Return the mentions, with the number of those that are left out."""
        more = len(self.mentions) - MOST
        shown = self.mentions[:MOST]
        rest = [template("(and {more} more, not mentioned)", more=more)]
        return joined(" ", [*shown, *(rest if more > 0 else [])])

    def before(self, sentence: Template) -> Template:
        """Return a sentence with the mentions in front of it, if there are any."""
        return joined(" ", [self.named, sentence]) if self.mentions else sentence


def mentions_for(approval: Approval, *, but: Collection[str] = ()) -> Mentions:
    """Return whom the waiting calls of a card need now.

    Left out are those who may not decide or have, those whom the policy calls later
    as long as others are enough, and roles that are not to be mentioned.

    Args:
        approval: the record, as it is to be shown.
        but: names of roles to leave out.
    """
    # Before the escalation those of `escalate_to` are left out, even where they hold a
    # role that is needed: they are called when it is their turn.
    if approval.is_question and approval.requester and not approval.escalated_at_ms:
        return _requester(approval.requester, but)
    later = () if approval.escalated_at_ms else approval.waiting.roles
    found: dict[str, dict[Template, None]] = {}
    for item in approval.items:
        if is_for_people(item):
            for role in _needed(approval, item, later):
                if role.notify is Notify.MENTION and role.name not in but:
                    each = found.setdefault(role.name, {})
                    # A dict for its order: the same record gives the same mentions on
                    # each redraw, so a card does not differ from itself.
                    each |= dict.fromkeys(_mentions(role))
    named = {name: each for name, each in found.items() if each}
    return Mentions(tuple(named), _in_turn(named.values()))


_REQUESTER = "requester"
"""Stands for a role: of the one person whom a question is for first."""


def _requester(person: Person, but: Collection[str]) -> Mentions:
    if _REQUESTER in but:
        return Mentions((), ())
    try:
        return Mentions((_REQUESTER,), (template("{who}", who=user(person.user)),))
    except ValueError:  # asked by a program, under a name that is no id of Slack's
        return Mentions((), ())


def of_roles(roles: Iterable[Role], *, but: Iterable[Person]) -> Mentions:
    """Return mentions of these roles, without these people."""
    asked = [role for role in roles if role.notify is Notify.MENTION]
    left = [_without(role, _users(but)) for role in asked]
    return Mentions(tuple(role.name for role in left), _in_turn(map(_mentions, left)))


def is_for_people(item: Item) -> bool:
    """Return whether people have to decide about a call or reconcile it.

    Nobody is asked about a call that the current policy denies.
    """
    is_pending = item.is_pending and item.tier is not Tier.DENY
    return is_pending or item.state is ItemState.IN_DOUBT


def escalation_mentions(approval: Approval) -> Mentions:
    """Return the reviewers of an escalation who can still decide."""
    barred = _barred_everywhere(approval)
    roles = [_without(role, barred) for role in approval.waiting.roles]
    return Mentions(tuple(role.name for role in roles), _in_turn(map(_mentions, roles)))


def _needed(approval: Approval, item: Item, later: Sequence[Role]) -> list[Role]:
    """Return the roles whose votes are missing, with those who may still give one."""
    votes = _votes(item)
    missing = quorum.missing_votes(item.requirement, votes, item.action_hash)
    if not missing:
        # One more click completes it, also of somebody who voted.
        missing, votes = quorum.clauses(item.requirement), ()
    needed: list[Role] = []
    open_now: dict[frozenset[str], int] = {}
    # What one role alone has to give stands first, and may be all that is missing.
    for names in sorted(missing, key=lambda one: (len(one), sorted(one))):
        # Votes that a narrower set of roles has to give count for a wider one, too:
        # where they are as many, the wider one asks nobody else.
        inside = sum(count for one, count in open_now.items() if one < names)
        if inside >= missing[names]:
            continue
        open_now[names] = missing[names]
        barred = _not_permitted(approval, item) | _counted(votes, names)
        roles = [
            _without(role, barred)
            for role in item.requirement.roles
            if role.name in names
        ]
        first = _without_later(roles, later)
        # Those who are called later are left out only while the others are enough; else
        # nobody would be asked who can complete it.
        needed += first if _can_give(first, missing[names]) else roles
    return needed


def _votes(item: Item) -> tuple[Vote, ...]:
    """Return the votes on the current version of a call, or its observations."""
    if item.state is ItemState.IN_DOUBT:
        return tuple(one.vote for one in item.observations_now)
    return item.votes_now


def _counted(votes: Iterable[Vote], names: frozenset[str]) -> set[str]:
    """Return whose word counts for one of these roles already, or is used up."""
    given = (vote.by for vote in votes if not names.isdisjoint(vote.roles))
    return _users(given) | _users(one for vote in votes for one in vote.on_behalf_of)


def _without_later(roles: Sequence[Role], later: Sequence[Role]) -> list[Role]:
    users = frozenset(one for role in later for one in role.users)
    groups = frozenset(one for role in later for one in role.usergroups)
    return [_without(role, users, groups) for role in roles]


def _can_give(roles: Sequence[Role], votes: int) -> bool:
    people = {one for role in roles for one in role.users}
    # How many are in a user group is known to Slack alone; one is taken to be enough.
    return len(people) >= votes or any(role.usergroups for role in roles)


def _without(role: Role, users: Collection[str], groups: Collection[str] = ()) -> Role:
    return role.with_(
        users=tuple(one for one in role.users if one not in users),
        usergroups=tuple(one for one in role.usergroups if one not in groups),
    )


def _not_permitted(approval: Approval, item: Item) -> set[str]:
    if item.is_question:
        return set()
    is_doubt = item.state is ItemState.IN_DOUBT
    barred = item.principals if is_doubt else permission.editors(item, item.requirement)
    return _users((*approval.principals, *barred))


def _barred_everywhere(approval: Approval) -> set[str]:
    each = [
        _not_permitted(approval, item) | _counted(_votes(item), _roles(item))
        for item in approval.items
        if item.is_pending
    ]
    # Only who may decide none of the calls: in a batch a person can be barred from one
    # call and be needed for another.
    return set[str].intersection(*each) if each else _users(approval.principals)


def _roles(item: Item) -> frozenset[str]:
    return frozenset(role.name for role in item.requirement.roles)


def _users(people: Iterable[Person]) -> set[str]:
    return {person.user for person in people}


def _mentions(role: Role) -> list[Template]:
    groups = [template("{group}", group=usergroup(one)) for one in role.usergroups]
    return groups + [template("{who}", who=user(one)) for one in role.users]


def _in_turn(each: Iterable[Iterable[Template]]) -> tuple[Template, ...]:
    """Return all mentions once, one of each role in turn, so that no role is cut."""
    # Eight mentions at most. Taken role by role, a role of eight people would push out
    # the only holder of the next one.
    turns = chain.from_iterable(zip_longest(*each))
    return tuple(dict.fromkeys(one for one in turns if one is not None))
