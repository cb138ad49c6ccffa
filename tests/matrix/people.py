"""Fill the sandbox with one person of each kind, and with the earlier voters.

People who must never decide have all roles of a reviewer: they are in the group and on
the list, so that only the rule about their kind can refuse them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from keyturn.sandbox.records import Channel, User, UserGroup
from keyturn.sandbox.samples import OTHER_TEAM, TEAM
from keyturn.sandbox.workspace import Workspace

SUPPORT, SENIOR, EMPTY, MISSING = "S0SUPPORT", "S0SENIOR", "S0EMPTY", "S0MISSING"


class Kind(StrEnum):
    """What kind of person decides."""

    BY_ID = "reviewer by user id"
    BY_GROUP = "reviewer by user group"
    SENIOR = "senior"
    REQUESTER = "requester who is also reviewer"
    OWNER = "owner of the agent who is also reviewer"
    OUTSIDER = "outsider"
    MULTI_GUEST = "multi-channel guest"
    SINGLE_GUEST = "single-channel guest"
    DEACTIVATED = "deactivated reviewer"
    DEACTIVATED_NOW = "reviewer deactivated just now"
    STRANGER = "stranger of Slack Connect"
    OTHER_TEAM = "user of another team"
    OTHER_WORKSPACE = "reviewer in another workspace"
    BOT = "bot"
    REVOKED_NOW = "reviewer who left the group just now"
    REVOKED = "reviewer who left the group a minute ago"
    NO_ACCOUNT = "reviewer whose account Slack does not tell"
    NO_GROUPS = "reviewer by user group when Slack does not tell groups"
    NO_GROUPS_BY_ID = "reviewer by user id when Slack does not tell groups"


@dataclass(frozen=True)
class Place:
    """A person's account, user groups, and place on the list."""

    user: User
    groups: tuple[str, ...] = ()
    is_listed: bool = False


def _user(name: str, team: str = TEAM) -> User:
    return User(f"U0{name.upper()}", name, name.title(), team)


_REVIEWER = (SUPPORT,)
_ALL = (SUPPORT, SENIOR)

PLACES: dict[Kind, Place] = {
    Kind.BY_ID: Place(_user("lisa"), is_listed=True),
    Kind.BY_GROUP: Place(_user("gita"), _REVIEWER),
    Kind.SENIOR: Place(_user("sven"), (SENIOR,)),
    Kind.REQUESTER: Place(_user("rosa"), _ALL, is_listed=True),
    Kind.OWNER: Place(_user("omar"), _ALL, is_listed=True),
    Kind.OUTSIDER: Place(_user("otto")),
    Kind.MULTI_GUEST: Place(
        replace(_user("mona"), is_restricted=True), _REVIEWER, is_listed=True
    ),
    Kind.SINGLE_GUEST: Place(
        replace(_user("sina"), is_restricted=True, is_ultra_restricted=True),
        _REVIEWER,
        is_listed=True,
    ),
    Kind.DEACTIVATED: Place(
        replace(_user("dora"), deleted=True), _REVIEWER, is_listed=True
    ),
    Kind.DEACTIVATED_NOW: Place(_user("dirk"), _REVIEWER, is_listed=True),
    Kind.STRANGER: Place(
        replace(_user("sasha", OTHER_TEAM), is_stranger=True), _REVIEWER, is_listed=True
    ),
    Kind.OTHER_TEAM: Place(_user("tara", OTHER_TEAM), _REVIEWER, is_listed=True),
    Kind.OTHER_WORKSPACE: Place(_user("wanda"), _REVIEWER, is_listed=True),
    Kind.BOT: Place(replace(_user("robo"), is_bot=True), _REVIEWER, is_listed=True),
    Kind.REVOKED_NOW: Place(_user("rhea"), _REVIEWER),
    Kind.REVOKED: Place(_user("rudi"), _REVIEWER),
    Kind.NO_ACCOUNT: Place(_user("nora"), _ALL, is_listed=True),
    Kind.NO_GROUPS: Place(_user("nils"), _REVIEWER),
    Kind.NO_GROUPS_BY_ID: Place(_user("nele"), is_listed=True),
}

JUNIOR_BEFORE = Place(_user("jana"), _REVIEWER)
SENIOR_BEFORE = Place(_user("saba"), (SENIOR,))
DEACTIVATED_BEFORE = Place(_user("dean"), (SENIOR,))
REVOKED_BEFORE = Place(_user("remy"), (SENIOR,))
DEMOTED_BEFORE = Place(_user("dema"), _ALL)
EVERYBODY = (
    *PLACES.values(),
    JUNIOR_BEFORE,
    SENIOR_BEFORE,
    DEACTIVATED_BEFORE,
    REVOKED_BEFORE,
    DEMOTED_BEFORE,
)
LISTED = tuple(place.user.id for place in EVERYBODY if place.is_listed)


def populate(workspace: Workspace, channels: Iterable[str]) -> None:
    """Add all people to the workspace and to these channels; make the groups."""
    for place in EVERYBODY:
        workspace.put_user(place.user)
    members = frozenset({*workspace.users})
    for channel in channels:
        workspace.put_channel(Channel(channel, channel.lower(), members))
    for group in (SUPPORT, SENIOR, EMPTY):
        users = (place.user.id for place in EVERYBODY if group in place.groups)
        name = group.removeprefix("S0").lower()
        workspace.put_group(UserGroup(group, name, name.title(), tuple(users)))


def leave_group(workspace: Workspace, group: str, user: str) -> None:
    """Remove a person from a user group."""
    users = workspace.groups[group].users
    workspace.set_group(group, [one for one in users if one != user])


def join_group(workspace: Workspace, group: str, user: str) -> None:
    """Add a person to a user group."""
    workspace.set_group(group, [*workspace.groups[group].users, user])
