"""Evaluate a call together with the hints from the agent's own code."""

from __future__ import annotations

import re
from collections.abc import Callable

from keyturn.gateway.approvals.evidence import shortened
from keyturn.gateway.policy.evaluate import Evaluation
from keyturn.gateway.protocol.tiers import Tier
from keyturn.gateway.protocol.verbs import Verb
from keyturn.gateway.protocol.wire import CallHint

MAX_DESCRIPTION = 200
"""Longest description of an agent's that stands on a card; a longer one is cut."""

_DEFAULT = re.compile(
    r"\s*Tool execution requires approval\s*(\n\nTool: .*\nArgs: .*)?", re.DOTALL
)
"""LangChain's own description of a call, which the card already states."""

Evaluate = Callable[[Tier | None], Evaluation]
"""What policy says of one call, given the tier that its agent asks for."""


def apply_hint(evaluate: Evaluate, hint: CallHint | None) -> Evaluation:
    """Return policy's evaluation as a hint changes it: raised, narrowed, or as it was.

    An attacker who can forge a hint gains nothing. Only ``approve`` can be loosened, to
    ``auto``, only where policy says ``overridable``, and no further than its rules of
    ``raise`` let it. A reviewer's ``reject`` is never taken away. The description
    never stands in for the policy's, and is left out where the policy hides
    arguments, because it may spell them out.

    Args:
        evaluate: asks the policy about this call; pure, called once or twice.
        hint: of the agent's own code; None changes nothing.
    """
    evaluation = evaluate(None)
    if hint is None:
        return evaluation
    tier = _tier_by_hint(evaluation, hint)
    if tier is not None:
        # Time, people and channel depend on the tier, so the policy is evaluated again.
        evaluation = evaluate(tier)
    return evaluation.with_(
        allow=_narrowed(evaluation.allow, hint.allow),
        agent_description=_described(evaluation, hint.description),
    )


def _tier_by_hint(evaluation: Evaluation, hint: CallHint) -> Tier | None:
    """Return the tier to which a hint moves a call; None when it moves nothing."""
    if hint.hold is True and evaluation.tier.is_auto_approved:
        return Tier.APPROVE
    # Only `approve` can be loosened. A call that a rule raised to `escalate` must not
    # lose its review by a hint of the agent's own code.
    may_loosen = evaluation.overridable and evaluation.tier is Tier.APPROVE
    if hint.hold is False and may_loosen:
        return Tier.AUTO
    return None


def _narrowed(
    allow: tuple[Verb, ...], hinted: tuple[Verb, ...] | None
) -> tuple[Verb, ...]:
    if hinted is None:
        return allow
    # A card without any way to say no would leave people only to approve or to wait.
    kept = tuple(verb for verb in allow if verb in hinted or verb is Verb.REJECT)
    return kept or (Verb.REJECT,)


def _described(evaluation: Evaluation, text: str) -> str:
    # On one line: line breaks could imitate other parts of the card.
    line = " ".join(text.split())
    if evaluation.description or evaluation.redact or _DEFAULT.fullmatch(text):
        return ""
    return shortened(line, MAX_DESCRIPTION)
