"""Build denial messages for the model, and check rate limits before asking people."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache

from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.rules import Policy, Protection
from keyturn.gateway.protocol.questions import NOT_OUTERMOST, problem_of
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, TurnRef
from keyturn.gateway.store.agent_load import AgentLoad, Rejection, Wanted, fingerprint
from keyturn.gateway.store.freezes import Freeze, names_of, paused

NAMELESS = (
    "This call names no tool, so it did not run. If it is still needed, make it again "
    "with the tool's name."
)

MISFIT = (
    "The arguments do not fit the tool or may be cut off, or there is no such tool."
)
"""Text for cards and the audit log; only the model gets the exact problem."""


def refusal(load: AgentLoad, policy: Policy, ref: TurnRef, call: ProposedCall) -> str:
    """Return why a call is refused regardless of its tier, for the model; else ""."""
    if not call.tool:
        return NAMELESS
    if call.is_question and ref.nested_in is not None:
        return NOT_OUTERMOST
    try:
        found = denial(load, policy.protect, ref.agent, call.tool, call.args)
        return found or (problem_of(call.args) if call.is_question else "")
    except BadJson:
        return ""  # refused with a sentence when its document is made


def wanted_of(calls: Iterable[ProposedCall], effects: Iterable[str]) -> Wanted:
    """Return the facts to read for an evaluation of calls with these effects."""
    tools: list[str] = []
    known: list[str] = []
    for call in calls:
        tools.append(call.tool)
        # Arguments that are not strict JSON are refused anyway.
        with suppress(BadJson):
            known.append(fingerprint(call.tool, call.args))
    return Wanted(effects=[*effects], tools=tools, calls=known)


def denial(
    load: AgentLoad, protect: Protection, agent: str, tool: str, args: JsonObject
) -> str:
    """Return why a freeze, a pause or a rejection refuses a call; "" if none does.

    Args:
        load: state of the agent.
        protect: limits on the agent's requests.
        agent: its name.
        tool: the tool's name.
        args: strict JSON.
    """
    # A freeze first: its sentence has more details than that of a pause.
    freeze = freeze_of(load, agent, tool) or load.frozen.get(paused(agent))
    if freeze is not None:
        return freeze_message(freeze)
    rejection = load.rejected.get(fingerprint(tool, args))
    # `<=`: with 1 the very next turn is refused, with 0 none is.
    if rejection and rejection.turns_ago <= protect.same_rejected_within:
        return _repeated(rejection)
    return ""


def freeze_of(load: AgentLoad, agent: str, tool: str) -> Freeze | None:
    """Return the freeze that stops this tool of an agent; a pause is not a freeze."""
    found = (load.frozen.get(name) for name in names_of(agent, tool))
    return next((freeze for freeze in found if freeze is not None), None)


def over_limit(load: AgentLoad, protect: Protection, held: int) -> str:
    """Return why an agent may not ask people for one call more; "" when it may.

    Args:
        load: state of the agent.
        protect: limits on the agent's requests.
        held: number of calls of this turn that wait already.
    """
    # `>=`, because the evaluated call would be one more.
    if load.waiting + held >= protect.pending_per_agent:
        return (
            f"{load.waiting + held} of your calls wait for a person already, which "
            "reaches the limit. Slow down: wait for answers before you ask for more."
        )
    if load.requests_10m + held >= protect.requests_per_10m:
        return (
            f"You asked people for {load.requests_10m + held} calls within 10 minutes, "
            "which reaches the limit. Slow down, and ask again later."
        )
    return ""


def freeze_message(freeze: Freeze) -> str:
    """Return the sentence about a freeze or a pause, for the model."""
    reason = freeze.reason.rstrip(". ") or "no reason was given"
    if freeze.is_pause:
        return (
            f"You are paused: {reason}. None of your calls is put to people until "
            "you are unfrozen. Stop, and tell your user."
        )
    return (
        f"{_named(freeze)} is frozen by {freeze.by}: {reason}. It does not run until "
        "it is unfrozen. Do not try again; tell your user."
    )


@lru_cache(maxsize=256)
def freeze_names(agent: str, tools: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the freezes that must be absent while these calls open."""
    # A turn without calls that may run cannot be stopped by a freeze.
    return (*names_of(agent, *tools), paused(agent)) if tools else ()


def cannot_start_message(freeze: Freeze) -> str:
    """Return the sentence about a freeze, for a reviewer who wants to approve."""
    return (
        f"{_named(freeze)} is frozen, so this could not start, and nothing was "
        "recorded. Try again once it is unfrozen."
    )


def _named(freeze: Freeze) -> str:
    return f"The {freeze.scope}" if freeze.scope.name else "Everything"


def _repeated(rejection: Rejection) -> str:
    reason = rejection.reason.strip()
    because = f" and said: {reason!r}" if reason else " without a reason"
    return (
        f"{rejection.by} rejected exactly this call earlier in this conversation"
        f"{because}. Nobody was asked again. Change what was wrong with it, or go on "
        "without it."
    )
