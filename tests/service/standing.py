"""A harness whose policy allows standing approvals for refunds, and a reviewer."""

from __future__ import annotations

from datetime import timedelta

from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import Approve, Click, Outcome, Reviewer
from keyturn.gateway.approvals.record import Approval
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.rules import Policy
from keyturn.gateway.policy.standing import Chosen
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, POLICY, ServiceHarness, still_members

ALLOWING = POLICY.replace(
    "  process_refund: {tier: approve}\n",
    """  process_refund:
    tier: approve
    same_by: args.order
    allow_similar:
      within: 8h
      uses: 10
      sum: args.amount
      at_most: 500
      may_differ: [args.order, args.note]
    raise:
      - {when: args.amount > 200, to: escalate, because: over 200}
      - {when: args.amount > 100, needs: senior, because: over 100}
  restart: {tier: approve, allow_similar: {within: 1h, uses: 3}}
""",
)
LASTING = timedelta(hours=1)


def allowing_policy() -> Policy:
    """Return the policy of these tests."""
    return load_policy(ALLOWING, "policy.yml")


def allowing(store: Store) -> ServiceHarness:
    """Return a harness under it."""
    return ServiceHarness(store, allowing_policy())


def refund(amount: JsonValue, order: str, **more: JsonValue) -> tuple[str, JsonObject]:
    """Return a refund of a customer's order."""
    args = {"customer": "c1", "amount": amount, "order": order, **more}
    return "process_refund", args


def chosen(
    uses: int = 10,
    each: int = 100,
    total: int = 500,
    lasting: timedelta = LASTING,
) -> Chosen:
    """Return a person's choices, amounts in whole units."""
    return Chosen(
        lasting=lasting, uses=uses, each_micro=each * 10**6, total_micro=total * 10**6
    )


async def proposed(
    harness: ServiceHarness,
    call: tuple[str, JsonObject] | None = None,
    what: Chosen | None = None,
    by: Reviewer = ANA,
    *,
    thread: str = "first",
) -> Approval:
    """Ask for one call, and propose to allow similar ones."""
    _, (verdict,) = await harness.submit(call or refund(20, "first"), thread=thread)
    approval = await harness.approval(verdict.item_id)
    found = await harness.reviews.standing.propose(approval, 0, what or chosen(), by)
    assert isinstance(found, Approval), found
    return found


async def approve(
    harness: ServiceHarness, standing: Approval, by: Reviewer = ANA
) -> Outcome:
    """Vote for a standing approval."""
    item = standing.items[0]
    click = Click(
        approval=standing.id, index=0, version=1, action_hash=item.action_hash
    )
    return await harness.reviews.decide(click, Approve(), by, voters=still_members)


async def allowed(
    harness: ServiceHarness,
    call: tuple[str, JsonObject] | None = None,
    what: Chosen | None = None,
    by: Reviewer = ANA,
    *,
    thread: str = "first",
) -> Approval:
    """Ask for one call, and allow similar ones; return the standing approval."""
    standing = await proposed(harness, call, what, by, thread=thread)
    outcome = await approve(harness, standing, by)
    assert outcome.kind == "decided", outcome
    return await standing_now(harness, standing)


async def standing_now(harness: ServiceHarness, standing: Approval) -> Approval:
    """Return a standing approval in its current version."""
    found = await harness.reviews.standing.read(standing.id)
    assert found
    return found.approval
