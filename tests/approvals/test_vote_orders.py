"""No order of votes, edits, rejects, departures and deadlines leaves a plain model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    CallNow,
    Click,
    Decision,
    Edit,
    Reject,
    Reviewer,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol.records import Tier
from tests.approvals.builders import DAN, NOW_MS, an_approval, an_item, click_on
from tests.levels import examples, size

SUPPORT = Role(name="support", usergroups=("S0SUPPORT",))
SENIOR = Role(name="senior", usergroups=("S0SENIOR",))
ONE_SENIOR = Requirement(approvals=1, of=(SENIOR,))
GROUPS = {"support": "S0SUPPORT", "senior": "S0SENIOR"}
REQUIREMENTS = {
    Tier.APPROVE: Requirement(approvals=1, of=(SUPPORT,)),
    Tier.ESCALATE: Requirement(approvals=2, of=(SUPPORT, SENIOR), also=(ONE_SENIOR,)),
}
NAMES = ("ana", "ben", "chloe", "dan", "eve", "flo")
ROLES = {
    "ana": {"support"},
    "ben": {"support"},
    "chloe": {"senior"},
    "dan": {"support", "senior"},
    "eve": set[str](),
    "flo": {"support", "senior"},
}
LIFETIME_MS = 10


@dataclass(frozen=True)
class Step:
    """What one person does, or how their account changes."""

    what: str
    who: str
    amount: int = 0
    is_late_copy: bool = False


# One choice among all steps: Hypothesis takes longer to choose than we to decide.
STEPS = st.sampled_from(
    [
        Step(what, who, amount, is_late_copy)
        for what in (
            *["approve"] * 6,
            *["edit"] * 3,
            *["reject", "leave", "demote", "promote", "hide", "blur", "tick"],
        )
        for who in NAMES
        for amount in (100, 200, 900, 1000)
        for is_late_copy in (*[False] * 9, True)
    ]
)
ORDERS = size(deep=10_000, short=1000)

SHARES = 5
"""Processes share the orders: the test takes its time in several parts."""


@dataclass
class People:
    """The current people and their roles."""

    roles: dict[str, set[str]] = field(
        default_factory=lambda: {name: set(held) for name, held in ROLES.items()}
    )
    gone: set[str] = field(default_factory=set[str])
    hidden: set[str] = field(default_factory=set[str])
    blurred: set[str] = field(default_factory=set[str])

    def reviewer(self, name: str) -> Reviewer:
        """Return a person as the bot would resolve them."""
        if name in self.hidden:
            return Reviewer(team="T0", user=user(name))
        account = AccountKind.DEACTIVATED if name in self.gone else AccountKind.MEMBER
        unknown = {"S0SENIOR"} if name in self.blurred else set[str]()
        groups = frozenset(GROUPS[role] for role in self.roles[name])
        return Reviewer(
            team="T0",
            user=user(name),
            usergroups=groups - unknown,
            unknown_groups=frozenset(unknown),
            account=account,
        )

    def change(self, step: Step) -> None:
        """Remove a person, change a role, or make it unknown for a while."""
        if step.what == "leave":
            self.gone.add(step.who)
        elif step.what == "demote":
            self.roles[step.who] -= {"senior"}
        elif step.what == "promote":
            self.roles[step.who] |= {"senior"}
        elif step.what == "hide":
            self.hidden ^= {step.who}
        else:
            self.blurred ^= {step.who}

    def held(self, name: str) -> set[str]:
        """Return the known roles of a person."""
        if name in self.gone | self.hidden:
            return set()
        return self.roles[name] - self.open(name)

    def open(self, name: str) -> set[str]:
        """Return the roles of a person that Slack does not answer."""
        if name in self.hidden:
            return {"support", "senior"}
        return {"senior"} if name in self.blurred - self.gone else set()


class Model:
    """What the policy means, as its author would explain it."""

    def __init__(self, amount: int) -> None:
        self.amount, self.version = amount, 1
        self.is_escalated, self.needs_both = amount > 500, False
        self.votes: dict[str, set[str]] = {}
        self.barred = {"dan"}
        self.state = "pending"

    def may(self, name: str, people: People, amount: int) -> bool:
        """Return whether a person may decide now on a call of this amount."""
        is_escalated = self.is_escalated or amount > 500
        asked = {"support", "senior"} if is_escalated else {"support"}
        return name not in self.barred and bool(people.held(name) & asked)

    def say_no(self, name: str, people: People) -> str:
        """Take the call back as its requester, or reject it as its editor."""
        if name == "dan":
            is_known = name not in people.gone | people.hidden
            self.state = "withdrawn" if is_known else self.state
            return "counted" if is_known else "refused"
        asked = {"support", "senior"} if self.is_escalated else {"support"}
        if not people.held(name) & asked:
            return "refused"
        self.state = "rejected"
        return "counted"

    def approve(self, name: str, people: People) -> str:
        """Count a vote, and look again at the earlier ones when it is the last."""
        asked = {"support", "senior"} if self.is_escalated else {"support"}
        known = people.held(name) & asked
        if known <= self.votes.get(name, set()) or people.open(name) & asked:
            return "refused"
        mine = {name: known}
        others = {who: held for who, held in self.votes.items() if who != name}
        votes = others | mine
        if self.is_enough(votes):
            if any(roles & people.open(who) for who, roles in others.items()):
                return "refused"
            still = {who: roles & people.held(who) for who, roles in others.items()}
            votes = {who: roles for who, roles in still.items() if roles} | mine
        self.votes = votes
        if self.is_enough(votes):
            self.state = "authorized"
        return "counted"

    def edit(self, name: str, amount: int, people: People) -> str:
        """Change the amount: new votes, and a higher bar if it needs one."""
        if amount == self.amount:
            return self.approve(name, people)
        is_raising = amount > 500 and not self.is_escalated
        asked = {"support", "senior"} if self.is_escalated else {"support"}
        if not is_raising and people.open(name) & asked:
            return "refused"
        self.amount, self.votes, self.version = amount, {}, self.version + 1
        # Two seniors are enough for a large amount; a call that was both large and
        # small needs the people of both.
        self.needs_both |= self.is_escalated != (amount > 500)
        if is_raising:
            self.is_escalated = True
            self.barred.add(name)
            return "counted"
        return self.approve(name, people)

    def is_enough(self, votes: dict[str, set[str]]) -> bool:
        """Return whether these people are enough."""
        held = {role for roles in votes.values() for role in roles}
        if not self.is_escalated:
            return "support" in held
        needed = {"senior", "support"} if self.needs_both else {"senior"}
        return len(votes) >= 2 and needed <= held

    def play(self, step: Step, people: People, *, is_over: bool) -> str:
        """Return whether a step counts."""
        late = step.is_late_copy and self.version > 1
        if self.state != "pending" or is_over or late:
            return "refused"
        if step.what == "reject":
            return self.say_no(step.who, people)
        amount = step.amount if step.what == "edit" else self.amount
        if not self.may(step.who, people, amount):
            return "refused"
        if step.what == "approve":
            return self.approve(step.who, people)
        return self.edit(step.who, step.amount, people)


def user(name: str) -> str:
    """Return a person's Slack id."""
    return f"U0{name.upper()}"


def policy_now(amount: int) -> PolicyDecision:
    """Return the policy's evaluation of an amount."""
    tier = Tier.ESCALATE if amount > 500 else Tier.APPROVE
    return PolicyDecision(
        tier=tier, reasons=(), requirement=REQUIREMENTS[tier], policy_digest="p"
    )


def decision_of(step: Step) -> Decision:
    """Return a reviewer's decision."""
    if step.what == "edit":
        return Edit(args={"order_id": "1", "amount": step.amount})
    return Approve() if step.what == "approve" else Reject()


def say(approval: Approval, step: Step, people: People, now_ms: int) -> Approval | None:
    """Decide for real; None when it does not count."""
    item, decision = approval.items[0], decision_of(step)
    click: Click = click_on(approval)
    if step.is_late_copy:
        click = click.with_(version=1)
    amount = step.amount if step.what == "edit" else item.args["amount"]
    assert isinstance(amount, int)
    result = decide(
        approval,
        click,
        decision,
        people.reviewer(step.who),
        now_ms=now_ms,
        now=CallNow(
            policy_now(amount),
            [people.reviewer(vote.by.user[2:].lower()) for vote in item.votes],
        ),
    )
    return result.approval if isinstance(result, Change) else None


@pytest.mark.parametrize("share", range(SHARES))
@settings(
    max_examples=max(1, examples(ORDERS) // SHARES),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(first=st.sampled_from([100, 900]), steps=st.lists(STEPS, max_size=9))
def test_any_order_of_votes_ends_as_the_policy_says(
    share: int, first: int, steps: list[Step]
) -> None:
    tier = policy_now(first).tier
    approval = an_approval(
        an_item(
            args={"order_id": "1", "amount": first},
            requirement=REQUIREMENTS[tier],
            tier=tier,
        )
    ).with_(expires_at_ms=NOW_MS + LIFETIME_MS, principals=(DAN,))
    model, people, now_ms = Model(first), People(), NOW_MS

    for step in steps:
        if step.what == "tick":
            now_ms += LIFETIME_MS // 2
        elif step.what in {"leave", "demote", "promote", "hide", "blur"}:
            people.change(step)
        else:
            is_over = now_ms >= approval.expires_at_ms
            wanted = model.play(step, people, is_over=is_over)
            changed = say(approval, step, people, now_ms)
            assert ("refused" if changed is None else "counted") == wanted, step
            approval = changed or approval
        item = approval.items[0]
        assert item.state == model.state
        assert item.args["amount"] == model.amount
        assert approval.version == model.version
        assert item.tier == ("escalate" if model.is_escalated else "approve")
        assert {vote.by.user for vote in item.votes} == set(map(user, model.votes))
