"""Policy file model: roles, tools and what each tool needs.

Every model refuses keys it does not know. An unset field is None and falls through to
the next wider place: tool of an agent, tool, agent, defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Literal, cast

from pydantic import BeforeValidator, Field, field_validator, model_validator

from twokey.gateway.approvals.preview import Preview
from twokey.gateway.approvals.private_text import PrivateData
from twokey.gateway.approvals.requirement import Notify, Role
from twokey.gateway.durations import parse_duration
from twokey.gateway.policy.batch_rules import BatchRule
from twokey.gateway.policy.check_rules import SeededDefectRule, SpotCheckRule
from twokey.gateway.policy.fields import (
    ArgsPath,
    ArgsPaths,
    Audience,
    ChannelRef,
    Condition,
    Count,
    CountedBy,
    Day,
    Distinct,
    Duration,
    ExactName,
    Host,
    Link,
    Reason,
    ReasonsFor,
    RequirementName,
    Reviewers,
    RoleName,
    StrictBool,
    Template,
    Totals,
    UsergroupId,
    UserId,
    WindowName,
    is_channel,
    is_slack_id,
    is_user_id,
    is_usergroup_id,
    one_or_many,
)
from twokey.gateway.policy.on_call import Rotation
from twokey.gateway.policy.quiet_hours import QuietRule
from twokey.gateway.policy.requirement_rules import RequirementRule
from twokey.gateway.policy.similar_rules import SimilarRule
from twokey.gateway.policy.tier_rules import TierRules, WaitingRule
from twokey.gateway.policy.triage_rules import TriageRule
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.effect import Effect
from twokey.gateway.protocol.records import Record
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier
from twokey.gateway.protocol.verbs import Verb
from twokey.gateway.validation_errors import Path, shown

EVERY_TOOL = "*"
"""Stands for all tools in the list of a window."""

DIRECT = "reviewers"
"""Name of the role that people have who are listed by id, without a role."""


class ExpiryByTier(Record):
    """How long people have, for each tier that waits; one time stands for both."""

    approve: Duration = timedelta(hours=1)
    escalate: Duration = timedelta(hours=1)

    def of(self, tier: Tier) -> timedelta:
        """Return the time of a tier."""
        return self.escalate if tier is Tier.ESCALATE else self.approve


def _for_both(value: object) -> object:
    if isinstance(value, Mapping | ExpiryByTier):
        return cast("object", value)
    time = parse_duration(value)
    return {"approve": time, "escalate": time}


def _of_kind(kind: type, written: str) -> BeforeValidator:
    """Refuse what only Python takes for the one value there is: 1, true and 1.0."""

    def check(value: object) -> object:
        # `type(...) is not`: 1 == True == 1.0 in Python, and Literal compares with ==.
        if type(value) is not kind:
            raise ValueError(f"{shown(value)} is not known here; write {written}.")
        return value

    return BeforeValidator(check)


class Defaults(Record):
    """What holds where a tool and its agent say nothing.

    An unlisted tool gets ``tier``; without ``reviewers`` nobody can approve. With
    ``overridable``, a run of the agent may ask for less than ``tier`` for a tool that
    is not listed, as LangChain's ``interrupt_on`` does for all that it leaves out.
    ``link_hosts`` are the hosts that a ``link`` may lead to; None allows any.
    """

    tier: Tier = Tier.APPROVE
    expires_in: Annotated[ExpiryByTier, BeforeValidator(_for_both)] = ExpiryByTier()
    channel: ChannelRef = "#agent-approvals"
    reviewers: Reviewers = ()
    triage: TriageRule | None = None
    overridable: StrictBool = False
    link_hosts: Annotated[tuple[Host, ...], Distinct] | None = None

    @model_validator(mode="after")
    def _not_denied(self) -> Defaults:
        if self.overridable and self.tier is Tier.DENY:
            raise ValueError(
                "it is 'deny' and 'overridable'; nothing overrides a denial, so remove "
                "'overridable'."
            )
        return self


class RoleRule(Record):
    """Who holds a role, by Slack ids and never by name.

    ``notify`` says how its holders learn of a card, ``quiet`` when they do not, and
    ``on_call`` who of them is asked first; all of them may decide at any time.
    """

    users: Annotated[tuple[UserId, ...], Distinct] = ()
    usergroups: Annotated[tuple[UsergroupId, ...], Distinct] = ()
    notify: Notify | None = None
    quiet: QuietRule | None = None
    on_call: RoleName | None = None

    @model_validator(mode="after")
    def _somebody(self) -> RoleRule:
        if not self.users and not self.usergroups:
            raise ValueError("nobody holds this role; give it users or usergroups.")
        return self


class WindowRule(Record):
    """A rolling total over the calls of some tools.

    Either ``sum``, a path to an amount, or ``count``. ``by`` is the resource whose
    total it is; without it there is one total for the tenant. A total includes the call
    that is evaluated and the calls that still wait for people.

    ``counts`` says what is counted: ``uses`` leave the total when their call does not
    run; ``requests`` stay in it in any case.
    """

    tools: Annotated[tuple[str, ...], BeforeValidator(one_or_many), Field(min_length=1)]
    by: CountedBy | None = None
    sum: ArgsPath | None = None
    count: Annotated[Literal[True], _of_kind(bool, "count: true")] | None = None
    counts: Literal["uses", "requests"] = "uses"
    within: Duration

    @model_validator(mode="after")
    def _one_kind(self) -> WindowRule:
        if (self.sum is None) == (self.count is None):
            raise ValueError("write either 'sum: args.amount' or 'count: true'.")
        return self

    def covers(self, tool: str) -> bool:
        """Return whether calls of this tool go into the total."""
        return EVERY_TOOL in self.tools or tool in self.tools


class RaiseRule(Record):
    """One reason to ask for more.

    When it holds, the tier is at least ``to``, and the requirement ``needs`` has to be
    met beside every other; a requirement needs people, so the tier is ``approve`` then.
    """

    to: Tier | None = None
    needs: RequirementName | None = None
    when: Condition
    because: Reason

    @model_validator(mode="after")
    def _something(self) -> RaiseRule:
        if self.to is None and self.needs is None:
            raise ValueError("it asks for nothing; write 'to: escalate' or 'needs: …'.")
        if self.needs is not None and not self.tier.needs_people:
            raise ValueError(
                f"nobody decides at {self.tier.value!r}, so it cannot have 'needs'; "
                "write 'to: approve' or 'to: escalate', or leave 'to' out."
            )
        return self

    @property
    def tier(self) -> Tier:
        """Return the tier that it asks for at least."""
        return Tier.APPROVE if self.to is None else self.to


class Protection(Record):
    """How much an agent may ask of people's attention.

    Attributes:
        pending_per_agent: calls of one agent that may wait at once.
        requests_per_10m: calls of one agent that may be put to people in ten minutes.
        same_rejected_within: for so many turns a call that was rejected is refused
            without a new card when it comes again unchanged.
        pause_after_rejections: rejected so often in a row, an agent is paused.
        ask_about_invalid_calls: whether people are asked about a call that does not fit
            its tool or names none, instead of the model being told.
        unfreeze: who may unfreeze or resume what is frozen or paused; None: those who
            may freeze it.
    """

    pending_per_agent: Count = Field(default=100, ge=1, le=10_000)
    requests_per_10m: Count = Field(default=200, ge=1, le=100_000)
    same_rejected_within: Count = Field(default=3, ge=0, le=100)
    pause_after_rejections: Count = Field(default=10, ge=1, le=1_000)
    ask_about_invalid_calls: StrictBool = False
    unfreeze: Reviewers | None = None


class PrivacyRule(Record):
    """What is hidden in the words of agents and tools, wherever they are shown."""

    hide: Annotated[tuple[PrivateData, ...], Distinct] = (PrivateData.CARD_NUMBERS,)


class ToolRule(Record):
    """What one tool needs.

    ``reviewers`` are asked at tier ``approve``; ``needs`` names a requirement, which
    holds at every tier. ``description`` is trusted text with ``{args.name}`` places and
    ``link`` an address with such places that cards show; ``preview`` names an e-mail or
    a SQL statement; ``redact`` hides values on cards and changes nothing that is hashed
    or run. ``totals`` names arguments that the card of many calls adds up.
    ``effect`` says whether it only reads or can be taken back; of one that says nothing
    it is assumed that it cannot. ``same_by`` names the arguments that two calls share
    when the second is the first one again; without it these are all arguments.
    ``audience`` names who runs the tool, for whom its receipts are; without it that is
    the agent.
    ``notify`` says how people learn of its cards, whatever their role and tier say.
    ``batch`` lets calls of several requests share a card. ``allow_similar`` lets people
    give standing approvals, within its bounds.
    ``raise`` (in Python `raise_`) lists reasons to ask for more. A run of the agent may
    ask for less than is listed only when the tool is ``overridable``.
    """

    tier: Tier | None = None
    allow: tuple[Verb, ...] | None = None
    reviewers: Reviewers | None = None
    needs: RequirementName | None = None
    description: Template | None = None
    link: Link | None = None
    preview: Preview | None = None
    args_schema: JsonObject | None = None
    requires_reason: ReasonsFor | None = None
    effect: Effect | None = None
    audience: Audience | None = Field(
        default=None, description="200 characters of ASCII at most, without blanks"
    )
    idempotent: StrictBool | None = None
    redact: tuple[ArgsPath, ...] = ()
    totals: Totals = ()
    same_by: ArgsPaths = ()
    expires_in: Duration | None = None
    authorization: Duration | None = None
    on_failure: Literal["tell", "ask"] | None = None
    notify: Notify | None = None
    channel: ChannelRef | None = None
    overridable: StrictBool | None = None
    triage: TriageRule | None = None
    allow_similar: SimilarRule | None = None
    batch: BatchRule | None = None
    raise_: tuple[RaiseRule, ...] = Field(default=(), alias="raise")

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
    tools: dict[ExactName, ToolRule] = Field(default_factory=dict)


class Policy(Record):
    """A whole policy file."""

    version: Annotated[Literal[1], _of_kind(int, "version: 1")]
    defaults: Defaults = Defaults()
    roles: dict[RoleName, RoleRule] = Field(default_factory=dict)
    on_call: dict[RoleName, Rotation] = Field(default_factory=dict)
    holidays: tuple[Day, ...] = ()
    windows: dict[WindowName, WindowRule] = Field(default_factory=dict)
    requirements: dict[RequirementName, RequirementRule] = Field(default_factory=dict)
    tiers: TierRules = TierRules()
    effects: dict[Effect, Tier] = Field(default_factory=dict[Effect, Tier])
    tools: dict[ExactName, ToolRule] = Field(default_factory=dict)
    agents: dict[ExactName, AgentRule] = Field(default_factory=dict)
    protect: Protection = Protection()
    privacy: PrivacyRule = PrivacyRule()
    spot_checks: SpotCheckRule | None = None
    seeded_defects: SeededDefectRule | None = None

    @cached_property
    def digest(self) -> str:
        """Return the hash that is pinned in every approval evaluated by this policy.

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
        named = [rule.channel for rule in (*rules, self.tiers.notify)]
        waiting = (self.tiers.approve.escalate_to, self.tiers.escalate.escalate_to)
        named += [name for name in waiting if name and is_channel(name)]
        found = (name for name in named if name)
        return tuple(dict.fromkeys((self.defaults.channel, *found)))

    @property
    def notifying(self) -> frozenset[Notify]:
        """Return every way of notifying people that the file writes out."""
        rules: list[RoleRule | ToolRule | WaitingRule] = [*self.roles.values()]
        rules += [rule for _, rule in self.tool_rules()]
        rules += [self.tiers.approve, self.tiers.escalate]
        return frozenset(rule.notify for rule in rules if rule.notify is not None)

    @property
    def asks_triage(self) -> bool:
        """Return whether any call is put to triage."""
        rules = (self.defaults.triage, *(rule.triage for _, rule in self.tool_rules()))
        return any(rule is not None and rule.tiers for rule in rules)

    def tool_rules(self) -> Iterator[tuple[Path, ToolRule]]:
        """Yield what the file says of each tool, with its place; single agents last."""
        for tool, rule in self.tools.items():
            yield ("tools", tool), rule
        for agent, agent_rule in self.agents.items():
            for tool, rule in agent_rule.tools.items():
                yield ("agents", agent, "tools", tool), rule

    def names_tool(self, name: str) -> bool:
        """Return whether the file names this tool; others exist as well."""
        return any(place[-1] == name for place, _ in self.tool_rules())

    def roles_named(self, names: tuple[str, ...]) -> tuple[Role, ...]:
        """Return the roles behind names and Slack ids, as they are now.

        A name this file does not know is a role that nobody holds.
        """
        named = [self._role(name) for name in names if not is_slack_id(name)]
        users = tuple(name for name in names if is_user_id(name))
        usergroups = tuple(name for name in names if is_usergroup_id(name))
        if users or usergroups:
            named.append(Role(name=DIRECT, users=users, usergroups=usergroups))
        return tuple(named)

    def _role(self, name: str) -> Role:
        rule = self.roles.get(name)
        if rule is None:
            return Role(name=name)
        return Role(
            name=name,
            users=rule.users,
            usergroups=rule.usergroups,
            notify=rule.notify or Notify.MENTION,
        )
