"""Evaluate the ``raise`` rules of a policy for one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from pydantic import Field, JsonValue

from keyturn.gateway.approvals.evidence import HIDDEN, as_text, redacted, shortened
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.expressions import (
    Expression,
    ask,
    compiled,
    scope,
    value_at,
)
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.rules import Policy, RaiseRule
from keyturn.gateway.policy.windows import MICRO
from keyturn.gateway.protocol.records import Record
from keyturn.gateway.protocol.strict_json import JsonObject, accept_object
from keyturn.gateway.protocol.tiers import Tier

MAX_VALUE = 200
"""Longest value that is shown; the whole value stands among the arguments."""


class Facts(Record):
    """What is known of the moment in which a call is evaluated.

    Attributes:
        now_ms: Unix milliseconds of the store's clock.
        windows: name of a window to its total in millionths, this call included.
        requester: Slack id of the person who asked the agent; empty when unknown.
        requests_10m: calls of this agent that were put to people in the last ten
            minutes, this one included.
        failures_1h: executions of this agent that failed in the last hour.
        rejections_in_row: calls of this agent rejected since one was last approved.
        same_done_24h: earlier calls with the same effect that ran, or may run at any
            moment, in the last 24 hours; `MOST_KEPT` at most.
        same_rejected_24h: those that people rejected.
        problems: why a total is not known, as sentences of ours; each one raises.
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
    """What somebody beside the policy asks for; it is joined, so it only adds.

    ``reason`` is a sentence of ours for the card.
    """

    to: Tier
    reason: str


class FiredRule(Record):
    """A rule that asks for more, and what it saw.

    Attributes:
        to: the tier that it asks for; ``escalate`` when it could not be checked.
        because: the policy's words for it.
        when: its expression.
        needs: the requirement that it asks for; empty for none.
        values: (name, value) of what the expression reads; values are untrusted text,
            redacted as on cards.
        problem: why it could not be checked; empty when it holds.
    """

    to: Tier
    because: str
    when: str
    needs: str = ""
    values: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def reason(self) -> str:
        """Return the sentence for the card; it holds no text of the agent's."""
        because = self.because.rstrip(".")
        if not self.problem and not self.needs:
            return f"Raised to {self.to}: {because}."
        if not self.problem and self.to is Tier.APPROVE:
            return f"Needs {self.needs}: {because}."
        if not self.problem:
            return f"Raised to {self.to}, and needs {self.needs}: {because}."
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
    """Return the rules that hold, and those that could not be checked.

    Args:
        policy: for its holidays.
        rules: in the order of the file.
        call: what ``call`` has in an expression.
        args: the arguments that would run.
        facts: None leaves every rule that needs them unchecked.
        redact: dotted paths whose values are not shown.
    """
    listed = tuple(rules)
    if not listed:
        return ()
    values = {"call": dict(call), **_values(facts)}
    not_strict = "" if is_strict(args) else "the call is not strict JSON"
    # An empty object, so that nothing is evaluated on what cannot be read.
    readable = {} if not_strict else args
    where = scope(readable, values, holidays=policy.holidays)
    shown = redacted(readable, redact)
    found: list[FiredRule] = []
    for rule in listed:
        expression = compiled(rule.when)
        problem = not_strict or _unknown(expression, facts)
        answer = ask(expression, where) if not problem else None
        # Only a clear "no" is silent.
        if answer is not None and not answer.holds and not answer.problem:
            continue
        problem = problem or (answer.problem if answer else "")
        found.append(
            FiredRule(
                # Not the rule's own tier: nobody knows what it would have seen.
                to=Tier.ESCALATE if problem else rule.tier,
                needs=rule.needs or "",
                because=rule.because,
                when=rule.when,
                values=tuple(_seen(expression, shown, values)),
                problem=problem,
            )
        )
    return tuple(found)


def is_strict(args: JsonObject) -> bool:
    """Return whether arguments are strict JSON; others never run, but are evaluated."""
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
    """Return a value of redacted arguments as text, or that it is hidden or missing."""
    # Each level is looked at: a hidden object hides all that is in it.
    for length in range(1, len(path) + 1):
        try:
            if value_at(args, path[:length]) == HIDDEN:
                return HIDDEN
        except LookupError:
            return "(missing)"
    return shortened(as_text(value_at(args, path)), MAX_VALUE)
