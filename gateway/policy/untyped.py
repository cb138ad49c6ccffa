"""Find arguments that a policy reads without a declared type.

Without a type, a rule may get a value that it cannot compare, and a window one that it
cannot add up: the call is escalated. This is a warning, not a mistake: the agent may
declare the type with the call, which the policy file does not show.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from keyturn.gateway.documents import Document, Problem
from keyturn.gateway.policy.effective_rules import EffectiveRules
from keyturn.gateway.policy.expressions import compiled
from keyturn.gateway.policy.rules import Policy, ToolRule
from keyturn.gateway.policy.schemas import is_typed
from keyturn.gateway.validation_errors import Path, dotted


def untyped_arguments(policy: Policy, document: Document) -> list[Problem]:
    """Return a warning for each argument without a type in a window or a rule."""
    found: list[Problem] = []
    for base, own in policy.tool_rules():
        tool, agent = str(base[-1]), str(base[1]) if base[0] == "agents" else ""
        schema = EffectiveRules(policy, agent, tool).first.args_schema or {}
        for place, path in _reads(policy, base, own):
            if not is_typed(schema, path):
                text = f"{dotted(place)!r}: args.{'.'.join(path)} has no declared "
                text += f"type: declare it in args_schema of {tool!r}, or a value of "
                text += "another type escalates the call."
                found.append(document.problem(place, text))
    return list(dict.fromkeys(found))


def _reads(
    policy: Policy, base: Path, own: ToolRule
) -> Iterator[tuple[Path, Sequence[str]]]:
    """Yield each path that is read for calls of an entry, with its place."""
    tool = str(base[-1])
    for name, window in policy.windows.items():
        if window.sum is not None and window.covers(tool):
            yield ("windows", name, "sum"), window.sum.split(".")[1:]
    # The rules of the tool also apply to the calls of an agent with an entry.
    entries = {("tools", tool): policy.tools.get(tool, ToolRule()), base: own}
    for entry, rule in entries.items():
        for index, raising in enumerate(rule.raise_):
            for path in compiled(raising.when).paths:
                yield (*entry, "raise", index, "when"), path
