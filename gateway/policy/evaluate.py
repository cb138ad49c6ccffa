"""Evaluate a policy for one call, and hash its effect: pure, and failing closed.

A later call with the same effect repeats this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, cast
from urllib.parse import quote

from pydantic import Field, JsonValue

from keyturn.gateway.approvals.evidence import HIDDEN, as_text, redacted, shortened
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.expressions import (
    SAME,
    Expression,
    ask,
    compiled,
    scope,
    shown_at,
    value_at,
)
from keyturn.gateway.policy.fields import MAX_LINK, fill, placeholders
from keyturn.gateway.policy.formats import formatted
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.rules import Policy, RaiseRule, TriageRule
from keyturn.gateway.policy.schemas import TAKES_LONG, unusable
from keyturn.gateway.policy.windows import MICRO, window_key
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.edits import TOO_LONG, argument_errors
from keyturn.gateway.protocol.http_api import DEFINITIONS_TOOL
from keyturn.gateway.protocol.records import Record, Tier, Verb, join
from keyturn.gateway.protocol.strict_json import JsonObject, accept_object

MAX_VALUE = 200
"""Longest value in the reasons; the arguments on the card have all of it."""


class Facts(Record):
    """The state at the moment a call is evaluated.

    Attributes:
        now_ms: Unix milliseconds of the store's clock.
        windows: name of a window to its total in millionths, this call included.
        requester: Slack id of the requester; empty if unknown.
        requests_10m: calls of this agent that went to people in the last ten minutes,
            this one included.
        failures_1h: executions of this agent that failed in the last hour.
        rejections_in_row: rejected calls of this agent since its last approved one.
        same_done_24h: earlier calls with the same effect in the last 24 hours that ran
            or may still run; `MOST_KEPT` at most.
        same_rejected_24h: earlier calls with the same effect that people rejected.
        problems: why a total is unknown, as fixed text; each problem raises the call.
    """

    now_ms: int
    windows: dict[str, int] = Field(default_factory=dict)
    requester: str = ""
    requests_10m: int = Field(default=0, ge=0)
    failures_1h: int = Field(default=0, ge=0)
    rejections_in_row: int = Field(default=0, ge=0)
    same_done_24h: int = Field(default=0, ge=0)
    same_rejected_24h: int = Field(default=0, ge=0)
    problems: tuple[str, ...] = ()


class Raise(Record):
    """A request from outside the policy for a higher tier; it can only raise.

    ``reason`` is a sentence for the card, without text of the call.
    """

    to: Tier
    reason: str


class FiredRule(Record):
    """A rule that asks for more, with the values it read.

    Attributes:
        to: the tier that it asks for; ``escalate`` if it could not be checked.
        because: its reason in the policy.
        when: its expression.
        needs: the people or the requirement that it adds; empty for none.
        values: (name, value) for each name in the expression; values are untrusted
            text, redacted as on cards.
        problem: why it could not be checked; empty if it is true.
    """

    to: Tier
    because: str
    when: str
    needs: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def reason(self) -> str:
        """Return the sentence for the card; it contains no text of the agent."""
        because, needs = self.because.rstrip("."), " or ".join(self.needs)
        if not self.problem and not needs:
            return f"Raised to {self.to}: {because}."
        if not self.problem and self.to is Tier.APPROVE:
            return f"Needs {needs}: {because}."
        if not self.problem:
            return f"Raised to {self.to}, and needs {needs}: {because}."
        return (
            f"Raised to {self.to}: the rule {because!r} could not be checked, "
            f"because {self.problem}."
        )


def fired(
    policy: Policy,
    rules: Iterable[RaiseRule],
    call: Mapping[str, JsonValue],
    args: JsonObject,
    facts: Facts | None,
    *,
    redact: tuple[str, ...] = (),
) -> tuple[FiredRule, ...]:
    """Return the rules that are true, and those that could not be checked.

    Args:
        policy: for its holidays.
        rules: in the order of the file.
        call: the members of ``call`` in an expression.
        args: the arguments that would run.
        facts: if None, every rule that needs them is unchecked.
        redact: dotted paths whose values are hidden.
    """
    listed = tuple(rules)
    if not listed:
        return ()
    values = {"call": dict(call), **_values(facts)}
    not_strict = "" if is_strict(args) else "the call is not strict JSON"
    # Empty, so that nothing is evaluated on unreadable arguments.
    readable = {} if not_strict else args
    where = scope(readable, values, holidays=policy.holidays)
    shown = redacted(readable, redact)
    found: list[FiredRule] = []
    for rule in listed:
        expression = compiled(rule.when)
        problem = not_strict or _unknown(expression, facts)
        answer = ask(expression, where) if not problem else None
        # Only a clear "false" is skipped.
        if answer is not None and not answer.holds and not answer.problem:
            continue
        problem = problem or (answer.problem if answer else "")
        found.append(
            FiredRule(
                # Not the rule's tier: its result is unknown.
                to=Tier.ESCALATE if problem else rule.tier,
                needs=rule.needs or (),
                because=rule.because,
                when=rule.when,
                values=tuple(_seen(expression, shown, values)),
                problem=problem,
            )
        )
    return tuple(found)


def is_strict(args: JsonObject) -> bool:
    """Return whether arguments are strict JSON; others are evaluated but never run."""
    try:
        accept_object(args)
    except BadJson:
        return False
    return True


def _values(facts: Facts | None) -> dict[str, object]:
    if facts is None:
        return {}
    try:
        now = {"now": utc(facts.now_ms)}
    except ValueError:
        now = {}
    return {
        **now,
        "windows": {name: total / MICRO for name, total in facts.windows.items()},
        "requester": facts.requester,
        "recent": {
            "requests_10m": facts.requests_10m,
            "failures_1h": facts.failures_1h,
            "rejections_in_row": facts.rejections_in_row,
            "same_done_24h": facts.same_done_24h,
            "same_rejected_24h": facts.same_rejected_24h,
        },
    }


def _unknown(expression: Expression, facts: Facts | None) -> str:
    if facts is None:
        needed = sorted(expression.reads - {"args", "call"})
        names = " and ".join(needed)
        return f"{names} cannot be known here" if needed else ""
    for window in expression.windows:
        if window not in facts.windows:
            return f"the total {window!r} is not known"
    return ""


def _seen(
    expression: Expression, args: JsonObject, values: Mapping[str, object]
) -> Iterable[tuple[str, str]]:
    for path in expression.paths:
        yield f"args.{'.'.join(path)}", text_at(args, path)
    for root, name in expression.members:
        tree = cast("Mapping[str, object]", values.get(root, {}))
        if name in tree:
            yield f"{root}.{name}", _plain(tree[name])
    for name in ("now", "requester"):
        if name in expression.reads and name in values:
            yield name, _plain(values[name])


def _plain(value: object) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def text_at(args: JsonObject, path: tuple[str, ...]) -> str:
    """Return a value of redacted arguments as text, or a note that it is missing."""
    try:
        return shortened(as_text(shown_at(args, path)), MAX_VALUE)
    except LookupError:
        return "(missing)"


_LONG = (
    "The call takes too long to check against the {}'s schema, so it cannot be edited."
)
_UNUSABLE = "The agent's schema for this tool is unusable: no edits here."

EFFECT_TAG = "keyturn/v1/effect"
_EFFECT_DIGITS = 32
"""Hex digits of an effect; keys in the store are hashes of this length, too."""

_MOMENT = frozenset({"now", "recent"})

# Folding reads each character, and every auto-approved call pays for it. A longer text
# is compared unchanged: two spellings of a long text are unlikely.
_MOST_FOLDED = 4_096


class Evaluation(PolicyDecision):
    """The decision of a policy about a call, with its reasons.

    Attributes:
        overridable: a run of the agent may ask for less than is listed.
        fired: the rules that raised the tier, with the values they read: untrusted.
        triage: the triage settings for this call; None without triage.
    """

    overridable: bool = False
    fired: tuple[FiredRule, ...] = ()
    triage: TriageRule | None = None


def listed_tier(policy: Policy, *, agent: str, tool: str) -> Tier:
    """Return the listed tier of a tool, without looking at a call.

    A call may need more. It needs less only if the tool is overridable and a run of the
    agent asks for it.
    """
    tier, _ = EffectiveRules(policy, agent, tool).tier()
    return tier


def never_asks(policy: Policy, *, agent: str, tool: str) -> bool:
    """Return True if no call of a tool needs a person, by its tier and its raises."""
    rules = EffectiveRules(policy, agent, tool)
    return rules.tier()[0].is_auto_approved and not rules.raising()


def may_raise(policy: Policy, agent: str, tool: str) -> bool:
    """Return True if the arguments of a call can raise its tier."""
    rules = EffectiveRules(policy, agent, tool)
    return rules.tier()[0] is not Tier.DENY and bool(rules.raising())


def is_idempotent(policy: Policy, *, agent: str, tool: str) -> bool:
    """Return True if an execution in doubt may be repeated under the same key."""
    return bool(EffectiveRules(policy, agent, tool).first.idempotent)


def evaluate(
    policy: Policy,
    *,
    agent: str,
    tool: str,
    args: JsonObject,
    declared_schema: JsonObject | None = None,
    facts: Facts | None = None,
    requested_tier: Tier | None = None,
    raises: Sequence[Raise] = (),
) -> Evaluation:
    """Evaluate one call.

    Never raises. An unlisted tool gets the default tier, and an unknown or empty
    requirement cannot be met. A rule that cannot be checked asks for ``escalate``. An
    unusable schema of the agent removes the decision ``edit``.

    Args:
        policy: the loaded policy.
        agent: name of the agent that asks.
        tool: name of the tool in the agent.
        args: the arguments that would run.
        declared_schema: JSON Schema of the arguments, declared by the agent; a schema
            in the policy replaces it.
        facts: the state at this moment; a rule that reads it asks for ``escalate`` if
            it is missing.
        requested_tier: the tier that this run of the agent asks for. It may always be
            higher. It may be lower only for a tool that is ``overridable``, and never
            lower than a rule of ``raise`` demands.
        raises: requests from outside the policy for a higher tier; they can only raise.
    """
    rules = EffectiveRules(policy, agent, tool, requested_tier)
    tier, tier_reasons = rules.tier()
    redact = rules.redact()
    raised = fired(
        policy,
        rules.raising(),
        {"agent": agent, "tool": tool, "effect": rules.effect},
        args,
        facts,
        redact=redact,
    )
    asks: tuple[FiredRule | Raise, ...] = (*raised, *raises)
    # The only place that combines tiers; `join` cannot lower one.
    problems = facts.problems if facts else ()
    tier = join(tier, *(one.to for one in asks), *(Tier.ESCALATE for _ in problems))
    # Only people edit with the agent's schema, so `auto` skips the check.
    checked = _checked(rules, args, None if tier is Tier.AUTO else declared_schema)
    if checked.problem:
        problems, tier = (*problems, checked.problem), join(tier, Tier.ESCALATE)
    doubts = [f"Raised to escalate: {problem}" for problem in problems]
    waiting = rules.waiting(tier)
    # After the raise: time, people and channel depend on the final tier.
    requirement = rules.requirement(tier, [one.needs for one in raised if one.needs])
    escalate_to, escalate_roles = rules.escalation(tier, requirement)
    reasons = (*tier_reasons, *(one.reason for one in asks), *doubts)
    return Evaluation(
        tier=tier,
        reasons=(*reasons, *filter(None, [checked.unusable])),
        allow=_allowed(rules.allow(), is_editable=checked.is_editable),
        requirement=requirement,
        policy_digest=policy.digest,
        ttl_ms=rules.ttl_ms(tier),
        authorization_ms=rules.authorization_ms(tier),
        channel=rules.channel(tier),
        description=_described(rules, tool, args, redact),
        act=rules.first.act or "",
        link=_linked(rules.first.link or "", redacted(args, redact)),
        preview=rules.first.preview,
        args_schema=checked.schema,
        has_policy_schema=rules.first.args_schema is not None,
        redact=redact,
        totals=rules.first.totals,
        formats=_formats(rules.first.description or "", rules.first.totals),
        requires_reason=rules.requires_reason(),
        effect_class=rules.effect_class,
        idempotent=bool(rules.first.idempotent),
        asks_on_failure=rules.first.on_failure == "ask",
        can_cover=rules.first.allow_similar is not None and tier is Tier.APPROVE,
        overridable=rules.overridable,
        fired=raised,
        remind_at_ms=rules.share_ms(tier, waiting.remind_at),
        escalate_at_ms=rules.share_ms(
            tier, waiting.escalate_at if escalate_to else None
        ),
        escalate_to=escalate_to,
        escalate_roles=escalate_roles,
        ask_again_ms=rules.ask_again_ms(tier),
        triage=rules.triage(tier),
    )


class _Checked(NamedTuple):
    """Result of checking arguments against a schema.

    Attributes:
        schema: the schema for edits.
        problem: why the call is escalated; "" if it is not.
        unusable: why the schema cannot be used for edits; "" if it can.
        is_editable: whether people may edit the call.
    """

    schema: JsonObject | None = None
    problem: str = ""
    unusable: str = ""
    is_editable: bool = True


def _checked(
    rules: EffectiveRules, args: JsonObject, declared: JsonObject | None
) -> _Checked:
    own = rules.first.args_schema
    if own is not None:
        # Strictness first: a value that is not JSON may fail in the schema check.
        errors = argument_errors(own, args) if is_strict(args) else {"": ""}
        if TOO_LONG in errors.values():
            return _Checked(own, _LONG.format("policy"), is_editable=False)
        misfit = "The arguments do not fit the policy's schema."
        return _Checked(own, misfit if errors else "")
    if declared is None:
        return _Checked()
    # The policy's schema was checked at load; the agent's is checked here.
    problem = unusable(declared, args)
    if problem is None:
        return _Checked(declared)
    if problem == TAKES_LONG:
        return _Checked(problem=_LONG.format("agent"), is_editable=False)
    return _Checked(unusable=_UNUSABLE, is_editable=False)


def _allowed(verbs: tuple[Verb, ...], *, is_editable: bool) -> tuple[Verb, ...]:
    left = (verb for verb in verbs if is_editable or verb is not Verb.EDIT)
    # Without any decision, the card would have no button.
    return tuple(left) or (Verb.REJECT,)


def _described(
    rules: EffectiveRules, tool: str, args: JsonObject, redact: tuple[str, ...]
) -> str:
    template = rules.first.description or ""
    if tool == DEFINITIONS_TOOL and not template:
        return _about_definitions(redacted(args, redact))
    return _describe(template, args, redact)


def _about_definitions(args: JsonObject) -> str:
    """Say which tools of an MCP server people are asked to approve."""
    tools, replaces = args.get("tools"), args.get("replaces")
    names = [*tools] if isinstance(tools, dict) else []
    changed = [*replaces] if isinstance(replaces, dict) else []
    server = f"of the MCP server {text_at(args, ('server',))}"
    if len(names) != 1:
        count = f"{len(names)} " if names else ""
        more = f" ({len(changed)} changed)" if changed else ""
        return f"Approve {count}tools {server}{more}"
    return f"Approve a {'changed' if changed else 'new'} tool {server}: {names[0]}"


def _describe(template: str, args: JsonObject, redact: tuple[str, ...]) -> str:
    shown = redacted(args, redact)

    def value_of(found: re.Match[str]) -> str:
        path = tuple(found["path"].split(".")[1:])
        text = text_at(shown, path)
        try:
            value = shown_at(shown, path)
        except LookupError:  # `text` already shows this
            return text
        return (found["format"] and formatted(value, found["format"])) or text

    return fill(template, value_of)


def _formats(template: str, totals: Iterable[str]) -> tuple[str, ...]:
    """Return the paths with a format, each with its first format."""
    named = [
        (match["path"], match["format"])
        for match in placeholders(template)
        if match["format"] is not None
    ]
    named += [(path, form) for path, _, form in (one.partition("|") for one in totals)]
    found: dict[str, str] = {}
    for path, form in named:
        if form:
            found.setdefault(path, form)
    return tuple(f"{path}|{form}" for path, form in found.items())


def _linked(template: str, args: JsonObject) -> str:
    """Fill a link; "" if a value is missing, hidden, not plain, or too long."""
    values: dict[str, str] = {}
    for match in placeholders(template):
        path = match["path"]
        try:
            value = value_at(args, tuple(path.split(".")[1:]))
        except LookupError:
            return ""
        is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
        # Browsers resolve "." and ".." as path segments.
        if not is_plain or value == HIDDEN or not as_text(value).strip("."):
            return ""
        # safe="": a "/" or "?" in an argument would change the link's path or query.
        values[path] = quote(as_text(value), safe="", errors="replace")
    link = fill(template, lambda found: values[found["path"]])
    return link if len(link) <= MAX_LINK else ""


# Evaluate a policy for a question: channel, time and the people who may answer.
#
# Questions are never gated: tiers, rules, windows and triage do not apply to them.

_OTHERS_AT = 50
"""When the reviewers are asked, in percent of the time, unless the policy sets it."""


def evaluate_question(
    policy: Policy, *, agent: str, tool: str, has_requester: bool
) -> Evaluation:
    """Return how a question is asked, from the entry of its tool, like an approval.

    The requester may always answer, and so may any one person of the reviewing roles.
    If there is a requester, the roles are notified later.
    """
    rules, tier = EffectiveRules(policy, agent, tool), Tier.APPROVE
    waiting = rules.waiting(tier)
    requirement = rules.requirement(tier)
    called_at = waiting.escalate_at
    called, roles = rules.escalation(tier, requirement)
    if has_requester:
        called_at, roles = called_at or _OTHERS_AT, requirement.roles
    return Evaluation(
        tier=tier,
        # One answer is enough, even if a call would need several votes.
        requirement=Requirement(approvals=1, of=requirement.roles),
        policy_digest=policy.digest,
        allow=(Verb.RESPOND, Verb.REJECT),
        is_question=True,
        ttl_ms=rules.ttl_ms(tier),
        channel=rules.channel(tier),
        remind_at_ms=rules.share_ms(tier, waiting.remind_at),
        escalate_at_ms=rules.share_ms(tier, called_at if roles or called else None),
        escalate_to=called,
        escalate_roles=roles,
    )


def effect_of(policy: Policy, *, agent: str, tool: str, args: JsonObject) -> str:
    """Return a hash that is the same for calls of one tool with the same effect.

    Two calls have the same effect if the arguments in ``same_by`` are equal, in any
    spelling that a window would add up together. All arguments are compared if the
    policy names none or one of them is missing. Never raises; returns "" for arguments
    that are not strict JSON.

    Args:
        policy: the loaded policy.
        agent: name of the agent that asks.
        tool: name of the tool.
        args: the arguments that would run.
    """
    same_by = EffectiveRules(policy, agent, tool).first.same_by
    try:
        compared = _named(same_by, args) or _all(args)
        body = digest.canonical([tool, compared])
    except BadJson:
        return ""
    return digest.tagged_hash(EFFECT_TAG, body).removeprefix("sha256:")[:_EFFECT_DIGITS]


def asks_for_precedents(policy: Policy) -> bool:
    """Return whether any rule of a policy reads precedents."""
    return any(_reads(rule.raise_) for _, rule in policy.tool_rules())


def reads_precedents(policy: Policy, agent: str, tool: str) -> bool:
    """Return whether a rule of this tool reads precedents."""
    return _reads(EffectiveRules(policy, agent, tool).raising())


def _reads(rules: Iterable[RaiseRule]) -> bool:
    read = {member for rule in rules for member in compiled(rule.when).members}
    return any(("recent", name) in read for name in SAME)


def _named(paths: Sequence[str], args: JsonObject) -> list[JsonValue]:
    """Return the values of the named arguments; empty if one has no usable value."""
    found: list[JsonValue] = []
    for source in paths:
        try:
            value = value_at(args, tuple(source.split(".")[1:]))
            found.append([source, window_key(value)])
        except (LookupError, ValueError):
            return []
    return found


def _all(args: JsonObject) -> JsonValue:
    written = digest.canonical(args).decode()
    if len(written) > _MOST_FOLDED:
        return written
    try:
        return window_key(args)
    except ValueError:  # no arguments at all
        return written
