"""Build approvals for tests in one line."""

from __future__ import annotations

from collections.abc import Sequence

from keyturn.gateway.approvals.changes import Change
from keyturn.gateway.approvals.deciding import decide, no_such_item
from keyturn.gateway.approvals.decisions import (
    AccountKind,
    CallNow,
    Click,
    Decision,
    Forbidden,
    Outcome,
    Reviewer,
)
from keyturn.gateway.approvals.policy_decision import PolicyDecision
from keyturn.gateway.approvals.record import Approval, Context, Item, item_id
from keyturn.gateway.approvals.requirement import Requirement, Role
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.records import Person, Tier, Verb
from keyturn.gateway.protocol.strict_json import JsonObject

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
APPROVAL_ID = "ap_default_" + "ab" * 16
ANA = Person(team="T0", user="U0ANA", name="Ana")
BEN = Person(team="T0", user="U0BEN", name="Ben")
CHLOE = Person(team="T0", user="U0CHLOE", name="Chloé")
DAN = Person(team="T0", user="U0DAN", name="Dan")
EVE = Person(team="T0", user="U0EVE", name="Eve")
SUPPORT = Role(name="support", users=("U0ANA", "U0BEN", "U0DAN"))
SENIOR = Role(name="senior", users=("U0CHLOE",))
ONE_SENIOR = Requirement(approvals=1, of=(SENIOR,))
ONE = Requirement(approvals=1, of=(SUPPORT,))
TWO = Requirement(approvals=2, of=(SUPPORT, SENIOR), also=(ONE_SENIOR,))
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "amount": {"type": "number", "exclusiveMinimum": 0},
    },
    "required": ["order_id", "amount"],
}


def an_item(
    index: int = 0,
    *,
    args: JsonObject | None = None,
    requirement: Requirement = ONE,
    tier: Tier = Tier.APPROVE,
    requires_reason: tuple[Verb, ...] = (),
    schema: JsonObject | None = SCHEMA,
    allow: tuple[Verb, ...] = tuple(Verb),
) -> Item:
    """Return a pending refund of 899 for order 78291."""
    ctx = Context(
        tenant="default",
        agent="support",
        thread="t1",
        ns="",
        message_id="m1",
        tool_call_id=f"call_{index}",
    )
    document = digest.action_document(
        tool="process_refund",
        args=args or {"order_id": "78291", "amount": 899},
        ctx=ctx.as_dict(),
        salt=f"{index:032x}",
    )
    return Item(
        id=item_id(APPROVAL_ID, index),
        index=index,
        ctx=ctx,
        tool="process_refund",
        tier=tier,
        allow=allow,
        requirement=requirement,
        requested=document,
        action=document,
        args_schema=schema,
        requires_reason=requires_reason,
    )


def an_approval(*items: Item) -> Approval:
    """Return an open approval asked for by Dan, due in an hour."""
    return Approval(
        id=APPROVAL_ID,
        tenant="default",
        agent="support",
        thread="t1",
        message_id="m1",
        channel="C0APPROVALS",
        created_at_ms=NOW_MS,
        expires_at_ms=NOW_MS + HOUR_MS,
        ttl_ms=HOUR_MS,
        requester=DAN,
        principals=(DAN,),
        policy_digest="sha256:" + "0" * 64,
        items=items or (an_item(),),
    )


def reviewer(person: Person, account: AccountKind = AccountKind.MEMBER) -> Reviewer:
    """Return a person as the bot resolves them."""
    return Reviewer(
        team=person.team, user=person.user, name=person.name, account=account
    )


def click_on(approval: Approval, index: int = 0) -> Click:
    """Return a click on an item in its current version."""
    return Click(
        approval=approval.id,
        index=index,
        version=approval.version,
        action_hash=approval.items[index].action_hash,
    )


def evaluation(
    tier: Tier = Tier.APPROVE, requirement: Requirement = ONE, **more: object
) -> PolicyDecision:
    """Return what a policy of this moment says about a call."""
    return PolicyDecision(
        tier=tier, requirement=requirement, policy_digest="sha256:1"
    ).with_(**more)


def pinned(approval: Approval, index: int = 0) -> PolicyDecision:
    """Return what the policy says that opened the approval."""
    item = approval.items[index]
    return PolicyDecision(**item.kept, policy_digest=approval.policy_digest)


def say(
    approval: Approval,
    decision: Decision,
    by: Person | Reviewer = ANA,
    *,
    click: Click | None = None,
    now_ms: int = NOW_MS,
    policy_now: PolicyDecision | None = None,
    waiting_now: PolicyDecision | None = None,
    voters: Sequence[Reviewer] | None = None,
) -> Change | Outcome:
    """Decide; earlier voters are still members, unless others are given."""
    before = [vote.by for item in approval.items for vote in item.votes]
    seen = click or click_on(approval)
    return no_such_item(approval, seen) or decide(
        approval,
        seen,
        decision,
        reviewer(by) if isinstance(by, Person) else by,
        now_ms=now_ms,
        now=CallNow(
            policy_now or pinned(approval, seen.index),
            tuple(map(reviewer, before)) if voters is None else voters,
            waiting_now,
        ),
    )


def changed(result: object) -> Change:
    """Return a change; fail for a refusal."""
    assert isinstance(result, Change), result
    return result


def left(result: object) -> Item:
    """Return the first call of an approval, as a change leaves it."""
    return changed(result).approval.items[0]


def forbidden(result: object) -> str:
    """Return why something is forbidden."""
    assert isinstance(result, Forbidden), result
    return result.reason
