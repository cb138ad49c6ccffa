"""Model of the policy file; the docstrings here are the text of the reference page.

Every model refuses unknown keys. An unset field is None and falls through to the next
wider place: tool of an agent, tool, agent, defaults. ``tests.docs.policy_reference``
turns these classes into ``docs/policy-reference.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from keyturn.gateway.approvals.evidence import PrivateData
from keyturn.gateway.approvals.policy_decision import Preview
from keyturn.gateway.approvals.requirement import Notify, Role
from keyturn.gateway.approvals.similar import MOST_USES, exact_micro
from keyturn.gateway.policy.fields import (
    Act,
    AddedUp,
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
    Needs,
    Reason,
    RequirementName,
    Reviewers,
    RoleName,
    Share,
    StrictBool,
    Template,
    Totals,
    UsergroupId,
    UserId,
    WindowName,
    capped,
    is_channel,
    is_slack_id,
    is_user_id,
    is_usergroup_id,
    one_or_many,
)
from keyturn.gateway.policy.on_call import QuietRule, Rotation
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Effect, Record, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.validation_errors import Path, shown

RoleNames = Annotated[
    tuple[RoleName, ...], BeforeValidator(one_or_many), Distinct, Field(min_length=1)
]
PeopleCount = Annotated[Count, Field(ge=1, le=20)]


class PartRule(Record):
    """One part of ``all``."""

    of: RoleNames
    """Roles whose votes count for this part."""
    approvals: PeopleCount = 1
    """Number of distinct people."""


class RequirementRule(Record):
    """The people who have to agree: write either ``of`` or ``all``.

    ``needs`` names a requirement. All requirements that apply to a call have to be met;
    one vote may count for several of them.
    """

    of: RoleNames | None = None
    """Roles whose votes count; no Slack ids."""
    approvals: PeopleCount | None = None
    """Number of distinct people; 1 if unset."""
    # Every choice among the parts becomes a condition, so there are few of them.
    all_: tuple[PartRule, ...] | None = Field(
        default=None, alias="all", min_length=2, max_length=4
    )
    """2 to 4 parts; a person with two roles counts once."""
    editor_may_vote: StrictBool = True
    """``false``: an editor cannot approve the edit."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.of is None) == (self.all_ is None):
            raise ValueError("write either 'of: [support]' or 'all: [{of: …}, …]'.")
        if self.all_ is not None and self.approvals is not None:
            raise ValueError(
                "'approvals' goes with 'of'; with 'all', write how many people into "
                "each part, as in {of: support, approvals: 2}."
            )
        return self


class NotifyRule(Record):
    """Calls of this tier run, and a notification shows them."""

    channel: ChannelRef | None = None
    """Where notifications go, unless the tool or its agent has a channel."""


class WaitingRule(Record):
    """Settings of a tier that waits for people."""

    expires_in: Duration | None = None
    """Time to decide, for tools that do not set it."""
    authorization: Duration | None = None
    """Time from approval to run, for tools that do not set it; else 24 hours."""
    remind_at: Share | None = None
    """Share of the time after which the card's thread gets a reminder."""
    escalate_at: Share | None = None
    """Share of the time after which ``escalate_to`` is called."""
    escalate_to: EscalationTarget | None = None
    """Role, person or channel to call then. A role or person may vote from the start;
    a requirement in ``needs`` has to list them."""
    notify: Notify | None = None
    """How roles that do not set it learn of a card; with ``none``, only ``escalate_to``
    is called."""

    @model_validator(mode="after")
    def _both(self) -> Self:
        if (self.escalate_at is None) != (self.escalate_to is None):
            raise ValueError(
                "'escalate_at' and 'escalate_to' belong together; set both."
            )
        return self

    @model_validator(mode="after")
    def _reminded(self) -> Self:
        if self.notify is Notify.NONE and self.remind_at is not None:
            raise ValueError(
                "'remind_at' mentions reviewers, which 'notify: none' turns off; keep "
                "one of them."
            )
        return self


class EscalateRule(WaitingRule):
    """Two distinct people decide, or those of a requirement.

    Votes are for one exact version of a call: an edit voids them.
    """

    needs: Needs | None = None
    """Two of these people in place of those of the tool; or a requirement, in addition
    to one of the tool."""
    ask_again_within: Duration | None = None
    """An approval this soon after the call was shown has to be repeated."""


class TierRules(Record):
    """Settings of three tiers; ``auto`` and ``deny`` have none."""

    notify: NotifyRule = NotifyRule()
    """The call runs, and people see it."""
    approve: WaitingRule = WaitingRule()
    """One person decides, or those of a requirement."""
    escalate: EscalateRule = EscalateRule()
    """Several people decide."""

    def waiting(self, tier: Tier) -> WaitingRule:
        """Return the settings of a tier that waits for people."""
        return self.escalate if tier is Tier.ESCALATE else self.approve


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
    """Bounds of one standing approval; see ``docs/standing-approvals.md``."""

    within: Annotated[Duration, capped("7d")]
    """How long it may last: 7 days at most."""
    uses: Count = Field(ge=1, le=MOST_USES)
    """Number of calls that it may cover."""
    sum: ArgsPath | None = None
    """Amount that is added up over the calls; needs ``at_most``."""
    at_most: Amount | None = None
    """Limit of that sum."""
    may_differ: ArgsPaths = ()
    """Arguments that may have any value; all others have to be equal."""

    @model_validator(mode="after")
    def _fits(self) -> SimilarRule:
        if (self.sum is None) != (self.at_most is None):
            raise ValueError("'sum' and 'at_most' belong together; write both or none.")
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
        """Return ``at_most`` in millionths; 0 without a sum."""
        return exact_micro(self.at_most) or 0


class TriageRule(Record):
    """Which calls a model looks at before they open; see ``docs/triage.md``.

    The entry of a tool replaces that of ``defaults`` as a whole.
    """

    tiers: Annotated[
        tuple[Literal[Tier.AUTO, Tier.NOTIFY, Tier.APPROVE, Tier.ESCALATE], ...],
        BeforeValidator(one_or_many),
        Distinct,
    ] = (Tier.APPROVE, Tier.ESCALATE)
    """Tiers whose calls the model gets; ``[]`` for none."""
    # An agent waits, and the reservations of its turn end in a minute.
    timeout: Annotated[Duration, capped("30s")] = timedelta(seconds=2)
    """Time for its answer, 30 seconds at most."""
    may_deny: StrictBool = False
    """``true``: it may refuse a call."""


class SpotCheckRule(Record):
    """Ask a colleague about some of the calls that ran: was this right?

    Requester, editors and approvers of the call cannot answer. The first answer is
    recorded and changes nothing about the call. A drawn call of tier ``auto`` runs as
    one of tier ``notify``. The audit log has ``item.check_asked`` and ``item.checked``.
    """

    share: Share
    """Share of the calls that ran without an error."""
    of: Annotated[Reviewers, Field(min_length=1)]
    """Colleagues to ask."""
    per_day: Count = Field(default=20, ge=1, le=1_000)
    """Limit of the questions on one UTC day; a few more are possible."""


class SeededCall(Record):
    """A call with a deliberate mistake."""

    tool: ExactName
    """Tool of the call; its tier has to be ``approve`` or ``escalate``."""
    args: JsonObject
    """Arguments of the call."""
    defect: Reason
    """The mistake, in one line; it is shown after the click."""
    agent: ExactName
    """Agent that appears to ask."""
    says: str = ""
    """Text that the card shows as words of the agent."""


class SeededDefectRule(Record):
    """Show cards with a deliberate mistake, to measure whether reviewers notice it.

    The call of such a card can never run. The first click of a reviewer ends it:
    Approve counts as rubber-stamped, every other button as noticed. Inform your team
    before you switch this on. The audit log has ``seeded.shown``, ``seeded.answered``
    and ``seeded.expired``.
    """

    every: Duration
    """Average time between two such cards."""
    calls: Annotated[tuple[SeededCall, ...], Field(min_length=1, max_length=100)]
    """Calls to choose from; a card shows one."""


MOST_CALLS = 50
"""The most calls of a card: one decision writes no more at once."""


class BatchRule(Record):
    """Put calls of several turns and threads on one card.

    They share it if agent, task, tool, channel, requester and reviewers are the same
    and one click can approve them. Each call keeps a record, a hash and a deadline.
    """

    by: Literal["window", "task"] = "window"
    """``task`` collects only calls of one task, which the agent names."""
    within: Annotated[Duration, capped("10m")]
    """Time to wait for other calls: at most 10 minutes and a quarter of the time to
    decide."""
    up_to: Count = Field(default=MOST_CALLS, ge=2, le=MOST_CALLS)
    """Number of calls at which the card is posted at once."""

    @property
    def within_s(self) -> float:
        """Return the time that the first call waits for others, in seconds."""
        return self.within.total_seconds()


EVERY_TOOL = "*"
"""All tools, in the list of a window."""

DIRECT = "reviewers"
"""Name of the role of people who are listed by their Slack ids."""


def _version(value: object) -> object:
    # `type(...) is not`: 1 == True == 1.0 in Python, and Literal compares with ==.
    if type(value) is not int:
        raise ValueError(f"{shown(value)} is not known here; write version: 1.")
    return value


class Defaults(Record):
    """Values for tools and agents that do not set them."""

    tier: Tier = Tier.APPROVE
    """Tier of tools without one, unlisted tools included."""
    expires_in: Duration = timedelta(hours=1)
    """Time to decide, unless the tool or the tier sets it."""
    channel: ChannelRef = "#agent-approvals"
    """Where cards go."""
    needs: Needs = ()
    """Reviewers; without any, calls can only expire."""
    triage: TriageRule | None = None
    """Put calls to a model."""
    overridable: StrictBool = False
    """``true``: a run may ask for less than ``tier`` for unlisted tools."""
    link_hosts: Annotated[tuple[Host, ...], Distinct] | None = None
    """Hosts that a ``link`` may lead to; any host if unset. Cards show an agent's
    sources only with addresses on these hosts."""


class RoleRule(Record):
    """Reviewers, by their Slack ids.

    ``notify``, ``quiet`` and ``on_call`` control mentions and messages. Every holder of
    the role may decide at any time.
    """

    users: Annotated[tuple[UserId, ...], Distinct] = ()
    """Slack user ids."""
    usergroups: Annotated[tuple[UsergroupId, ...], Distinct] = ()
    """Slack user group ids."""
    notify: Notify | None = None
    """How its holders learn of a card: a mention if unset."""
    quiet: QuietRule | None = None
    """Hours without mentions and direct messages."""
    on_call: RoleName | None = None
    """Rotation whose current person is asked instead of all holders."""

    @model_validator(mode="after")
    def _somebody(self) -> RoleRule:
        if not self.users and not self.usergroups:
            raise ValueError("this role has no holders; give it users or usergroups.")
        return self


class WindowRule(Record):
    """A rolling total over the calls of some tools.

    It includes the call itself and all calls that wait. Spellings of one resource share
    a total: ``7`` and ``"07"``, upper and lower case. A call without a usable amount or
    resource is escalated.
    """

    tools: Annotated[tuple[str, ...], BeforeValidator(one_or_many), Field(min_length=1)]
    """Names of listed tools, or ``"*"`` for all tools."""
    by: CountedBy | None = None
    """Value that gets a separate total."""
    sum: AddedUp
    """Amount to add up, a number or decimal text; ``1`` counts each call."""
    counts: Literal["uses", "requests"] = "uses"
    """``uses``: a call that does not run leaves the total. ``requests``: it stays."""
    within: Duration
    """How long a call stays: a use after it ran, a request after its submission."""

    def covers(self, tool: str) -> bool:
        """Return whether calls of this tool go into the total."""
        return EVERY_TOOL in self.tools or tool in self.tools


class RaiseRule(Record):
    """A reason to ask for more: write ``to``, ``needs`` or both.

    A rule that cannot be checked raises the call to ``escalate``.
    """

    to: Tier | None = None
    """Lowest tier if the rule is true; ``approve`` with ``needs`` alone."""
    needs: RoleNames | None = None
    """One more person with one of these roles, or a requirement; no Slack ids."""
    when: Condition
    """Condition over the call; see ``docs/policy.md``."""
    because: Reason
    """Reason for people and the model."""

    @model_validator(mode="after")
    def _something(self) -> RaiseRule:
        if self.to is None and self.needs is None:
            raise ValueError("it asks for nothing; write 'to: escalate' or 'needs: …'.")
        if self.needs is not None and not self.tier.needs_people:
            raise ValueError(
                f"calls of tier {self.tier.value!r} get no decision, so it cannot have "
                "'needs'; write 'to: approve' or 'to: escalate', or leave 'to' out."
            )
        return self

    @property
    def tier(self) -> Tier:
        """Return the lowest tier that it allows."""
        return Tier.APPROVE if self.to is None else self.to


class Protection(Record):
    """Limits of what one agent may ask of people."""

    pending_per_agent: Count = Field(default=100, ge=1, le=10_000)
    """Calls that may wait at once."""
    requests_per_10m: Count = Field(default=200, ge=1, le=100_000)
    """Calls put to people in ten minutes."""
    flood_per_10m: Count = Field(default=100, ge=1, le=100_000)
    """Calls put to people in ten minutes. Further calls at ``approve`` share cards, 50
    of a tool on each, and notify nobody before the reminder."""
    same_rejected_within: Count = Field(default=3, ge=0, le=100)
    """Turns in which an unchanged rejected call is refused without a card."""
    pause_after_rejections: Count = Field(default=10, ge=1, le=1_000)
    """Rejections in a row that pause the agent."""
    ask_about_invalid_calls: StrictBool = False
    """``true``: people get calls that do not fit their tool, instead of the model."""
    unfreeze: Reviewers | None = None
    """People who may lift a freeze or a pause; everyone who may freeze if unset."""


class AttentionRule(Record):
    """How often people are notified of calls at ``approve``."""

    per_person: Count = Field(ge=1, le=10_000)
    """Most cards that notify one person or user group in the time ``within``. Further
    calls notify others of the role, or nobody before the reminder."""
    within: Annotated[Duration, capped("24h")] = timedelta(hours=1)
    """Time in which these cards are counted, 24 hours at most."""


class PrivacyRule(Record):
    """Hide personal data in texts of agents and tools before they are stored.

    Arguments and tool results are not changed; hide arguments with ``redact``.
    """

    hide: Annotated[tuple[PrivateData, ...], Distinct] = (PrivateData.CARD_NUMBERS,)
    """Kinds of data to hide; ``[]`` for none."""
    name_reviewers: bool = True
    """Whether agents get the names of the people who decided. With false, decisions,
    edits and findings come from "a reviewer", and a freeze names nobody; cards and the
    audit log have the names.
    """


class ToolRule(Record):
    """Rules for the calls of one tool.

    An entry under ``agents.NAME.tools`` can only ask for more: a lower tier is refused,
    and ``raise``, ``redact``, ``requires_reason`` and a requirement in ``needs`` are
    added to those of the tool.
    """

    tier: Tier | None = None
    """Lowest tier of its calls."""
    allow: Annotated[tuple[Verb, ...], Field(min_length=1)] | None = None
    """Decisions that reviewers may make; all if unset."""
    needs: Needs | None = None
    """Who decides; see ``docs/policy.md``."""
    description: Template | None = None
    """Header of the card."""
    act: Act | None = None
    """Word for the call, such as ``refund``: the button is then *Approve refund*. It
    replaces the tool's name in notifications and headers."""
    link: Link | None = None
    """Address that the card shows, unless a value in it is missing or hidden."""
    preview: Preview | None = None
    """Show the arguments as an e-mail, a SQL statement or a change of a text."""
    args_schema: JsonObject | None = None
    """JSON Schema 2020-12 of the arguments: a call that does not fit is escalated, an
    edit is refused. Cards show ``title`` and ``x-unit`` of an argument."""
    requires_reason: (
        Annotated[tuple[Literal[Verb.APPROVE, Verb.EDIT, Verb.REJECT], ...], Distinct]
        | None
    ) = None
    """Decisions that need a reason."""
    effect: Effect | None = None
    """Whether its calls can be undone; ``irreversible`` if unset."""
    audience: Audience | None = Field(
        default=None, description="200 characters of ASCII at most, without blanks"
    )
    """Service that runs the tool, for its receipts; the agent if unset."""
    idempotent: StrictBool | None = None
    """``true``: a call in doubt may run again under the same idempotency key."""
    redact: tuple[ArgsPath, ...] = ()
    """Arguments, also inside of lists, that cards and the HTTP API hide; the tool gets
    them unchanged."""
    totals: Totals = ()
    """Up to three numbers that a card of several calls adds up. Numbers far from the
    others are marked; see ``docs/reviewing.md``."""
    same_by: ArgsPaths = ()
    """Arguments that make two calls the same; all of them if unset."""
    expires_in: Duration | None = None
    """Time to decide."""
    authorization: Duration | None = None
    """How long an approved call may wait to run."""
    on_failure: Literal["tell", "ask"] | None = None
    """If a call fails: ``tell`` the agent (default), or ``ask`` people to retry it."""
    notify: Notify | None = None
    """How people learn of its cards; overrides role and tier."""
    channel: ChannelRef | None = None
    """Where its cards go."""
    overridable: StrictBool | None = None
    """``true``: a run may ask for less than ``tier``, never for less than ``raise``."""
    triage: TriageRule | None = None
    """Put its calls to a model."""
    allow_similar: SimilarRule | None = None
    """Allow standing approvals."""
    batch: BatchRule | None = None
    """Put calls of several requests on one card."""
    raise_: tuple[RaiseRule, ...] = Field(default=(), alias="raise")
    """Reasons to ask for more."""


class AgentRule(Record):
    """Exceptions for the calls of one agent."""

    needs: Needs | None = None
    """Who decides about tools without ``needs``, before ``defaults.needs``."""
    channel: ChannelRef | None = None
    """Where its cards go, before ``defaults.channel``."""
    tools: dict[ExactName, ToolRule] = Field(default_factory=dict)
    """Stricter rules for its tools."""


class Policy(Record):
    """The keys at the top of the file."""

    version: Annotated[Literal[1], BeforeValidator(_version)]
    """Version of the format."""
    defaults: Defaults = Defaults()
    """Values for tools and agents that do not set them."""
    roles: dict[RoleName, RoleRule] = Field(default_factory=dict)
    """Reviewers, by role."""
    on_call: dict[RoleName, Rotation] = Field(default_factory=dict)
    """Rotations of people who take turns."""
    holidays: tuple[Day, ...] = ()
    """Days that ``off_hours`` treats as outside working hours."""
    windows: dict[WindowName, WindowRule] = Field(default_factory=dict)
    """Rolling sums and counts for rules."""
    requirements: dict[RequirementName, RequirementRule] = Field(default_factory=dict)
    """Quorums for tiers, tools and rules."""
    tiers: TierRules = TierRules()
    """Number of people, times and reminders for each tier."""
    effects: dict[Effect, Tier] = Field(default_factory=dict[Effect, Tier])
    """Lowest tier of all tools with an effect."""
    tools: dict[ExactName, ToolRule] = Field(default_factory=dict)
    """Rules for each tool."""
    agents: dict[ExactName, AgentRule] = Field(default_factory=dict)
    """Exceptions for single agents."""
    protect: Protection = Protection()
    """Limits of what one agent may ask of people."""
    attention: AttentionRule | None = None
    """How often people are notified; no limit if unset."""
    privacy: PrivacyRule = PrivacyRule()
    """Personal data to hide in texts of agents and tools."""
    spot_checks: SpotCheckRule | None = None
    """Questions about calls that ran."""
    seeded_defects: SeededDefectRule | None = None
    """Cards with a deliberate mistake."""

    @cached_property
    def digest(self) -> str:
        """Return the hash that every approval of this policy pins.

        It covers the meaning and not the text: comments, the order of keys and defaults
        that are written out do not change it.
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
        """Return every value of ``notify`` in the file."""
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
        """Yield each entry of a tool with its place; those for one agent come last."""
        for tool, rule in self.tools.items():
            yield ("tools", tool), rule
        for agent, agent_rule in self.agents.items():
            for tool, rule in agent_rule.tools.items():
                yield ("agents", agent, "tools", tool), rule

    @property
    def tool_names(self) -> frozenset[str]:
        """Return every tool that the file lists."""
        return frozenset(str(place[-1]) for place, _ in self.tool_rules())

    def requirement_in(self, needs: tuple[str, ...]) -> RequirementRule | None:
        """Return the requirement that ``needs`` names; None if it lists people."""
        return self.requirements.get(needs[0]) if len(needs) == 1 else None

    def roles_named(self, names: tuple[str, ...]) -> tuple[Role, ...]:
        """Return the roles of names and Slack ids.

        An unknown name becomes a role without holders.
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
