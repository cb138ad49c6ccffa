"""Evaluate a policy for one call, and hash its effect: pure, and failing closed.

A later call with the same effect repeats this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote

from pydantic import JsonValue

from keyturn.gateway.approvals.evidence import HIDDEN, as_text, redacted
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.requirement import Requirement
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.expressions import compiled, shown_at, value_at
from keyturn.gateway.policy.fields import MAX_LINK, fill, placeholders
from keyturn.gateway.policy.formats import formatted
from keyturn.gateway.policy.name_check import SAME
from keyturn.gateway.policy.raise_rules import (
    Facts,
    FiredRule,
    Raise,
    fired,
    is_strict,
    text_at,
)
from keyturn.gateway.policy.rules import Policy, RaiseRule, TriageRule
from keyturn.gateway.policy.schemas import TAKES_LONG, unusable
from keyturn.gateway.policy.windows import window_key
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.edits import TOO_LONG, argument_errors
from keyturn.gateway.protocol.http_api import DEFINITIONS_TOOL
from keyturn.gateway.protocol.records import Tier, Verb, join
from keyturn.gateway.protocol.strict_json import JsonObject

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
