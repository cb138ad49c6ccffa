"""Check that a policy's people exist in Slack and can meet its requirements."""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from keyturn.bot.reviewers import look_up_account
from keyturn.bot.web import Slack, SlackError
from keyturn.gateway.approvals.decisions import AccountKind, Reviewer
from keyturn.gateway.approvals.quorum import Tally, holds, roles_of, tally
from keyturn.gateway.approvals.requirement import Requirement, Role, Vote
from keyturn.gateway.gates.reachable import reachable
from keyturn.gateway.policy.eligibility import (
    ReachableRequirement,
    merged,
    reachable_requirements,
)
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.resume.graphs import BUILTIN


class State(StrEnum):
    """The result of one check."""

    GOOD = "good"
    BAD = "bad"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """One check; ``text`` has the finding and the fix."""

    name: str
    state: State
    text: str


_SHOWN = 10


def absent_ungated(graph: object, ungated: Collection[str]) -> str:
    """Return a text about names in ``ungated`` that no tool of a graph has, or ""."""
    found = reachable(graph)
    absent = sorted({*ungated} - {tool.name for tool in found.tools} - {BUILTIN})
    if not absent or found.unseen:
        return ""
    names = ", ".join(map(repr, absent))
    return f"'ungated' names {names}, and this agent has no such tool."


def unknown_names(policy: Policy, graphs: Mapping[str, object]) -> str:
    """Return a text about unknown tools and agents in the policy, or "".

    A misspelt name is a valid policy: its rule applies to no call, and the intended
    tool gets the default tier, even if the rule would deny it. The name may also belong
    to a tool of an agent in another process, so people have to judge.

    Args:
        policy: the policy with ``tools`` and ``agents``.
        graphs: every graph of the settings, by the name of its agent.
    """
    seen = {name: reachable(graph) for name, graph in graphs.items()}
    # A function of a graph can start tools that cannot be listed.
    if not seen or any(one.unseen for one in seen.values()):
        return ""
    tools = {tool.name for one in seen.values() for tool in one.tools}
    agents = {*seen} | {tool.gate for one in seen.values() for tool in one.tools}
    listed = {*policy.tools}
    for name in (agent for agent in policy.agents if agent in agents):
        listed |= {*policy.agents[name].tools}
    parts = [
        _missing("tool", sorted(listed - tools), sorted(tools - listed)),
        _missing(
            "agent",
            sorted({*policy.agents} - agents),
            sorted(agents - {*policy.agents}),
        ),
    ]
    return " ".join(part for part in parts if part)


def _missing(kind: str, names: list[str], unlisted: list[str]) -> str:
    """Return a sentence about names without a tool or agent.

    Args:
        kind: "tool" or "agent".
        names: names in the policy that do not exist.
        unlisted: existing names that are not in the policy: one may be intended.
    """
    if not names:
        return ""
    parts: list[str] = []
    for name in names[:_SHOWN]:
        close = difflib.get_close_matches(name, [one for one in unlisted if one], n=1)
        parts.append(f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name))
    plural = "s" if len(names) > 1 else ""
    return (
        f"the policy names {len(names)} {kind}{plural} that no graph of the settings "
        f"has: {', '.join(parts)}. Their rules apply to none of these graphs; that is "
        "right only for agents in other processes."
    )


MAX_LOOKUPS = 90
"""The maximum number of people looked up; Slack allows 100 ``users.info`` calls a
minute.
"""

_MAX_TOOLS = 3


@dataclass(frozen=True, slots=True)
class Group:
    """A user group as Slack lists it."""

    handle: str
    users: tuple[str, ...]
    is_disabled: bool


@dataclass(frozen=True, slots=True)
class People:
    """All people in a policy, with their current data in Slack.

    Attributes:
        groups: by id; missing groups do not exist.
        accounts: by user id, with the groups of each.
    """

    groups: Mapping[str, Group]
    accounts: Mapping[str, Reviewer]

    @property
    def members(self) -> list[Reviewer]:
        """Return the people who may vote."""
        known = self.accounts.values()
        return [one for one in known if one.account is AccountKind.MEMBER]


async def check_people(
    slack: Slack, policy: Policy, *, team: str, enterprise: str
) -> AsyncGenerator[Check]:
    """Yield a check of each role and each requirement of the policy.

    Args:
        slack: the API client.
        policy: the policy under check.
        team: the workspace's id.
        enterprise: the enclosing organization, or "".

    Raises:
        SlackError: when Slack does not list the user groups.
    """
    reachable = list(reachable_requirements(policy))
    roles = _roles(policy, reachable)
    groups = await _groups(slack)
    # A dict preserves the order: each run looks up the same people.
    ids = dict.fromkeys(user for role in roles for user in _listed(role, groups))
    accounts: dict[str, Reviewer] = {}
    for number, user in enumerate(ids):
        # Users beyond the limit count as members: Slack's rate limit must not make the
        # check report that nobody can approve.
        found = Reviewer(team=team, user=user, account=AccountKind.MEMBER)
        if number < MAX_LOOKUPS:
            found = await _account(slack, user, team=team, enterprise=enterprise)
        held = {
            group
            for group, one in groups.items()
            if user in one.users and not one.is_disabled
        }
        accounts[user] = found.with_(usergroups=frozenset(held))
    people = People(groups, accounts)
    for role in roles:
        yield _check_role(role, people)
    if len(ids) > MAX_LOOKUPS:
        text = (
            f"{len(ids)} people are named. {MAX_LOOKUPS} were looked up; the others "
            "are counted as members."
        )
        yield Check("people", State.GOOD, text)
    unknown = [
        user for user, one in accounts.items() if one.account is AccountKind.UNKNOWN
    ]
    # Requirements are not checked then: with unknown people each count is too low.
    if unknown:
        text = f"Slack did not identify {', '.join(unknown)}; run this again."
        yield Check("people", State.BAD, text)
        return
    for requirement, tools in _by_requirement(reachable):
        yield _check_requirement(requirement, tools, people)


def _check_role(role: Role, people: People) -> Check:
    name = f"role {role.name}"
    problems = [
        text
        for group in role.usergroups
        if (text := _group_problem(group, people.groups.get(group)))
    ]
    eligible = [one for one in people.members if holds(one, role)]
    listed = _listed(role, people.groups)
    others = [
        one
        for user in listed
        if (one := people.accounts.get(user)) and one.account is not AccountKind.MEMBER
    ]
    text = "; ".join([_size(eligible), *map(_why_not_eligible, others), *problems])
    # Bad even if other people have the role: the policy names a useless group.
    named = [people.groups.get(group) for group in role.usergroups]
    is_gone = any(one is None or one.is_disabled for one in named)
    return Check(name, State.BAD if is_gone or not eligible else State.GOOD, text)


def _size(eligible: Sequence[Reviewer]) -> str:
    if not eligible:
        return "nobody can decide"
    many = _counted(len(eligible))
    return f"{many}, {len(eligible) - 1} could approve a request of one of them"


def _check_requirement(
    requirement: Requirement, tools: Sequence[str], people: People
) -> Check:
    name = f"people for {_shortened(tools)}"
    count = _count(requirement, people)
    found = _counted_check(name, count)
    if not count.is_met:
        return found
    # People may not approve their own requests, so the count is repeated without each.
    alone = [
        _name(one)
        for one in people.members
        if not _count(requirement, people, without=one).is_met
    ]
    but = f", but not for requests of {', '.join(alone)}" if alone else ""
    return Check(name, State.GOOD, f"{found.text}{but}")


def _counted_check(name: str, count: Tally) -> Check:
    """Return the check of a requirement with the votes of all eligible people."""
    if count.is_met:
        people = "1 is needed" if count.need == 1 else f"{count.need} are needed"
        text = f"{_counted(count.have)} could approve, {people}"
        return Check(name, State.GOOD, text)
    words = [f"{many} more of {role}" for role, many in count.lacking.items()]
    # Each role may have enough people while the total is too small: a person with two
    # roles counts once.
    many = count.need - count.have
    if many > sum(count.lacking.values()):
        words.append(f"{many} more {'person' if many == 1 else 'people'} in all")
    text = f"cannot be approved: it takes {' and '.join(words)}."
    return Check(name, State.BAD, text)


def _count(
    requirement: Requirement, people: People, *, without: Reviewer | None = None
) -> Tally:
    """Count the votes of all eligible people: the best possible result."""
    votes = [
        Vote(
            by=one.person,
            roles=roles_of(one, requirement.roles),
            action_hash="",
            at_ms=0,
        )
        for one in people.members
        if without is None or one.user != without.user
    ]
    return tally(requirement, votes, "")


def _by_requirement(
    reachable: Iterable[ReachableRequirement],
) -> list[tuple[Requirement, list[str]]]:
    """Return each requirement once, with its tools."""
    # Not a dict: a requirement contains one, so it cannot be a key.
    found: list[tuple[Requirement, list[str]]] = []
    for one in reachable:
        tools = next(
            (names for requirement, names in found if requirement == one.requirement),
            None,
        )
        if tools is None:
            tools = list[str]()
            found.append((one.requirement, tools))
        tool = one.tool or "any other tool"
        of = f" of {one.agent}" if one.agent else ""
        plain, whole = f"{tool} ({one.tier})", f"{tool}{of} ({one.tier})"
        if plain not in tools and whole not in tools:
            tools.append(whole)
    return found


def _roles(policy: Policy, reachable: Iterable[ReachableRequirement]) -> list[Role]:
    """Return every role once: the named ones, and all people listed by id together."""
    named = policy.roles_named(tuple(policy.roles))
    asked = (role for one in reachable for role in one.requirement.roles)
    return list(merged((*named, *asked)))


async def _groups(slack: Slack) -> dict[str, Group]:
    # Including disabled ones: the report must distinguish a disabled group from a
    # missing one.
    reply = await slack.ask(
        "usergroups.list", include_users="true", include_disabled="true"
    )
    rows = cast("list[Mapping[str, object]]", reply.get("usergroups") or [])
    return {
        str(row["id"]): Group(
            handle=str(row.get("handle", "")),
            users=tuple(cast("list[str]", row.get("users") or [])),
            is_disabled=bool(row.get("date_delete")),
        )
        for row in rows
    }


async def _account(slack: Slack, user: str, *, team: str, enterprise: str) -> Reviewer:
    unknown = Reviewer(team=team, user=user)
    try:
        found = await look_up_account(slack, user, team=team, enterprise=enterprise)
    # If Slack cannot identify one person, the others are still checked.
    except SlackError:
        return unknown
    return unknown.with_(account=found.kind, name=found.name)


def _listed(role: Role, groups: Mapping[str, Group]) -> list[str]:
    """Return the ids of all people in a role."""
    found = [groups[group] for group in role.usergroups if group in groups]
    inside = [user for one in found if not one.is_disabled for user in one.users]
    return list(dict.fromkeys((*role.users, *inside)))


def _group_problem(group: str, found: Group | None) -> str:
    if found is None:
        return f"the user group {group} does not exist"
    shown = f"the user group @{found.handle} ({group})"
    if found.is_disabled:
        return f"{shown} is disabled"
    return "" if found.users else f"{shown} is empty"


def _why_not_eligible(one: Reviewer) -> str:
    words = {
        AccountKind.BOT: "is a bot",
        AccountKind.DEACTIVATED: "is deactivated",
        AccountKind.GUEST: "is a guest",
        AccountKind.STRANGER: "belongs to another workspace",
    }
    return f"{_name(one)} {words.get(one.account, 'could not be looked up')}"


def _name(one: Reviewer) -> str:
    return one.name or one.user


def _counted(many: int) -> str:
    return f"{many} {'person' if many == 1 else 'people'}"


def _shortened(tools: Sequence[str]) -> str:
    more = len(tools) - _MAX_TOOLS
    shown = ", ".join(tools[:_MAX_TOOLS])
    return f"{shown} and {more} more" if more > 0 else shown
