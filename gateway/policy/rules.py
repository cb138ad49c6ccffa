"""Model the policy file: who may decide, and what each tool needs.

Every model refuses keys it does not know. An unset field is None and falls through to
the next wider place: tool of an agent, tool, agent, defaults.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cached_property
from typing import Literal

from pydantic import Field, field_validator, model_validator

from gateway.approvals import digest
from gateway.approvals.record import Record, Role, Verb
from gateway.approvals.tiers import Tier
from gateway.policy.fields import (
    ArgsPath,
    ArgsSchema,
    ChannelRef,
    Duration,
    Reviewers,
    RoleName,
    Template,
    UsergroupId,
    UserId,
    is_user_id,
    is_usergroup_id,
)

DIRECT = "reviewers"
"""Name of the role that people have who are listed by id, without a role."""


class Defaults(Record):
    """What holds where a tool and its agent say nothing.

    An unlisted tool gets ``tier``; without ``reviewers`` nobody can approve.
    """

    tier: Tier = Tier.APPROVE
    expires_in: Duration = timedelta(hours=1)
    channel: ChannelRef = "#agent-approvals"
    reviewers: Reviewers = ()


class RoleRule(Record):
    """Who holds a role, by Slack ids and never by name."""

    users: tuple[UserId, ...] = ()
    usergroups: tuple[UsergroupId, ...] = ()

    @model_validator(mode="after")
    def _somebody(self) -> RoleRule:
        if not self.users and not self.usergroups:
            raise ValueError("nobody holds this role; give it users or usergroups.")
        return self


class EscalateRule(Record):
    """What the tier ``escalate`` needs; ``of`` unset means the tool's reviewers."""

    approvals: int = Field(default=2, ge=2, le=20)
    of: Reviewers | None = None
    at_least: dict[RoleName, int] = Field(default_factory=dict)


class TierRules(Record):
    """The tiers that can be set up."""

    escalate: EscalateRule = EscalateRule()


class ToolRule(Record):
    """What one tool needs.

    ``description`` is trusted text with ``{args.name}`` places; ``redact`` hides values
    on cards and changes nothing that is hashed or run.
    """

    tier: Tier | None = None
    allow: tuple[Verb, ...] | None = None
    reviewers: Reviewers | None = None
    description: Template | None = None
    args_schema: ArgsSchema | None = None
    requires_reason: bool | None = None
    idempotent: bool | None = None
    redact: tuple[ArgsPath, ...] = ()
    expires_in: Duration | None = None
    channel: ChannelRef | None = None

    @field_validator("allow")
    @classmethod
    def _something(cls, allow: tuple[Verb, ...] | None) -> tuple[Verb, ...] | None:
        if allow is not None and not allow:
            raise ValueError("nothing is allowed; name at least one decision.")
        return allow


class AgentRule(Record):
    """What is different when one agent calls; its tools can only raise a tier."""

    reviewers: Reviewers | None = None
    channel: ChannelRef | None = None
    tools: dict[str, ToolRule] = Field(default_factory=dict)


class Policy(Record):
    """A whole policy file."""

    version: Literal[1]
    defaults: Defaults = Defaults()
    roles: dict[RoleName, RoleRule] = Field(default_factory=dict)
    tiers: TierRules = TierRules()
    tools: dict[str, ToolRule] = Field(default_factory=dict)
    agents: dict[str, AgentRule] = Field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Return the hash that is frozen into every approval judged by this policy.

        It covers the meaning, not the text: comments and the order of keys do not
        change it, a default written out does not either.
        """
        document = digest.canonical(self.model_dump(mode="json"))
        return digest.tagged_hash(digest.POLICY_TAG, document)

    @property
    def channels(self) -> tuple[str, ...]:
        """Return every channel that is named, the default first."""
        rules: list[ToolRule | AgentRule] = [*self.tools.values()]
        for agent in self.agents.values():
            rules += [agent, *agent.tools.values()]
        named = (rule.channel for rule in rules if rule.channel)
        return tuple(dict.fromkeys((self.defaults.channel, *named)))

    def roles_named(self, names: tuple[str, ...]) -> tuple[Role, ...]:
        """Return the roles behind names and Slack ids, frozen as they are now.

        A name this file does not know is a role that nobody holds.
        """
        named = [self._role(name) for name in names if not _is_id(name)]
        users = tuple(name for name in names if is_user_id(name))
        usergroups = tuple(name for name in names if is_usergroup_id(name))
        if users or usergroups:
            named.append(Role(name=DIRECT, users=users, usergroups=usergroups))
        return tuple(named)

    def _role(self, name: str) -> Role:
        rule = self.roles.get(name)
        if rule is None:
            return Role(name=name)
        return Role(name=name, users=rule.users, usergroups=rule.usergroups)


def _is_id(name: str) -> bool:
    return is_user_id(name) or is_usergroup_id(name)
