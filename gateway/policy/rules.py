"""Policy file model: roles, tools and what each tool needs.

Every model refuses keys it does not know. An unset field is None and falls through to
the next wider place: tool of an agent, tool, agent, defaults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from keyturn.gateway.approvals.preview import Preview
from keyturn.gateway.approvals.private_text import PrivateData
from keyturn.gateway.approvals.requirement import Notify, Role
from keyturn.gateway.approvals.similar import MOST_USES, exact_micro
from keyturn.gateway.durations import parse_duration
from keyturn.gateway.policy.fields import (
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
    EscalationTarget,
    ExactName,
    Host,
    Link,
    Reason,
    ReasonsFor,
    RequirementName,
    Reviewers,
    RoleName,
    ShareOfCalls,
    ShareOfTime,
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
from keyturn.gateway.policy.on_call import QuietRule, Rotation
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.effect import Effect
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.protocol.verbs import Verb
from keyturn.gateway.validation_errors import Path, shown

FEWEST_PARTS, MOST_PARTS = 2, 4
"""Parts of ``all``; every choice among them becomes a condition of its own."""


def _no_id(text: object) -> object:
    if isinstance(text, str) and is_slack_id(text):
        raise ValueError(
            f"{text!r} is a Slack id, and a requirement names roles; list it under a "
            "name in 'roles', and write that name."
        )
    return text


RoleNames = Annotated[
    tuple[Annotated[RoleName, BeforeValidator(_no_id)], ...],
    BeforeValidator(one_or_many),
    Distinct,
    Field(min_length=1),
]
PeopleCount = Annotated[Count, Field(ge=1, le=20)]


def _parts(parts: tuple[PartRule, ...] | None) -> tuple[PartRule, ...] | None:
    if parts is not None and not FEWEST_PARTS <= len(parts) <= MOST_PARTS:
        raise ValueError(
            f"it has {len(parts)} parts; write {FEWEST_PARTS} to {MOST_PARTS}, or "
            "'of' for one."
        )
    return parts


class PartRule(Record):
    """One part of ``all``: so many people of these roles."""

    of: RoleNames
    approvals: PeopleCount = 1


class RequirementRule(Record):
    """Who has to agree.

    Either ``of``: so many people of these roles, some of them holding the roles of
    ``at_least``. Or ``all``: every part, each by people of its own, so that one person
    in two roles counts once. ``order`` says that they may agree in any order. With
    ``editor_may_vote: false`` the person who changed the arguments cannot approve
    them.
    """

    of: RoleNames | None = None
    approvals: PeopleCount | None = None
    at_least: dict[RoleName, PeopleCount] = Field(default_factory=dict)
    all_: Annotated[tuple[PartRule, ...] | None, AfterValidator(_parts)] = Field(
        default=None, alias="all"
    )
    order: Literal["any"] = "any"
    editor_may_vote: StrictBool = True

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.of is None) == (self.all_ is None):
            raise ValueError("write either 'of: [support]' or 'all: [{of: …}, …]'.")
        if self.all_ is not None and (self.approvals is not None or self.at_least):
            raise ValueError(
                "'approvals' and 'at_least' go with 'of'; with 'all', write how many "
                "people into each part, as in {of: support, approvals: 2}."
            )
        return self


class NotifyRule(Record):
    """What the tier ``notify`` needs: a place for its notifications.

    Without a ``channel`` they go where the cards of the tool go.
    """

    channel: ChannelRef | None = None


class WaitingRule(Record):
    """Who decides at a tier that waits for people, and how it passes its time.

    ``needs`` names a requirement; the narrower place, a tool, says who is asked first.
    ``authorization`` is how long an approved call may wait to run.
    ``remind_at`` and ``escalate_at`` are shares of the time that people have; at the
    second, ``escalate_to`` is called: a role, a person or a channel. ``notify`` is for
    roles that say nothing themselves; with ``none`` nobody is asked until then.
    """

    needs: RequirementName | None = None
    expires_in: Duration | None = None
    authorization: Duration | None = None
    remind_at: ShareOfTime | None = None
    escalate_at: ShareOfTime | None = None
    escalate_to: EscalationTarget | None = None
    notify: Notify | None = None

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.escalate_at is None) != (self.escalate_to is None):
            raise ValueError(
                "'escalate_at' says when and 'escalate_to' who is called; set both."
            )
        return self

    @model_validator(mode="after")
    def _reminded(self) -> Self:
        if self.notify is Notify.NONE and self.remind_at is not None:
            raise ValueError(
                "'notify: none' mentions nobody, and 'remind_at' mentions those who "
                "have not decided; keep one of them."
            )
        return self


class ApproveRule(WaitingRule):
    """What the tier ``approve`` needs: one reviewer or a requirement, in a time."""


class EscalateRule(WaitingRule):
    """What the tier ``escalate`` needs: a requirement, or one written out here.

    ``of`` unset means the tool's reviewers. An approval within ``ask_again_within``
    after the call was shown is asked for once more.
    """

    approvals: Count = Field(default=2, ge=2, le=20)
    of: Reviewers | None = None
    at_least: dict[RoleName, Count] = Field(default_factory=dict)
    ask_again_within: Duration | None = None

    @model_validator(mode="after")
    def _once(self) -> Self:
        written = {"approvals", "of", "at_least"} & self.model_fields_set
        if self.needs is not None and written:
            raise ValueError(
                f"'needs' says who decides, and so does {min(written)!r}; keep one."
            )
        return self


class TierRules(Record):
    """The tiers that can be set up."""

    notify: NotifyRule = NotifyRule()
    approve: ApproveRule = ApproveRule()
    escalate: EscalateRule = EscalateRule()

    def waiting(self, tier: Tier) -> WaitingRule:
        """Return how a tier passes its time."""
        return self.escalate if tier is Tier.ESCALATE else self.approve


LONGEST_STANDING = timedelta(days=7)
"""How long a standing approval may last at most, whatever the policy says."""


def _amount(value: object) -> object:
    # 0 would cover nothing; a bool is no amount.
    if isinstance(value, int | float) and exact_micro(value):
        return value
    raise ValueError(
        f"{shown(value)} is not an amount; write a number above 0 with at most six "
        "decimal places."
    )


Amount = Annotated[int | float, BeforeValidator(_amount)]


class SimilarRule(Record):
    """How far one standing approval of a tool may go.

    Every argument has to be equal to that of the reviewed call, but for those of
    ``may_differ`` and that of ``sum``, which is added up: all calls together come to
    ``at_most`` at most.
    """

    within: Duration
    uses: Count = Field(ge=1, le=MOST_USES)
    sum: ArgsPath | None = None
    at_most: Amount | None = None
    may_differ: ArgsPaths = ()

    @model_validator(mode="after")
    def _fits(self) -> SimilarRule:
        if (self.sum is None) != (self.at_most is None):
            raise ValueError("'sum' and 'at_most' belong together; write both or none.")
        if self.within > LONGEST_STANDING:
            raise ValueError("'within' is 7 days at most.")
        free = (*self.may_differ, *((self.sum,) if self.sum else ()))
        for path in free:
            others = [one for one in free if one != path]
            is_inside = any(f"{path}.".startswith(f"{one}.") for one in others)
            if is_inside or free.count(path) > 1:
                raise ValueError(
                    f"{path!r} may differ by another path already; remove one."
                )
        return self

    @property
    def within_ms(self) -> int:
        """Return the longest time in milliseconds."""
        return int(self.within.total_seconds() * 1000)

    @property
    def total_micro(self) -> int:
        """Return the most that is added up, in millionths; 0 where nothing is."""
        return exact_micro(self.at_most) or 0


LONGEST_OPINION = timedelta(seconds=30)
"""The longest time-out: an agent waits, and what its turn reserved ends in a minute."""


class TriageRule(Record):
    """How triage is asked about the calls of a tool; without one it is not.

    Attributes:
        tiers: calls of these tiers are put to it; an empty list switches it off.
        timeout: an answer that takes longer changes nothing.
        may_deny: it may refuse a call; else its ``deny`` counts as ``escalate``.
    """

    tiers: Annotated[tuple[Tier, ...], BeforeValidator(one_or_many), Distinct] = (
        Tier.APPROVE,
        Tier.ESCALATE,
    )
    timeout: Duration = timedelta(seconds=2)
    may_deny: StrictBool = False

    @field_validator("tiers")
    @classmethod
    def _can_rise(cls, tiers: tuple[Tier, ...]) -> tuple[Tier, ...]:
        if Tier.DENY in tiers:
            raise ValueError("what is denied is not put to triage; remove 'deny'.")
        return tiers

    @field_validator("timeout")
    @classmethod
    def _short(cls, timeout: timedelta) -> timedelta:
        if timeout > LONGEST_OPINION:
            raise ValueError(
                f"an agent would wait {timeout.total_seconds():.0f} s for an opinion; "
                f"{LONGEST_OPINION.total_seconds():.0f}s is the most."
            )
        return timeout


class SpotCheckRule(Record):
    """Which share of the calls that ran is checked afterwards, and by whom.

    People are asked about ``per_day`` calls a day at most.
    """

    share: ShareOfCalls
    of: Annotated[Reviewers, Field(min_length=1)]
    per_day: Count = Field(default=20, ge=1, le=1_000)


class SeededCall(Record):
    """A call with a mistake that a reviewer should notice; no agent asks for it.

    ``defect`` says what is wrong with it, and ``says`` is what its card gives as the
    agent's words.
    """

    tool: ExactName
    args: JsonObject
    defect: Reason
    agent: ExactName
    says: str = ""


class SeededDefectRule(Record):
    """Cards that never run, shown to find out whether reviewers notice a mistake.

    About one in ``every`` so long, at a moment that nobody can tell beforehand.
    """

    every: Duration
    calls: Annotated[tuple[SeededCall, ...], Field(min_length=1, max_length=100)]


LONGEST = timedelta(minutes=10)
"""How long a card may wait for other calls at most, whatever the policy says."""

MOST_CALLS = 50
"""How many calls share a card at most: as many as one decision writes at once."""


class BatchRule(Record):
    """Which calls of a tool, of different turns and threads, share one card.

    With ``by: window`` these are all that come ``within`` a time after the first one;
    with ``by: task`` only those of one task that the agent names. ``up_to`` calls at
    most: the card is posted when there are so many, or when the time is over.
    """

    by: Literal["window", "task"] = "window"
    within: Duration
    up_to: Count = Field(default=MOST_CALLS, ge=2, le=MOST_CALLS)

    @model_validator(mode="after")
    def _is_short(self) -> BatchRule:
        if self.within > LONGEST:
            raise ValueError(
                "'within' is 10 minutes at most: people wait for the card."
            )
        return self

    @property
    def within_s(self) -> float:
        """Return the time that the first call waits for others, in seconds."""
        return self.within.total_seconds()


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
        return name in self.tool_names

    @property
    def tool_names(self) -> frozenset[str]:
        """Return every tool that the file names."""
        return frozenset(str(place[-1]) for place, _ in self.tool_rules())

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
