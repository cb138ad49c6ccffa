"""Evaluate the ``raise`` rules of a policy for one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from pydantic import Field, JsonValue

from keyturn.gateway.approvals.evidence import as_text, redacted, shortened
from keyturn.gateway.errors import BadJson
from keyturn.gateway.policy.expressions import (
    Expression,
    ask,
    compiled,
    scope,
    shown_at,
)
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.rules import Policy, RaiseRule
from keyturn.gateway.policy.windows import MICRO
from keyturn.gateway.protocol.records import Record, Tier
from keyturn.gateway.protocol.strict_json import JsonObject, accept_object

MAX_VALUE = 200
"""Longest value in the reasons; the arguments on the card have all of it."""


class Facts(Record):
    """The state at the moment a call is evaluated.

    Attributes:
        now_ms: Unix milliseconds of the store's clock.
        windows: name of a window to its total in millionths, this call included.
        requester: Slack id of the requester; empty if unknown.
        requests_10m: calls of this agent that went to people in the last ten minutes,
            this one included.
        failures_1h: executions of this agent that failed in the last hour.
        rejections_in_row: rejected calls of this agent since its last approved one.
        same_done_24h: earlier calls with the same effect in the last 24 hours that ran
            or may still run; `MOST_KEPT` at most.
        same_rejected_24h: earlier calls with the same effect that people rejected.
        problems: why a total is unknown, as fixed text; each problem raises the call.
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
    """A request from outside the policy for a higher tier; it can only raise.

    ``reason`` is a sentence for the card, without text of the call.
    """

    to: Tier
    reason: str


class FiredRule(Record):
    """A rule that asks for more, with the values it read.

    Attributes:
        to: the tier that it asks for; ``escalate`` if it could not be checked.
        because: its reason in the policy.
        when: its expression.
        needs: the people or the requirement that it adds; empty for none.
        values: (name, value) for each name in the expression; values are untrusted
            text, redacted as on cards.
        problem: why it could not be checked; empty if it is true.
    """

    to: Tier
    because: str
    when: str
    needs: tuple[str, ...] = ()
    values: tuple[tuple[str, str], ...] = ()
    problem: str = ""

    @property
    def reason(self) -> str:
        """Return the sentence for the card; it contains no text of the agent."""
        because, needs = self.because.rstrip("."), " or ".join(self.needs)
        if not self.problem and not needs:
            return f"Raised to {self.to}: {because}."
        if not self.problem and self.to is Tier.APPROVE:
            return f"Needs {needs}: {because}."
        if not self.problem:
            return f"Raised to {self.to}, and needs {needs}: {because}."
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
    """Return the rules that are true, and those that could not be checked.

    Args:
        policy: for its holidays.
        rules: in the order of the file.
        call: the members of ``call`` in an expression.
        args: the arguments that would run.
        facts: if None, every rule that needs them is unchecked.
        redact: dotted paths whose values are hidden.
    """
    listed = tuple(rules)
    if not listed:
        return ()
    values = {"call": dict(call), **_values(facts)}
    not_strict = "" if is_strict(args) else "the call is not strict JSON"
    # Empty, so that nothing is evaluated on unreadable arguments.
    readable = {} if not_strict else args
    where = scope(readable, values, holidays=policy.holidays)
    shown = redacted(readable, redact)
    found: list[FiredRule] = []
    for rule in listed:
        expression = compiled(rule.when)
        problem = not_strict or _unknown(expression, facts)
        answer = ask(expression, where) if not problem else None
        # Only a clear "false" is skipped.
        if answer is not None and not answer.holds and not answer.problem:
            continue
        problem = problem or (answer.problem if answer else "")
        found.append(
            FiredRule(
                # Not the rule's tier: its result is unknown.
                to=Tier.ESCALATE if problem else rule.tier,
                needs=rule.needs or (),
                because=rule.because,
                when=rule.when,
                values=tuple(_seen(expression, shown, values)),
                problem=problem,
            )
        )
    return tuple(found)


def is_strict(args: JsonObject) -> bool:
    """Return whether arguments are strict JSON; others are evaluated but never run."""
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
    """Return a value of redacted arguments as text, or a note that it is missing."""
    try:
        return shortened(as_text(shown_at(args, path)), MAX_VALUE)
    except LookupError:
        return "(missing)"
