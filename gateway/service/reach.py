"""Resolve whom to ask now: on-call rotations and quiet hours of the policy.

Worked out from the policy in force whenever an approval is read to be shown, and never
stored: it changes who is asked and nothing about who may decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.approvals.requirement import Role
from keyturn.gateway.approvals.role_mapping import with_roles
from keyturn.gateway.policy.hours import utc
from keyturn.gateway.policy.on_call import (
    QuietRule,
    asked_from,
    last_end,
    on_call,
    turn_at,
)
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.store.atomic_write import Loaded


@dataclass(frozen=True, slots=True)
class Reach:
    """Whom to ask at a moment; ``policy`` returns the policy in force."""

    policy: Callable[[], Policy]

    def resolved(self, loaded: Loaded) -> Loaded:
        """Return an approval whose roles say whom of them to ask now."""
        approval, now_ms = loaded.approval, loaded.now_ms
        policy = self.policy()
        rules = policy.roles
        turns = {
            name: _has_turn(policy, name, now_ms)
            for rule in rules.values()
            if (name := rule.on_call) is not None
        }
        if not turns and not any(rule.quiet for rule in rules.values()):
            return loaded

        def asked(item: Item, role: Role) -> Role:
            rule = rules.get(role.name)
            if rule is None:
                return role
            asking = role.asked.with_(
                on_call=turns.get(rule.on_call or "", ()),
                quiet_until_ms=_quiet_until_ms(rule.quiet, approval, item, now_ms),
            )
            return role.with_(asking=asking)

        return Loaded(with_roles(approval, asked), now_ms)

    def changed_ms(self, now_ms: int) -> int:
        """Return when others began to be asked last; 0 when the policy is the same.

        At that moment quiet hours ended, or a turn of a rotation began.
        """
        moments = self._changes(utc(now_ms))
        return max((int(one.timestamp() * 1000) for one in moments), default=0)

    def _changes(self, now: datetime) -> Iterator[datetime]:
        policy = self.policy()
        for rule in policy.roles.values():
            if rule.quiet is not None:
                yield last_end(rule.quiet, now)
        for rotation in policy.on_call.values():
            turn = turn_at(rotation, now)
            if turn is not None:
                yield rotation.begin(turn)


def _has_turn(policy: Policy, rotation: str, now_ms: int) -> tuple[str, ...]:
    """Return who is on call; nobody before the first turn: then everybody is asked."""
    rule = policy.on_call.get(rotation)
    found = on_call(rule, utc(now_ms)) if rule else ""
    return (found,) if found else ()


def _quiet_until_ms(
    rule: QuietRule | None, approval: Approval, item: Item, now_ms: int
) -> int:
    # A call in doubt may have run, and its agent waits without a deadline: people are
    # asked at any hour.
    if rule is None or not item.is_pending:
        return 0
    expires = utc(approval.expires_at_ms)
    begin = asked_from(rule, item.tier, now=utc(now_ms), expires=expires)
    return int(begin.timestamp() * 1000) if begin else 0
