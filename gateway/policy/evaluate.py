"""Judge one call by a policy: pure, total, and closed where the policy is silent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pydantic import JsonValue

from gateway.approvals.evidence import HIDDEN, as_text, redacted
from gateway.approvals.record import Demand, Record, Verb
from gateway.approvals.strict_json import JsonObject
from gateway.approvals.tiers import Tier, join
from gateway.policy.fields import fill, placeholders
from gateway.policy.rules import AgentRule, Policy, ToolRule
from gateway.policy.schemas import unusable

MAX_VALUE = 200
"""Longest value in a description; the whole value stands among the arguments."""

T = TypeVar("T")
_SILENT = ToolRule()
_SILENT_AGENT = AgentRule()


class Ruling(Record):
    """What a call needs, frozen into its item.

    Attributes:
        tier: how much it needs.
        reasons: why, as sentences of ours without any text of the agent's.
        allow: what a reviewer may say.
        demand: who must agree; meaningful when people are needed, and then its roles
            may hold nobody, so that nobody can approve.
        ttl_ms: how long people may take.
        channel: where the card goes, ``#name`` or an id.
        description: the filled template; holds values of the agent's: untrusted.
        args_schema: what an edit is checked against; None: only strict JSON.
        redact: dotted paths that cards hide.
        requires_reason: a rejection needs a reason.
        idempotent: an execution in doubt may be repeated under the same key.
    """

    tier: Tier
    reasons: tuple[str, ...]
    allow: tuple[Verb, ...]
    demand: Demand
    ttl_ms: int
    channel: str
    description: str = ""
    args_schema: JsonObject | None = None
    redact: tuple[str, ...] = ()
    requires_reason: bool = False
    idempotent: bool = False


def evaluate(
    policy: Policy,
    *,
    agent: str,
    tool: str,
    args: JsonObject,
    declared_schema: JsonObject | None = None,
) -> Ruling:
    """Judge one call.

    Never raises: what is unlisted gets the default tier, what is unknown or empty
    leaves nobody to approve, and a schema of the agent's that cannot be used takes
    the decision ``edit`` away.

    Args:
        policy: the loaded policy.
        agent: name of the agent that asks.
        tool: name of the tool as the agent knows it.
        args: the arguments that would run.
        declared_schema: JSON Schema of the arguments as the agent declares it; the
            policy's own wins.
    """
    rules = _Rules(policy, agent, tool)
    schema, schema_reasons = _schema(rules, args, declared_schema)
    tier, tier_reasons = rules.tier()
    redact = rules.redact()
    return Ruling(
        tier=tier,
        reasons=(*tier_reasons, *schema_reasons),
        allow=_allowed(rules.first.allow, is_editable=not schema_reasons),
        demand=rules.demand(tier),
        ttl_ms=rules.ttl_ms(),
        channel=rules.channel(),
        description=_describe(rules.first.description or "", args, redact),
        args_schema=schema,
        redact=redact,
        requires_reason=bool(rules.first.requires_reason),
        idempotent=bool(rules.first.idempotent),
    )


class _Rules:
    """The rules for one tool of one agent, the narrower before the wider."""

    def __init__(self, policy: Policy, agent: str, tool: str) -> None:
        self._policy = policy
        self._agent = policy.agents.get(agent, _SILENT_AGENT)
        self._override = self._agent.tools.get(tool, _SILENT)
        self._listed = policy.tools.get(tool, _SILENT)
        set_here = self._override.model_dump(exclude_none=True, exclude_unset=True)
        self.first = self._listed.model_copy(
            update={name: getattr(self._override, name) for name in set_here}
        )

    def tier(self) -> tuple[Tier, tuple[str, ...]]:
        listed, override = self._listed.tier, self._override.tier
        default = self._policy.defaults.tier
        if listed is None and override is None:
            reason = f"The policy sets no tier for this tool; the default is {default}."
            return default, (reason,)
        reasons: list[str] = []
        if listed is not None:
            reasons.append(f"The policy lists this tool as {listed}.")
        if override is not None:
            reasons.append(f"The policy lists it as {override} for this agent.")
        given = [tier for tier in (listed, override) if tier is not None]
        return join(*given), tuple(reasons)

    def demand(self, tier: Tier) -> Demand:
        names = _first(
            self.first.reviewers,
            self._agent.reviewers,
            otherwise=self._policy.defaults.reviewers,
        )
        if tier is not Tier.ESCALATE:
            return Demand(approvals=1, of=self._policy.roles_named(names))
        escalate = self._policy.tiers.escalate
        return Demand(
            approvals=escalate.approvals,
            of=self._policy.roles_named(_first(escalate.of, otherwise=names)),
            at_least=dict(escalate.at_least),
        )

    def ttl_ms(self) -> int:
        ttl = _first(self.first.expires_in, otherwise=self._policy.defaults.expires_in)
        return int(ttl.total_seconds() * 1000)

    def channel(self) -> str:
        default = self._policy.defaults.channel
        return _first(self.first.channel, self._agent.channel, otherwise=default)

    def redact(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._listed.redact, *self._override.redact)))


def _first(*choices: T | None, otherwise: T) -> T:
    return next((choice for choice in choices if choice is not None), otherwise)


def _schema(
    rules: _Rules, args: JsonObject, declared: JsonObject | None
) -> tuple[JsonObject | None, tuple[str, ...]]:
    if rules.first.args_schema is not None or declared is None:
        return rules.first.args_schema, ()
    if unusable(declared, args) is None:
        return declared, ()
    return None, ("The agent's schema for this tool is unusable: no edits here.",)


def _allowed(allow: tuple[Verb, ...] | None, *, is_editable: bool) -> tuple[Verb, ...]:
    verbs = tuple(Verb) if allow is None else tuple(dict.fromkeys(allow))
    if is_editable:
        return verbs
    return tuple(verb for verb in verbs if verb is not Verb.EDIT) or (Verb.REJECT,)


def _describe(template: str, args: JsonObject, redact: tuple[str, ...]) -> str:
    shown = redacted(args, redact)
    values = {
        match["path"]: _text_at(shown, match["path"])
        for match in placeholders(template)
    }
    return fill(template, values)


def _text_at(args: JsonObject, path: str) -> str:
    node: JsonValue = args
    for token in path.split(".")[1:]:
        if node == HIDDEN:
            return HIDDEN
        members = _members(node)
        if token not in members:
            return "(missing)"
        node = members[token]
    text = as_text(node)
    cut = len(text) - MAX_VALUE
    return text if cut <= 0 else f"{text[:MAX_VALUE]}… ({cut} more characters)"


def _members(node: JsonValue) -> Mapping[str, JsonValue]:
    match node:
        case dict():
            return node
        case list():
            return {str(index): element for index, element in enumerate(node)}
        case _:
            return {}
