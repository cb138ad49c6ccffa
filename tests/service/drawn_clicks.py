"""Draw a policy, a call that waits by it, what happens meanwhile, and a click."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from tests.service.harness import person
from twokey.gateway.approvals.decisions import AccountKind, Gesture, Reviewer
from twokey.gateway.protocol.records import Record

GROUP = "S0X"
ORDER = "o1"
DISPLAY = "sha256:" + "d" * 64
"""Digest of the card that was clicked."""

_PEOPLE: list[dict[str, Any]] = [
    {"users": ["U0ANA"]},
    {"users": ["U0ANA", "U0BEN"]},
    {"users": ["U0ANA", "U0BEN", "U0DAN"]},
    {"usergroups": [GROUP]},
    {"usergroups": [GROUP], "users": ["U0BEN"]},
    {"users": ["U0BEN", "U0ANA"], "on_call": "turns"},
]
_TURNS = {
    "people": ["U0BEN", "U0ANA"],
    "start": "2026-01-05 09:00",
    "length": "1h",
    "zone": "Europe/Berlin",
}
_RAISED = [
    *["args.amount > 50"] * 4,
    *["windows.spent > 60"] * 4,
    "recent.same_done_24h > 0",
    "recent.requests_10m > 2",
    "hour(now, 'Europe/Berlin') >= 12",
    "off_hours(now, 'America/New_York', '09:00-17:00')",
]
_WINDOW: dict[str, Any] = {
    "tools": "process_refund",
    "sum": "args.amount",
    "by": "args.order",
    "within": "1h",
}
_PASSED_MS = [0, 1, 999, 1_001, 25_000, 31_000, 60_000, -2, -1]
_CLAIMED_AFTER_MS = [1, 2, 5, 0, 1_999, 2_000, 9_999, 10_000, 10_001]
_APART_MS = [1, -1, 9_999, -9_999, 10_001, -10_001]
_ODD_NAMES = [
    "Ana",
    "José",
    "名前 👩‍👩‍👧",
    "U0BEN 1",
    "%s %(a)s %%",
    "<@U1> &amp; <b>",
    "A\u0301",
    "n" * 300,
    " ",
    'A "B"',
    "UPRECOMPUTED0",
    "0",
]


def policy(chance: random.Random, *, lowers: bool = False) -> str:
    """Draw the text of a policy; JSON is YAML, too."""

    def maybe(*found: Any) -> Any:
        return chance.choice(found) if chance.random() < 1 / 4 else None

    tier = chance.choice(["approve", "approve", "escalate"])
    when = maybe(*_RAISED)
    tool: dict[str, Any] = {
        "tier": tier,
        "same_by": maybe(["args.order"]),
        "requires_reason": maybe(["reject"]),
        "authorization": maybe("2s", "5m"),
        "expires_in": maybe("65s", "2m"),
        "allow": maybe(["approve", "reject"]),
    }
    if when:
        to = "deny" if lowers or tier == "escalate" else "escalate"
        tool["raise"] = [{"to": to, "when": when, "because": "it is so"}]
    windows: dict[str, Any] = {}
    if "windows" in (when or "") or chance.random() < 1 / 4:
        windows["spent"] = {
            **_WINDOW,
            "counts": chance.choice(["uses"] * 7 + ["requests"]),
        }
    again = {"ask_again_within": chance.choice(["1s", "30s"])}
    document = {
        "version": 1,
        "defaults": {
            "tier": "approve",
            "expires_in": "1h",
            "channel": "C0APPROVALS",
            "reviewers": chance.choice(["support"] * 7 + ["senior"]),
        },
        "roles": {
            "support": chance.choice(_PEOPLE),
            "senior": {"users": ["U0CHLOE", "U0ANA"]},
        },
        "on_call": {"turns": _TURNS},
        "requirements": {
            "one": {"of": ["support"], "editor_may_vote": chance.random() < 1 / 2},
            "two": {"of": ["support", "senior"], "approvals": 2},
        },
        "windows": windows,
        "tiers": {
            "escalate": {
                "needs": chance.choice(["one"] * 7 + ["two"]),
                **(again if chance.random() < 1 / 2 else {}),
            }
        },
        "protect": {"pending_per_agent": 10_000, "requests_per_10m": 100_000},
        "tools": {
            "process_refund": {name: one for name, one in tool.items() if one},
            "send_email": {"tier": "approve"},
        },
    }
    return json.dumps(document)


_PLAIN = json.dumps(
    {
        "version": 1,
        "defaults": {"expires_in": "1h", "reviewers": "support"},
        "roles": {"support": {"users": ["U0ANA", "U0BEN"]}},
        "tools": {"process_refund": {"tier": "approve"}},
    }
)
BEFORE = [
    "a call like it was approved",
    "a call like it was rejected",
    "somebody voted",
    "somebody edited it",
    "it was given more time",
    "another call of the card was rejected",
    "it was shown with a call like it",
    "it was approved too soon",
    "the clock of the store went back",
    "it waited",
]
MEANWHILE = [
    "the tool is frozen",
    "the agent is frozen",
    "somebody delegates to them",
    "somebody votes",
    "another call of the card is approved",
    "a call like it is approved",
    "it is given more time",
    "its card is drawn again",
    "the policy is loaded again",
]

BEFORE_CLAIM = [
    "the tool is frozen",
    "the policy is loaded again",
    "the policy forbids it",
    "another worker claims it",
    "its call has another id",
    "its lease is another one",
]


class Drawn(Record):
    """What was drawn.

    Attributes:
        opened_by: text of the policy by which the call was submitted.
        decided_by: text of the one by which it is decided.
        amounts: of the calls of the card.
        before: what happened before the card was shown.
        meanwhile: what happened between the precomputation and the click.
        passed_ms: how long it waited; negative for as long before its end.
        apart_ms: how far the process is behind the clock of the store.
        reviewer: who clicks.
        is_plain: the click is on the card as it was shown.
        claimed_after_ms: how long after the approval the call is claimed.
        before_claim: what happened in between.
    """

    opened_by: str
    decided_by: str
    amounts: tuple[int, ...]
    before: tuple[str, ...]
    meanwhile: tuple[str, ...]
    passed_ms: int
    apart_ms: int
    reviewer: Reviewer
    is_plain: bool
    claimed_after_ms: int
    before_claim: tuple[str, ...]


def reviewer(chance: random.Random) -> Reviewer:
    """Draw who clicks; mostly somebody who may."""
    user = chance.choice(["U0ANA"] * 16 + ["U0BEN", "U0DAN", "U0CHLOE", "U0EVE"])
    is_found = user != "U0EVE" and chance.random() < 9 / 10
    is_unknown = not is_found and chance.random() < 1 / 2
    letters = filter(str.isprintable, map(chr, chance.choices(range(0x3000), k=9)))
    return person(user).with_(
        name=chance.choice([*_ODD_NAMES, "".join(letters)]),
        team=chance.choice(["T0", "T0", "T0OTHER"]),
        usergroups=frozenset({GROUP} if is_found else set[str]()),
        unknown_groups=frozenset({GROUP} if is_unknown else set[str]()),
        account=AccountKind.MEMBER
        if chance.random() < 29 / 30
        else chance.choice([*AccountKind]),
        membership_age_ms=chance.choice([0, 1, 3_001, 4_012, 7_013, 59_999]),
        gesture=Gesture.BUTTON if chance.random() < 29 / 30 else Gesture.MODAL,
    )


PLAIN = Drawn(
    opened_by=_PLAIN,
    decided_by=_PLAIN,
    amounts=(5,),
    before=(),
    meanwhile=(),
    passed_ms=1_001,
    apart_ms=0,
    reviewer=person("U0ANA").with_(gesture=Gesture.BUTTON, membership_age_ms=1_234),
    is_plain=True,
    claimed_after_ms=5,
    before_claim=(),
)
"""What is precomputed and goes as it was."""


def drawn(number: int) -> Drawn:
    """Draw all of it; the same of the same number.

    In every other one a single thing differs from the plain case: what has to be
    noticed is not hidden behind something else that is noticed first.
    """
    chance = random.Random(number)  # noqa: S311 - the same in each run
    if number % 2:
        return _with_one_thing(number // 2)

    def some(found: Sequence[str], often: float, most: int = 1) -> tuple[str, ...]:
        if chance.random() >= often:
            return ()
        return tuple(chance.sample(found, chance.randint(1, most)))

    opened_by = policy(chance)
    is_same = chance.random() < 5 / 6
    return Drawn(
        opened_by=opened_by,
        decided_by=opened_by if is_same else policy(chance, lowers=True),
        amounts=tuple(chance.choices(range(1, 99), k=chance.choice([1, 1, 1, 2]))),
        before=some(BEFORE, 1 / 3, 2),
        meanwhile=some(MEANWHILE, 1 / 5),
        passed_ms=chance.choice(_PASSED_MS),
        apart_ms=chance.choice([0] * 12 + _APART_MS),
        reviewer=reviewer(chance),
        is_plain=chance.random() < 29 / 30,
        claimed_after_ms=chance.choice(_CLAIMED_AFTER_MS),
        before_claim=some(BEFORE_CLAIM, 1 / 3),
    )


def _with_one_thing(number: int) -> Drawn:
    named: list[dict[str, Any]] = [
        *[{"meanwhile": (one,)} for one in MEANWHILE],
        *[{"before_claim": (one,)} for one in BEFORE_CLAIM],
        *[{"before": (one,)} for one in BEFORE],
        *[{"claimed_after_ms": one} for one in _CLAIMED_AFTER_MS],
        *[{"passed_ms": one} for one in _PASSED_MS],
        *[{"apart_ms": one} for one in _APART_MS],
        # In time by the process alone.
        {"passed_ms": -1, "apart_ms": 1},
    ]
    return PLAIN.with_(**named[number % len(named)])
