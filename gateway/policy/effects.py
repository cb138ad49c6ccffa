"""Hash the effect of a call, to recognise a later call that repeats it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from twokey.gateway.errors import BadJson
from twokey.gateway.policy.effective_rules import EffectiveRules
from twokey.gateway.policy.expressions import compiled, value_at
from twokey.gateway.policy.name_check import SAME
from twokey.gateway.policy.remembered import Remembered
from twokey.gateway.policy.rules import Policy, RaiseRule
from twokey.gateway.policy.window_keys import window_key
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.strict_json import JsonObject

EFFECT_TAG = "twokey/v1/effect"

_MOMENT = frozenset({"now", "recent"})

# Folding looks at each character. A longer text is compared as it is: nobody spells a
# whole letter in two ways by chance, and every auto-approved call pays for this.
_MOST_FOLDED = 4_096


def effect_of(
    policy: Policy,
    *,
    agent: str,
    tool: str,
    args: JsonObject,
    declared_schema: JsonObject | None = None,
) -> str:
    """Return a hash that is the same for calls of one tool with the same effect.

    These are calls whose arguments named by ``same_by`` are the same, in any spelling
    that a window counts together; all arguments where the policy names none, or where
    one of them is missing. Never raises; "" for arguments that are not strict JSON.

    Args:
        policy: the loaded policy.
        agent: name of the agent that asks.
        tool: name of the tool.
        args: the arguments that would run.
        declared_schema: JSON Schema of the arguments as the agent declares it; the
            policy's own wins.
    """
    same_by, own_schema = _compared.of(policy, agent, tool)
    schema = own_schema or declared_schema
    try:
        compared = _named(same_by, args, schema) or _all(args, schema)
        body = digest.canonical([tool, compared])
    except BadJson:
        return ""
    return digest.tagged_hash(EFFECT_TAG, body)


def asks_for_precedents(policy: Policy) -> bool:
    """Return whether any rule of a policy asks for precedents."""
    return any(_reads(rule.raise_) for _, rule in policy.tool_rules())


def reads_precedents(policy: Policy, agent: str, tool: str) -> bool:
    """Return whether a rule of this tool asks for precedents."""
    return _is_read.of(policy, agent, tool)


def reads_moment(policy: Policy, agent: str, tool: str) -> bool:
    """Return whether a rule of this tool asks what time it is, or what just happened.

    What other rules say of a call stays true as long as its windows hold the same.
    """
    rules = EffectiveRules(policy, agent, tool).raising()
    return not all(compiled(rule.when).reads.isdisjoint(_MOMENT) for rule in rules)


def _reads(rules: Iterable[RaiseRule]) -> bool:
    read = {member for rule in rules for member in compiled(rule.when).members}
    return any(("recent", name) in read for name in SAME)


def _named(
    paths: Sequence[str], args: JsonObject, schema: JsonObject | None
) -> list[JsonValue]:
    """Return what the policy's arguments name; empty when one names nothing."""
    found: list[JsonValue] = []
    for source in paths:
        path = source.removeprefix("args.").split(".")
        try:
            value = value_at(args, tuple(path))
            found.append([source, window_key(value, schema, path)])
        except (LookupError, ValueError):
            return []
    return found


def _all(args: JsonObject, schema: JsonObject | None) -> JsonValue:
    written = digest.canonical(args).decode()
    if len(written) > _MOST_FOLDED:
        return written
    try:
        return window_key(args, schema)
    except ValueError:  # no arguments at all
        return written


def _what_is_compared(
    policy: Policy, agent: str, tool: str
) -> tuple[tuple[str, ...], JsonObject | None]:
    rule = EffectiveRules(policy, agent, tool).first
    return rule.same_by, rule.args_schema


def _reads_precedents(policy: Policy, agent: str, tool: str) -> bool:
    return _reads(EffectiveRules(policy, agent, tool).raising())


_compared = Remembered(_what_is_compared)
_is_read = Remembered(_reads_precedents)
