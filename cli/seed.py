"""Seed a sandbox Slack with the people and channels that a policy names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from pydantic import JsonValue

from keyturn.gateway.policy.fields import is_user_id, is_usergroup_id
from keyturn.gateway.policy.rules import Policy
from keyturn.sandbox.records import Channel, User, UserGroup
from keyturn.sandbox.samples import ANA, BEN, CHLOE, TEAM
from keyturn.sandbox.workspace import Workspace


def seed(workspace: Workspace, policy: Policy) -> None:
    """Let every role of a policy be held by somebody of a sample workspace.

    What the sandbox lacks is added under the policy's own ids: people, user groups,
    and channels. Everybody is in the policy's channels. Groups of the first role have
    Ana and Ben, those of all later ones have Chloé: who decides first and who comes
    later differ.
    """
    later = [rule.usergroups for rule in list(policy.roles.values())[1:]]
    of_chloe = {group for groups in later for group in groups}
    # Ids stand in many keys of a policy. Another text in capitals that has their form
    # (a reason "URGENT") adds a person whom nobody asks, which harms no sandbox.
    for text in _strings(cast("JsonValue", policy.model_dump(mode="json"))):
        if is_user_id(text) and text not in workspace.users:
            workspace.put_user(_person(text))
            workspace.direct_message(text)
        elif is_usergroup_id(text) and text not in workspace.groups:
            people = (CHLOE.id,) if text in of_chloe else (ANA.id, BEN.id)
            handle = _handle(workspace, policy, text)
            workspace.put_group(UserGroup(text, handle, text, people))
    for name in policy.channels:
        _open_channel(workspace, name)


def holders(policy: Policy, workspace: Workspace) -> list[str]:
    """Return a line for each role: who of the sandbox holds it."""
    lines: list[str] = []
    for name, rule in policy.roles.items():
        groups = [workspace.groups[group].users for group in rule.usergroups]
        ids = dict.fromkeys(
            (*rule.users, *(user for users in groups for user in users))
        )
        people = ", ".join(workspace.users[each].real_name for each in ids)
        lines.append(f"{name}: {people or 'nobody'}")
    return lines


def _handle(workspace: Workspace, policy: Policy, group: str) -> str:
    """Return the name of the one role that a group holds, so that cards mention it."""
    roles = [name for name, rule in policy.roles.items() if rule.usergroups == (group,)]
    taken = {one.handle for one in workspace.groups.values()}
    if len(roles) == 1 and roles[0] not in taken:
        return roles[0]
    return group.lower()


def _open_channel(workspace: Workspace, name: str) -> None:
    """Add a channel unless it exists, and let everybody join it."""
    handle = name.removeprefix("#")
    known = {
        one.id
        for one in workspace.channels.values()
        if name in {one.id, f"#{one.name}"}
    }
    people = {user.id for user in workspace.users.values() if not user.deleted}
    if not known:
        # A policy may name a channel by its id; then the sandbox has it under this id.
        number = f"C0{len(workspace.channels):04}NEW" if name.startswith("#") else name
        workspace.put_channel(Channel(number, handle.lower(), frozenset(people)))
    for channel in known:
        for user in people - workspace.channels[channel].members:
            workspace.join(channel, user)


def _person(user_id: str) -> User:
    name = user_id[1:].lstrip("0").lower() or user_id.lower()
    return User(user_id, name, name.title(), TEAM)


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
