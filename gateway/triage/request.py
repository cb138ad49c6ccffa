"""Build the redacted, size-limited input of triage for one call."""

from __future__ import annotations

from keyturn.gateway.approvals.evidence import Argument, arguments, shortened
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.protocol.records import Effect, Record, Tier
from keyturn.gateway.protocol.strict_json import JsonObject

MAX_ARGUMENTS = 30
"""Most arguments in a request, in the order of their names."""

MAX_VALUE = 500
"""Longest text of one value, in characters."""

MAX_NAME = 100
"""Longest name of an agent, a tool or an argument."""

_HOUR_MS = 3_600_000


class TriageRequest(Record):
    """The input of triage about a call: no more than a reviewer's card shows.

    Attributes:
        agent: name of the agent that asks.
        tool: name of the tool; written by a model, so untrusted.
        tier: the tier without triage.
        reasons: the reasons for the tier, as fixed text.
        effect: the effect of the tool.
        description: the policy's line for the card; contains untrusted values.
        arguments: the arguments, redacted by the policy; untrusted. A value is as it
            would run, or text if it is shortened.
        left_out: number of arguments above the limit.
        is_cut: a part is omitted or shortened; a shortened text shows by how much.
        hour_utc: hour of the day by the store's clock, 0 to 23.
    """

    agent: str
    tool: str
    tier: Tier
    reasons: tuple[str, ...] = ()
    effect: Effect = Effect.IRREVERSIBLE
    description: str = ""
    arguments: tuple[Argument, ...] = ()
    left_out: int = 0
    is_cut: bool = False
    hour_utc: int


def request_of(
    decision: PolicyDecision, *, agent: str, tool: str, args: JsonObject, now_ms: int
) -> TriageRequest:
    """Return the request about an evaluated call.

    Args:
        decision: the policy's decision, with the hidden paths.
        agent: name of the agent.
        tool: name of the tool.
        args: strict JSON.
        now_ms: the store's clock.
    """
    # Redact before shortening: a cut could reveal the beginning of a hidden value.
    every = arguments(args, decision.redact)
    shown = tuple(_bounded(argument) for argument in every[:MAX_ARGUMENTS])
    return TriageRequest(
        agent=shortened(agent, MAX_NAME),
        tool=shortened(tool, MAX_NAME),
        tier=decision.tier,
        reasons=decision.reasons,
        effect=decision.effect_class or Effect.IRREVERSIBLE,
        description=shortened(decision.summary, MAX_VALUE),
        arguments=shown,
        left_out=len(every) - len(shown),
        is_cut=shown != every,
        hour_utc=now_ms // _HOUR_MS % 24,
    )


def _bounded(argument: Argument) -> Argument:
    """Return an argument, with a long name or value shortened to text."""
    name, text = argument.name, argument.text
    if len(name) <= MAX_NAME and len(text) <= MAX_VALUE:
        return argument
    return argument.with_(
        name=shortened(name, MAX_NAME), value=shortened(text, MAX_VALUE)
    )
