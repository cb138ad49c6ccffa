"""Format the results of ``policy explain``, ``replay`` and ``suggest`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import typer

from twokey.cli.console import printable
from twokey.cli.policy_reach import reach_rows
from twokey.gateway.approvals.quorum import tally
from twokey.gateway.approvals.requirement import Requirement
from twokey.gateway.policy.evaluate import Evaluation
from twokey.gateway.policy.raise_rules import FiredRule
from twokey.gateway.policy.replay import Replayed
from twokey.gateway.policy.rules import Policy
from twokey.gateway.policy.suggesting import Suggestion
from twokey.gateway.policy.triage_rules import TriageRule
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.tiers import Tier

_COLOURS = {
    Tier.AUTO: typer.colors.GREEN,
    Tier.NOTIFY: typer.colors.GREEN,
    Tier.APPROVE: typer.colors.YELLOW,
    Tier.ESCALATE: typer.colors.MAGENTA,
    Tier.DENY: typer.colors.RED,
}


def explanation_rows(
    policy: Policy, evaluation: Evaluation, when: datetime | None
) -> Iterator[tuple[str, str]]:
    """Yield label and text of everything that an evaluation says.

    Args:
        policy: that evaluated it.
        evaluation: of the call.
        when: the time at which it is evaluated; None leaves absolute times out.
    """
    yield "tier", _tier(evaluation.tier)
    for reason in evaluation.reasons:
        yield "because", reason
    if evaluation.effect_class is not None:
        yield "effect", evaluation.effect_class
    for rule in evaluation.fired:
        yield "rule", _rule(rule)
    if evaluation.triage is not None:
        yield "triage", _triage(evaluation.triage)
    if evaluation.tier.needs_people:
        yield from _of_people(evaluation, when)
        yield from reach_rows(policy, evaluation, when or datetime.now(UTC))
    if evaluation.tier.needs_people or evaluation.tier is Tier.NOTIFY:
        yield from _shown(evaluation)


def _of_people(
    evaluation: Evaluation, when: datetime | None
) -> Iterator[tuple[str, str]]:
    yield "who", _who(evaluation.requirement)
    yield "may", ", ".join(evaluation.allow)
    yield "within", f"{_time(evaluation.ttl_ms, when)}, then it expires"
    if evaluation.remind_at_ms:
        yield "reminds", f"after {_time(evaluation.remind_at_ms, when)}"
    if evaluation.escalate_at_ms:
        after = _time(evaluation.escalate_at_ms, when)
        yield "escalates", f"to {evaluation.escalate_to} after {after}"


def _shown(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    yield "where", evaluation.channel
    if evaluation.description:
        yield "card", printable(evaluation.description)
    if evaluation.redact:
        yield "hidden", ", ".join(evaluation.redact)


def replay_lines(found: Sequence[Replayed]) -> Iterator[str]:
    """Yield the lines that say what would have changed."""
    changed = [one for one in found if one.is_changed]
    for one in changed:
        at = datetime.fromtimestamp(one.at_ms / 1000, UTC)
        who = f"{printable(one.agent) or '-'}  {printable(one.tool)}"
        what = f"{at:%Y-%m-%d %H:%M} UTC  {who}"
        yield f"{what}  {_tier(one.was)} → {_tier(one.now)}"
        for reason in one.reasons:
            yield f"    {reason}"
        if one.lacking:
            more = " and ".join(
                f"{n} more from {role}" for role, n in one.lacking.items()
            )
            yield f"    The approvals given then would not be enough: {more}."
    raised = sum(one.is_raised for one in changed)
    yield (
        f"{len(found)} calls: {raised} would need more, {len(changed) - raised} would "
        f"need less, {len(found) - len(changed)} stay as they were."
    )
    # Arguments are kept for a while only, and an export may leave them out.
    bare = sum(not one.is_complete for one in found)
    if bare:
        yield (
            f"{bare} of them have no arguments in the export, so for these only the "
            "listed tier was compared."
        )


def _rule(rule: FiredRule) -> str:
    # Values are arguments of the call: untrusted, also in a terminal.
    seen = ", ".join(f"{name} = {printable(text)}" for name, text in rule.values)
    return f"{rule.when}{f'   ({seen})' if seen else ''}"


def _triage(rule: TriageRule) -> str:
    most = "refuse it" if rule.may_deny else "raise it"
    return f"a model may {most}, within {rule.timeout.total_seconds():.0f} s"


def _tier(tier: Tier) -> str:
    return typer.style(tier.value, fg=_COLOURS[tier])


def _time(span_ms: int, when: datetime | None) -> str:
    if when is None:
        return _span(span_ms)
    moment = when + timedelta(milliseconds=span_ms)
    return f"{_span(span_ms)} (at {moment:%Y-%m-%d %H:%M:%S} UTC)"


def _span(span_ms: int) -> str:
    """Return a time as a policy writes it, such as ``1h 30m``; parts of a second go."""
    left, parts = span_ms // 1000, list[str]()
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def _who(requirement: Requirement) -> str:
    # A role that lists nobody is no answer to who can be asked.
    held = [role for role in requirement.roles if role.users or role.usergroups]
    if not held:
        return "nobody: no reviewers are set, so it can only expire"
    count = tally(requirement, (), "")
    people = "one person" if count.need == 1 else f"{count.need} people"
    parts = [f"{number} {names}" for names, number in count.lacking.items()]
    # Every vote is bound to a role, so the roles are the whole sentence.
    if sum(count.lacking.values()) == count.need > 1:
        people = f"{people}, {' and '.join(parts)}, out"
        parts = []
    # Fewer people than votes: one person may hold two of the roles.
    elif sum(count.lacking.values()) > count.need:
        people = f"{' and '.join(parts)}, who may be the same people, out"
        parts = []
    names = " or ".join(
        f"{role.name} ({', '.join((*role.usergroups, *role.users))})" for role in held
    )
    most = [f"at least {part}" for part in parts]
    maker = [] if requirement.editor_may_vote else ["nobody approves their own change"]
    return ", ".join([f"{people} of {names}", *most, *maker])


def suggestion_lines(found: Suggestion) -> list[str]:
    """Return what was seen, what is not known, and what to write into the policy."""
    more = ", with this rule first under 'raise':" if found.rule else "."
    rule = [f"    - {found.rule}"] if found.rule else []
    less = found.at_most_percent
    return [
        f"{printable(found.tool)}: {found.sentence}.",
        f"    Without review, people would have made {found.calls} decisions fewer.",
        f"    With 95 % confidence, less than {less} % of such calls need a person.",
        f"    In the policy: 'tier: notify'{more}",
        *rule,
    ]


def suggestion_document(found: Suggestion) -> JsonObject:
    """Return a suggestion for a program."""
    more: JsonObject = {"at_most_percent": found.at_most_percent, "raise": found.rule}
    return {**found.model_dump(mode="json"), **more}
