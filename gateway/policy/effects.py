"""Hash the effect of a call, to recognise a later call that repeats it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import JsonValue

from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.expressions import compiled, value_at
from keyturn.gateway.policy.name_check import SAME
from keyturn.gateway.policy.rules import Policy, RaiseRule
from keyturn.gateway.policy.windows import window_key
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.strict_json import JsonObject

EFFECT_TAG = "keyturn/v1/effect"

_MOMENT = frozenset({"now", "recent"})

# Folding reads each character, and every auto-approved call pays for it. A longer text
# is compared unchanged: two spellings of a long text are unlikely.
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

    Two calls have the same effect if the arguments in ``same_by`` are equal, in any
    spelling that a window would add up together. All arguments are compared if the
    policy names none or one of them is missing. Never raises; returns "" for arguments
    that are not strict JSON.

    Args:
        policy: the loaded policy.
        agent: name of the agent that asks.
        tool: name of the tool.
        args: the arguments that would run.
        declared_schema: JSON Schema of the arguments as the agent declares it; the
            policy's own wins.
    """
    rule = EffectiveRules(policy, agent, tool).first
    schema = rule.args_schema or declared_schema
    try:
        compared = _named(rule.same_by, args, schema) or _all(args, schema)
        body = digest.canonical([tool, compared])
    except BadJson:
        return ""
    return digest.tagged_hash(EFFECT_TAG, body)


def asks_for_precedents(policy: Policy) -> bool:
    """Return whether any rule of a policy reads precedents."""
    return any(_reads(rule.raise_) for _, rule in policy.tool_rules())


def reads_precedents(policy: Policy, agent: str, tool: str) -> bool:
    """Return whether a rule of this tool reads precedents."""
    return _reads(EffectiveRules(policy, agent, tool).raising())


def _reads(rules: Iterable[RaiseRule]) -> bool:
    read = {member for rule in rules for member in compiled(rule.when).members}
    return any(("recent", name) in read for name in SAME)


def _named(
    paths: Sequence[str], args: JsonObject, schema: JsonObject | None
) -> list[JsonValue]:
    """Return the values of the named arguments; empty if one has no usable value."""
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
