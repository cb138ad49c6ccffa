"""Join what an agent's own code wishes for a call with what policy says of it."""

from __future__ import annotations

from gateway.approvals.record import Verb
from gateway.approvals.tiers import Tier
from gateway.policy.evaluate import Ruling
from gateway.wire import CallHint

MAX_DESCRIPTION = 200
"""Longest description of an agent's that stands on a card; a longer one is cut."""

ASKED = "The agent's own code asks for a person here."
WAIVED = "The policy lets the agent's own code waive the person here, and it did."


def apply_hint(
    ruling: Ruling, hint: CallHint | None, *, is_overridable: bool
) -> Ruling:
    """Return the ruling as a hint changes it: raised, narrowed, or as it was.

    Whoever can forge a hint gains nothing by it. Only ``approve`` can be loosened, to
    ``auto``, and only where policy says so; a reviewer's ``reject`` is never taken
    away; the description never stands in for the policy's, and is left out where the
    policy hides arguments, because it may spell them out.

    Args:
        ruling: what policy says, for these arguments.
        hint: the agent's wish; None changes nothing.
        is_overridable: whether the policy marks this tool, or the tools it does not
            list, as overridable, and no rule of it raised the tier of this call.
    """
    if hint is None:
        return ruling
    tier, reason = _tier(ruling.tier, hint, is_overridable=is_overridable)
    return ruling.with_(
        tier=tier,
        reasons=(*ruling.reasons, reason) if reason else ruling.reasons,
        allow=_narrowed(ruling.allow, hint.allow),
        description=_described(ruling, hint.description),
    )


def _tier(tier: Tier, hint: CallHint, *, is_overridable: bool) -> tuple[Tier, str]:
    if hint.hold is True and tier.runs_unasked:
        return Tier.APPROVE, ASKED
    if hint.hold is False and is_overridable and tier is Tier.APPROVE:
        return Tier.AUTO, WAIVED
    return tier, ""


def _narrowed(
    allow: tuple[Verb, ...], wished: tuple[Verb, ...] | None
) -> tuple[Verb, ...]:
    if wished is None:
        return allow
    kept = tuple(verb for verb in allow if verb in wished or verb is Verb.REJECT)
    return kept or (Verb.REJECT,)


def _described(ruling: Ruling, text: str) -> str:
    line = " ".join(text.split())
    if ruling.description or ruling.redact or not line:
        return ruling.description
    cut = len(line) - MAX_DESCRIPTION
    shown = line if cut <= 0 else f"{line[:MAX_DESCRIPTION]}… ({cut} more characters)"
    return f"The agent says: {shown}"
