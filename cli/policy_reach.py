"""Format whom a policy notifies, and how: lines of ``check`` and ``explain``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from twokey.gateway.approvals.requirement import Notify, Role
from twokey.gateway.policy import on_call
from twokey.gateway.policy.evaluate import Evaluation
from twokey.gateway.policy.hours import zone
from twokey.gateway.policy.quiet_hours import asked_from
from twokey.gateway.policy.rules import Policy

_HOW = {
    Notify.MENTION: "a mention of",
    Notify.DM: "a direct message to",
}


def reach_rows(
    policy: Policy, evaluation: Evaluation, now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield who learns of a call at this moment, a row for each role.

    Those of ``escalate_to`` are asked later, and have a row of their own.
    """
    later = {role.name for role in evaluation.escalate_roles}
    # Where the requirement has no other roles, those are asked from the beginning.
    roles = [role for role in evaluation.requirement.roles if role.name not in later]
    for role in roles or evaluation.requirement.roles:
        if role.users or role.usergroups:
            yield "reaches", f"{role.name}: {_how(policy, role, evaluation, now)}"


def _how(policy: Policy, role: Role, evaluation: Evaluation, now: datetime) -> str:
    if role.notify is Notify.NONE:
        return "nobody; they find the card in the channel and on the Home tab"
    # None for people whom a requirement lists by their ids: they have no role.
    rule = policy.roles.get(role.name)
    whom = ", ".join((*role.usergroups, *role.users))
    turn = _turn(policy, rule.on_call if rule else None, now)
    said = f"{_HOW[role.notify]} {turn or whom}"
    expires = now + timedelta(milliseconds=evaluation.ttl_ms)
    if rule is None or rule.quiet is None:
        return said
    begin = asked_from(rule.quiet, evaluation.tier, now=now, expires=expires)
    if begin is None:
        return said
    # A call that is not urgent by the role's own setting: it would wait for nobody, and
    # the author of the policy should see that.
    if begin >= expires:
        return f"nobody: it expires before {_local(begin, rule.quiet.zone)}"
    return f"{said}, from {_local(begin, rule.quiet.zone)}"


def _turn(policy: Policy, name: str | None, now: datetime) -> str:
    """Return who is on call and until when; "" for nobody."""
    rule = policy.on_call.get(name or "")
    turn = on_call.turn_at(rule, now) if rule else None
    if rule is None or turn is None:
        return ""
    until = _local(rule.begin(turn + 1), rule.zone)
    return f"{on_call.on_call(rule, now)}, on call until {until}"


def _local(moment: datetime, name: str) -> str:
    return f"{moment.astimezone(zone(name)):%Y-%m-%d %H:%M} {name}"


def reach_notes(policy: Policy, now: datetime | None = None) -> list[str]:
    """Return a sentence for each role that is not simply mentioned."""
    now = now or datetime.now(UTC)
    found: list[str] = []
    for name, rule in policy.roles.items():
        parts: list[str] = []
        if rule.notify is Notify.DM:
            parts.append("gets direct messages")
        if rule.on_call is not None:
            turn = _turn(policy, rule.on_call, now)
            parts.append(f"is asked through {turn}" if turn else "has no turn yet")
        if rule.quiet is not None:
            quiet = rule.quiet
            parts.append(f"is not asked at {quiet.hours} {quiet.zone}")
        if parts:
            found.append(f"The role {name!r} {', '.join(parts)}.")
    used = {rule.on_call for rule in policy.roles.values()}
    found += [
        f"The rotation {name!r} is not used: no role has it as 'on_call'."
        for name in policy.on_call
        if name not in used
    ]
    return found
