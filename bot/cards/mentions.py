"""Choose whom a card mentions, and who gets a copy of it as a direct message.

Slack notifies people of a mention in a new message, but not in an edited one. So a card
mentions its reviewers when it is posted, and a thread reply mentions those who are
needed later. People with a copy are not mentioned. All ids come from the policy, or
from the user groups that it names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import LiteralString

from keyturn.bot.cards.frame import Frame
from keyturn.bot.cards.refs import join_list, place, when
from keyturn.bot.cards.states import named_role
from keyturn.bot.text import Template, joined, template, user, usergroup
from keyturn.gateway.approvals import quorum
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Asking, Notify, Role, Vote
from keyturn.gateway.protocol.records import ItemState, Person, Tier


def reached(frame: Frame) -> list[Template]:
    """Return sentences about reviewers without a mention; on a copy, about its card."""
    if not any(is_for_people(item) for item in frame.approval.items):
        return []
    parts: list[Template] = []
    if frame.card_in:
        said: LiteralString = "✉️ Sent to you directly. The card is in {place}"
        parts.append(template(said, place=place(frame.card_in)))
    elif frame.sent:
        people = join_list([template("{who}", who=user(one)) for one in frame.sent])
        parts.append(template("✉️ Sent directly to {people}", people=people))
    quiet = quiet_roles(frame.approval)
    silent = {role.asked.silent for role in _asked(frame.approval)}
    parts += [words for why, words in _SILENT.items() if why in silent]
    if quiet:
        names = join_list([named_role(name) for name in sorted(quiet)])
        at = when(min(quiet.values()))
        parts.append(template("🌙 Quiet hours until {at}: {names}", at=at, names=names))
    return parts


_SILENT = {
    "flood": template("🔕 No notifications for now: many requests from this agent"),
    "enough": template("🔕 No notifications for now: many requests lately"),
}

MOST = 8
"""Maximum mentions in one message; the policy can name hundreds of people."""

MOST_COPIES = 5
"""Maximum direct messages about one approval; each is updated along with the card."""


@dataclass(frozen=True, slots=True)
class Mentions:
    """The reviewers that a card asks for a decision.

    Attributes:
        roles: the names of the mentioned roles; with ``@`` and an id, people who got no
            direct message.
        mentions: one per user group or user, in order.
    """

    roles: tuple[str, ...]
    mentions: tuple[Template, ...]

    @property
    def named(self) -> Template:
        """Return the mentions, with the number of omitted ones."""
        more = len(self.mentions) - MOST
        shown = self.mentions[:MOST]
        rest = [template("(and {more} more, not mentioned)", more=more)]
        return joined(" ", [*shown, *(rest if more > 0 else [])])

    def before(self, sentence: Template) -> Template:
        """Return a sentence with the mentions, if any, in front of it."""
        return joined(" ", [self.named, sentence]) if self.mentions else sentence


def mentions_for(
    approval: Approval, *, but: Collection[str] = (), spared: str = ""
) -> Mentions:
    """Return the reviewers whom the pending calls need now and who get no copy.

    This excludes people who may not decide or have decided, people whom the policy
    calls only if others do not suffice, and roles that are not to be mentioned.

    Args:
        approval: the record, as it is to be shown.
        but: names of roles to exclude.
        spared: a person to exclude, with the user groups they may be in.
    """
    # Before the escalation people of `escalate_to` are excluded, even if they have a
    # needed role: they are called when it is their turn.
    if approval.requester and _is_for_requester(approval):
        return _requester(approval.requester, but)
    copied = _copied(approval)
    found: dict[str, dict[Template, None]] = {}
    for role in _asked(approval):
        for name, asking in _by_mention(role, copied).items():
            if name not in but:
                each = found.setdefault(name, {})
                # A dict for its order: the same record gives the same mentions on each
                # redraw, so a card does not differ from itself.
                each |= dict.fromkeys(_mentions(asking, spared))
    named = {name: each for name, each in found.items() if each}
    return Mentions(tuple(named), _in_turn(named.values()))


def notified(approval: Approval) -> set[str]:
    """Return the people and user groups whom a new card notifies."""
    roles = [role for role in _asked(approval) if not _is_quiet(role)]
    return {
        one
        for role in roles
        if role.notify is not Notify.NONE
        for one in (*role.asked.users, *role.asked.usergroups)
    }


def copies_for(approval: Approval) -> tuple[str, ...]:
    """Return the people who get a copy of a card now, at most `MOST_COPIES`."""
    return tuple(_copied(approval))


def copies_called(approval: Approval) -> tuple[str, ...]:
    """Return the people with a copy whom an escalation calls."""
    called = {user for role in _escalated(approval) for user in role.asked.users}
    return tuple(user for user in _copied(approval) if user in called)


def quiet_roles(approval: Approval) -> dict[str, int]:
    """Return the roles in quiet hours, and when these end."""
    return {
        role.name: role.asked.quiet_until_ms
        for role in _asked(approval)
        if role.notify is not Notify.NONE and role.asked.quiet_until_ms
    }


def unreachable(approval: Approval) -> dict[str, str]:
    """Return the people whose copy failed, with Slack's error."""
    return {
        user: why
        for role in _asked(approval)
        for user, why in role.asked.unreachable.items()
        if user in role.asked.users
    }


def _asked(approval: Approval) -> list[Role]:
    """Return the roles that the pending calls need, with the people to ask."""
    if _is_for_requester(approval):
        return []
    later = () if approval.escalated_at_ms else approval.waiting.roles
    waiting = [item for item in approval.items if is_for_people(item)]
    roles = [role for item in waiting for role in _needed(approval, item, later)]
    # Roles that are called later get direct messages then, whatever the tier's setting.
    if approval.escalated_at_ms and waiting:
        roles += [role for role in _escalated(approval) if role.notify is Notify.DM]
    return roles


def _is_for_requester(approval: Approval) -> bool:
    is_first = approval.is_question and not approval.escalated_at_ms
    return is_first and approval.requester is not None


def _is_quiet(role: Role) -> bool:
    is_silent = bool(role.asked.silent or role.asked.quiet_until_ms)
    return role.notify is not Notify.NONE and is_silent


def _copied(approval: Approval) -> list[str]:
    """Return the people who get a copy, one of each role in turn."""
    each = [
        [user for user in role.asked.users if user not in role.asked.unreachable]
        for role in _asked(approval)
        if role.notify is Notify.DM and not _is_quiet(role)
    ]
    turns = chain.from_iterable(zip_longest(*each))
    return [*dict.fromkeys(one for one in turns if one is not None)][:MOST_COPIES]


def _by_mention(role: Role, copied: Collection[str]) -> dict[str, Asking]:
    """Return the people of a role to mention, by the recorded name of the role."""
    asking = role.asked
    if role.notify is Notify.NONE or _is_quiet(role):
        return {}
    users = tuple(one for one in asking.users if one not in copied)
    # With another person on call the same role counts as another one.
    is_narrowed = bool(asking.on_call) and asking.users == asking.on_call
    name = " ".join((role.name, *(asking.on_call if is_narrowed else ())))
    if role.notify is Notify.MENTION:
        return {name: asking.with_(users=users)}
    alone = {f"@{one}": asking.with_(users=(one,), usergroups=()) for one in users}
    return {name: asking.with_(users=()), **alone}


_REQUESTER = "requester"
"""Name of the pseudo-role of the one person whom a question is for first."""


def _requester(person: Person, but: Collection[str]) -> Mentions:
    if _REQUESTER in but:
        return Mentions((), ())
    try:
        return Mentions((_REQUESTER,), (template("{who}", who=user(person.user)),))
    except ValueError:  # requested by a program, under a name that is no Slack id
        return Mentions((), ())


def of_roles(roles: Iterable[Role], *, but: Iterable[Person]) -> Mentions:
    """Return mentions of these roles, without these people."""
    asked = [role for role in roles if role.notify is not Notify.NONE]
    left = [_without(role, _users(but)) for role in asked]
    mentions = _in_turn(_mentions(role.asked) for role in left)
    return Mentions(tuple(role.name for role in left), mentions)


def is_for_people(item: Item) -> bool:
    """Return whether people have to decide about a call or reconcile it.

    Calls that the current policy denies are excluded.
    """
    is_pending = item.is_pending and item.tier is not Tier.DENY
    return is_pending or item.state is ItemState.IN_DOUBT


def escalation_mentions(approval: Approval) -> Mentions:
    """Return the reviewers of an escalation who can still decide."""
    copied = _copied(approval)
    found = [
        (name, _mentions(asking))
        for role in _escalated(approval)
        for name, asking in _by_mention(role, copied).items()
    ]
    roles = tuple(name for name, _ in found)
    return Mentions(roles, _in_turn(each for _, each in found))


def _escalated(approval: Approval) -> list[Role]:
    barred = _barred_everywhere(approval)
    return [_on_call(_without(role, barred)) for role in approval.waiting.roles]


def _needed(approval: Approval, item: Item, later: Sequence[Role]) -> list[Role]:
    """Return the roles whose votes are missing, with the people who can still vote."""
    votes = _votes(item)
    missing = quorum.missing_votes(item.requirement, votes, item.action_hash)
    if not missing:
        # One more click completes it, also by a person who has voted.
        missing, votes = quorum.clauses(item.requirement), ()
    needed: list[Role] = []
    open_now: dict[frozenset[str], int] = {}
    # Votes that only one role can give come first, and may be all that is missing.
    for names in sorted(missing, key=lambda one: (len(one), sorted(one))):
        # Votes that a narrower set of roles has to give also count for a wider one. If
        # they suffice, the wider one asks no one else.
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
        # People who are called later or are not on call are excluded only while the
        # others suffice; otherwise those who can complete it might not be asked.
        fewest = ([_on_call(role) for role in first], first)
        enough = (some for some in fewest if _can_give(some, missing[names]))
        needed += next(enough, roles)
    return needed


def _on_call(role: Role) -> Role:
    """Return a role narrowed to its people on call, if there are any."""
    asking = role.asked
    if not asking.on_call:
        return role
    return role.with_(asking=asking.with_(users=asking.on_call, usergroups=()))


def _votes(item: Item) -> tuple[Vote, ...]:
    """Return the votes on the current version of a call, or its observations."""
    if item.state is ItemState.IN_DOUBT:
        return tuple(one.vote for one in item.observations_now)
    return item.votes_now


def _counted(votes: Iterable[Vote], names: frozenset[str]) -> set[str]:
    """Return the people whose vote counts for one of these roles, or is used up."""
    given = (vote.by for vote in votes if not names.isdisjoint(vote.roles))
    return _users(given) | _users(one for vote in votes for one in vote.on_behalf_of)


def _without_later(roles: Sequence[Role], later: Sequence[Role]) -> list[Role]:
    users = frozenset(one for role in later for one in role.users)
    groups = frozenset(one for role in later for one in role.usergroups)
    return [_without(role, users, groups) for role in roles]


def _can_give(roles: Sequence[Role], votes: int) -> bool:
    people = {one for role in roles for one in role.asked.users}
    # Only Slack knows the size of a user group; one member is assumed to suffice.
    return len(people) >= votes or any(role.asked.usergroups for role in roles)


def _without(role: Role, users: Collection[str], groups: Collection[str] = ()) -> Role:
    asking = role.asked
    left = asking.with_(
        users=tuple(one for one in asking.users if one not in users),
        usergroups=tuple(one for one in asking.usergroups if one not in groups),
        on_call=tuple(one for one in asking.on_call if one not in users),
    )
    return role.with_(asking=left)


def _not_permitted(approval: Approval, item: Item) -> set[str]:
    if item.is_question:
        return set()
    is_doubt = item.state is ItemState.IN_DOUBT
    barred = item.principals if is_doubt else quorum.editors(item, item.requirement)
    return _users((*approval.principals, *barred))


def _barred_everywhere(approval: Approval) -> set[str]:
    each = [
        _not_permitted(approval, item) | _counted(_votes(item), _roles(item))
        for item in approval.items
        if item.is_pending
    ]
    # Only people who may decide none of the calls: in a batch a person can be barred
    # from one call and be needed for another.
    return set[str].intersection(*each) if each else _users(approval.principals)


def _roles(item: Item) -> frozenset[str]:
    return frozenset(role.name for role in item.requirement.roles)


def _users(people: Iterable[Person]) -> set[str]:
    return {person.user for person in people}


def _mentions(asking: Asking, spared: str = "") -> list[Template]:
    taken = asking.taken_by if spared else ()
    groups = [
        template("{group}", group=usergroup(one))
        for one in asking.usergroups
        if one not in taken
    ]
    people = (one for one in asking.users if one != spared)
    return groups + [template("{who}", who=user(one)) for one in people]


def _in_turn(each: Iterable[Iterable[Template]]) -> tuple[Template, ...]:
    """Return all mentions once, one of each role in turn, so that no role is cut."""
    # Eight mentions at most. Role by role, a role of eight people would push out the
    # only holder of the next one.
    turns = chain.from_iterable(zip_longest(*each))
    return tuple(dict.fromkeys(one for one in turns if one is not None))
