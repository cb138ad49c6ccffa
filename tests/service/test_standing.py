"""A standing approval opens similar calls authorized, and no others."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from keyturn.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Decision,
    Edit,
    Forbidden,
    Reject,
    Reviewer,
)
from keyturn.gateway.approvals.events import STANDING, EventName
from keyturn.gateway.approvals.past_calls import PastCalls
from keyturn.gateway.approvals.quality_checks import TOOK_PART, is_drawn
from keyturn.gateway.approvals.record import Approval, Item, approval_of
from keyturn.gateway.approvals.similar import STANDING_AGENT
from keyturn.gateway.approvals.standing import (
    FROZEN,
    POLICY_CHANGED,
    REJECTED,
    RESTORED,
    REVOKED,
    ROLE_LOST,
    left_of,
)
from keyturn.gateway.config import PolicySource
from keyturn.gateway.errors import StoreUnavailable
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy.standing import Offer
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.protocol.digest import BusinessState
from keyturn.gateway.protocol.records import ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    ClaimRequest,
    ProposedCall,
    Refused,
    Turn,
    TurnRef,
    Verdict,
    VerdictKind,
)
from keyturn.gateway.resume.langgraph_local import Runners
from keyturn.gateway.resume.recovery import Recovery
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.service.harness import ANA, BEN, CHLOE, EVE, ServiceHarness, claim_of
from tests.service.standing import (
    ALLOWING,
    allowed,
    allowing,
    approve,
    chosen,
    proposed,
    refund,
    standing_now,
)
from tests.service.test_triage import desk_with, saying


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return allowing(store)


async def asked(
    harness: ServiceHarness, *calls: tuple[str, JsonObject], thread: str = "next"
) -> tuple[Verdict, ...]:
    return (await harness.submit(*calls, thread=thread))[1]


async def is_covered(
    harness: ServiceHarness, call: tuple[str, JsonObject], thread: str = "next"
) -> bool:
    (verdict,) = await asked(harness, call, thread=thread)
    return verdict.kind is VerdictKind.RUN


async def test_a_similar_call_runs_once_unasked(harness: ServiceHarness) -> None:
    standing = await allowed(harness)

    ref, (verdict,) = await harness.submit(refund(30, "o2"), thread="next")

    assert (verdict.kind, verdict.tier) == (VerdictKind.RUN, Tier.APPROVE)
    item = await harness.item(verdict.item_id)
    assert item.state is ItemState.AUTHORIZED
    assert item.cover
    assert item.cover.approval == standing.id
    claim = claim_of(ref, verdict)
    await harness.ran(claim)
    again = await harness.agents.claim(claim.with_(owner="worker-2"))
    assert again.kind == "done"
    assert left_of(await standing_now(harness, standing)) == (9, 470 * 10**6)


async def test_each_use_names_its_giver_and_the_rest(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    (verdict,) = await asked(harness, refund(30, "o2"))

    found = await harness.audited(EventName.ITEM_AUTHORIZED, EventName.APPROVAL_USED)

    decided = next(one for one in found if one.item == verdict.item_id)
    assert decided.actor == "T0/U0ANA"
    assert decided.data == {
        STANDING: standing.id,
        "given_by": "T0/U0ANA",
        "uses_left": "9",
        "total_left": "470",
    }
    used = next(one for one in found if one.name is EventName.APPROVAL_USED)
    assert (used.approval, used.data["item"]) == (standing.id, verdict.item_id)


async def test_a_call_outside_of_the_bounds_goes_to_people(
    harness: ServiceHarness,
) -> None:
    await allowed(harness)

    assert not await is_covered(harness, refund(30, "o2", customer="c2"))


async def test_the_strictest_givers_cover_every_call(harness: ServiceHarness) -> None:
    standing = await proposed(harness, refund(150, "first"), chosen(each=200))

    first = await approve(harness, standing, ANA)
    assert not await is_covered(harness, refund(150, "o2"))
    second = await approve(harness, standing, CHLOE)

    assert (first.kind, second.kind) == ("voted", "decided")
    assert await is_covered(harness, refund(150, "o3"))


async def test_a_use_that_never_runs_counts(harness: ServiceHarness) -> None:
    standing = await allowed(harness, what=chosen(uses=1))
    (verdict,) = await asked(harness, refund(1, "o1"))

    await harness.agents.withdraw_items(frozenset({verdict.item_id}))

    assert (await harness.item(verdict.item_id)).state is ItemState.WITHDRAWN
    assert left_of(await standing_now(harness, standing))[0] == 0
    assert not await is_covered(harness, refund(1, "o2"))


async def test_the_same_turn_again_uses_nothing_more(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    for _ in range(3):
        _, (verdict,) = await harness.submit(
            refund(5, "o1"), thread="next", message_id="m"
        )
        assert verdict.kind is VerdictKind.RUN

    assert left_of(await standing_now(harness, standing))[0] == 9


async def test_the_same_effect_again_goes_to_people(harness: ServiceHarness) -> None:
    await allowed(harness)

    first, second = await asked(harness, refund(5, "o1"), refund(6, "o1"))
    third = await is_covered(harness, refund(7, "o1"), thread="other")

    assert (first.kind, second.kind) == (VerdictKind.RUN, VerdictKind.HOLD)
    assert not third


async def test_equal_arguments_may_be_required(harness: ServiceHarness) -> None:
    call: tuple[str, JsonObject] = ("restart", {"service": "web"})
    await allowed(harness, call, chosen(uses=2, each=0, total=0))

    verdicts = await asked(harness, call, call, call)

    kinds = [verdict.kind for verdict in verdicts]
    assert kinds == [VerdictKind.RUN] * 2 + [VerdictKind.HOLD]
    assert not await is_covered(harness, ("restart", {"service": "db"}), "other")
    approval = await harness.approval(verdicts[2].item_id)
    offer = harness.reviews.standing.offer(approval, 0)
    assert isinstance(offer, Offer)
    assert offer.may_repeat


async def test_another_agent_or_a_state_is_not_covered(harness: ServiceHarness) -> None:
    await allowed(harness)
    tool, args = refund(5, "o1")
    ref = TurnRef(agent="support", thread="s", message_id="m")
    state = BusinessState(value={"version": 1})
    call = ProposedCall(tool=tool, args=args, tool_call_id="c", state=state)

    (held,) = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
    _, (other,) = await harness.submit(refund(5, "o2"), agent="ops")

    assert (held.kind, other.kind) == (VerdictKind.HOLD, VerdictKind.HOLD)


async def test_what_triage_wants_people_to_see_is_not_covered(store: Store) -> None:
    text = ALLOWING.replace("restart: {tier: approve,", "restart: {tier: notify,")
    text = text.replace(
        "allow_similar: {within: 1h, uses: 3}}",
        "triage: {timeout: 20s, tiers: [notify]}, "
        "allow_similar: {within: 1h, uses: 3}}",
    )
    harness = desk_with(store, saying("approve", 90, "Odd."), text)
    call: tuple[str, JsonObject] = ("restart", {"service": "web"})
    await allowed(harness, call, chosen(uses=2, each=0, total=0))

    (verdict,) = await asked(harness, call)

    assert (verdict.kind, verdict.tier) == (VerdictKind.HOLD, Tier.APPROVE)


async def test_a_standing_approval_is_never_claimed(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    item = standing.items[0]
    ref = TurnRef(
        agent=STANDING_AGENT, thread=standing.thread, message_id=standing.message_id
    )

    reply = await harness.agents.claim(
        ClaimRequest(
            item_id=item.id,
            ref=ref,
            tool=item.tool,
            tool_call_id=item.ctx.tool_call_id,
            owner="0" * 32,
        )
    )

    assert isinstance(reply, Refused)


async def test_a_proposal_brings_no_agent_back(harness: ServiceHarness) -> None:
    before = await harness.jobs()
    standing = await allowed(harness)
    await harness.lapsed(standing.items[0].id)
    await harness.sweeper.sweep()

    assert (await standing_now(harness, standing)).items[0].state is ItemState.LAPSED
    assert await harness.jobs() == before
    assert not await is_covered(harness, refund(5, "o1"))


# A standing approval covers nothing that people rejected, or triage could not see.


async def test_a_call_that_people_rejected_before_is_not_covered(store: Store) -> None:
    harness = allowing(store)
    _, (verdict,) = await harness.submit(refund(30, "o9"), thread="monday")
    outcome = await harness.decide(verdict, Reject(reason="fraud"), BEN)
    assert outcome.kind == "decided"
    await allowed(harness)

    _, (again,) = await harness.submit(refund(30, "o9"), thread="tuesday")

    assert again.kind is VerdictKind.HOLD


# A call under a standing approval is spot checked by a person who did not give it.

CHECKED = f"{ALLOWING}spot_checks: {{share: 99%, of: [support]}}\n"


@pytest.fixture
def checked(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(CHECKED, "policy.yml"))


async def ran(checked: ServiceHarness) -> Item:
    """Run a covered call with a drawn check."""
    for number in range(10):
        ref, (verdict,) = await checked.submit(
            refund(1, f"o{number}"), thread=f"t{number}"
        )
        item = await checked.item(verdict.item_id)
        assert item.cover
        if is_drawn(item, 99):
            await checked.ran(claim_of(ref, verdict))
            return await checked.item(item.id)
    raise AssertionError("10 calls in a row were not drawn")


async def test_a_person_who_gave_it_is_not_asked(checked: ServiceHarness) -> None:
    standing = await allowed(checked)
    item = await ran(checked)
    assert item.is_to_be_checked

    approval_id, index = approval_of(item.id)
    checks = checked.reviews.spot_checks
    own = await checks.answer(approval_id, index, ANA, is_right=True)
    other = await checks.answer(approval_id, index, BEN, is_right=False)

    assert (own, other) == (TOOK_PART, "")
    entries = await checked.audited()
    [entry] = [one for one in entries if one.name is EventName.ITEM_CHECKED]
    assert entry.data[STANDING] == standing.id


# What ends a standing approval, and what its calls may do then.

TOOL = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
SCOPES = [
    TOOL,
    FreezeScope(kind=ScopeKind.AGENT, name="support"),
    FreezeScope(kind=ScopeKind.TENANT),
]


async def end_of(harness: ServiceHarness, standing: Approval) -> str:
    item = (await standing_now(harness, standing)).items[0]
    assert item.revoked
    assert item.revoked.is_final
    return item.revoked.reason


async def test_its_people_and_its_givers_revoke_it(harness: ServiceHarness) -> None:
    standing = await allowed(harness)

    refused = await harness.reviews.standing.revoke(standing.id, EVE)
    done = await harness.reviews.standing.revoke(standing.id, BEN)
    again = await harness.reviews.standing.revoke(standing.id, BEN)

    assert isinstance(refused, Forbidden)
    assert (done, again) == (True, False)
    assert await end_of(harness, standing) == REVOKED
    assert not await is_covered(harness, refund(5, "o1"))


async def test_a_revocation_ends_unstarted_calls(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    ref, (verdict,) = await harness.submit(refund(5, "o1"), thread="next")
    await harness.reviews.standing.revoke(standing.id, ANA)

    reply = await harness.agents.claim(claim_of(ref, verdict))

    assert isinstance(reply, Refused)
    assert "standing approval" in reply.reason
    assert (await harness.item(verdict.item_id)).state is ItemState.LAPSED


@pytest.mark.parametrize("scope", SCOPES, ids=str)
async def test_a_freeze_ends_it_for_good(
    harness: ServiceHarness, scope: FreezeScope
) -> None:
    standing = await allowed(harness)
    await harness.reviews.freezes.freeze(scope, "T0/U0ANA", "stop")
    await harness.reviews.freezes.unfreeze(scope, "T0/U0ANA")

    assert await end_of(harness, standing) == FROZEN
    assert not await is_covered(harness, refund(5, "o1"))


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (RuntimeError(), pytest.raises(RuntimeError)),
        # The freeze counts although the store fails after it.
        (StoreUnavailable("It does not answer."), nullcontext()),
    ],
    ids=["bug", "outage"],
)
async def test_a_freeze_that_was_cut_off_ends_it_when_it_is_lifted(
    harness: ServiceHarness,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    is_told: AbstractContextManager[object],
) -> None:
    standing, service = await allowed(harness), harness.reviews.freezes

    async def cut_off(_scope: FreezeScope) -> None:
        raise error

    with monkeypatch.context() as patched, is_told:
        patched.setattr(service, "_end_standing", cut_off)
        assert await service.freeze(TOOL, "T0/U0ANA", "stop")
    assert not await is_covered(harness, refund(5, "o1"))
    await service.unfreeze(TOOL, "T0/U0ANA")

    assert await end_of(harness, standing) == FROZEN
    assert not await is_covered(harness, refund(5, "o2"))


async def test_another_policy_ends_it_for_good(harness: ServiceHarness) -> None:
    standing = await allowed(harness)
    before = harness.policy
    harness.put_policy(("uses: 10", "uses: 11"), of=ALLOWING)
    assert not await is_covered(harness, refund(5, "o1"))
    harness.policy = before

    assert await end_of(harness, standing) == POLICY_CHANGED
    assert not await is_covered(harness, refund(5, "o2"))


@pytest.mark.parametrize(("amount", "who"), [(20, BEN), (499, CHLOE)])
async def test_a_rejection_of_a_similar_call_ends_it(
    harness: ServiceHarness, amount: int, who: Reviewer
) -> None:
    standing = await allowed(harness, what=chosen(each=10))
    _, (verdict,) = await harness.submit(refund(amount, "o1"), thread="next")
    await harness.decide(verdict, Reject(reason="no"), who)

    assert await end_of(harness, standing) == REJECTED


@pytest.mark.parametrize(
    ("ana", "ends"),
    [
        (ANA.with_(account=AccountKind.UNKNOWN), False),
        (ANA.with_(account=AccountKind.DEACTIVATED), True),
        # Slack was not asked about her.
        (EVE, False),
    ],
)
async def test_a_role_that_is_lost_ends_it(
    harness: ServiceHarness, ana: Reviewer, *, ends: bool
) -> None:
    standing = await allowed(harness)

    await harness.reviews.standing.confirm(standing, [ana], asked_ms=1)

    item = (await standing_now(harness, standing)).items[0]
    assert (item.state is ItemState.LAPSED) is ends
    if ends:
        assert await end_of(harness, standing) == ROLE_LOST


async def test_a_restored_policy_ends_it(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "policy.yml"
    file.write_text(ALLOWING)
    policy = PolicyFile(PolicySource(path=file))
    harness = ServiceHarness(store, policy())
    standing = await allowed(harness)
    other = ALLOWING.replace("uses: 10", "uses: 11")

    async with followed(policy, store, tenant="default", every_s=0.02):
        assert await is_covered(harness, refund(5, "o1"))
        file.write_text(other)
        await eventually(lambda: _is_in_force(policy, other))
        file.write_text(ALLOWING)
        await eventually(lambda: _is_in_force(policy, ALLOWING))

    assert await end_of(harness, standing) == POLICY_CHANGED
    assert not await is_covered(harness, refund(5, "o2"))


async def _is_in_force(policy: PolicyFile, text: str) -> bool:
    return policy().digest == load_policy(text, "policy.yml").digest


async def test_a_restored_store_ends_it(harness: ServiceHarness) -> None:
    standing = await allowed(harness)

    await Recovery(harness.store, Runners({}, InMemorySaver())).doubt_all()

    assert await end_of(harness, standing) == RESTORED
    assert not await is_covered(harness, refund(5, "o1"))


# Before people allow similar calls, they see how such calls were decided so far.


MICRO = 10**6


async def decided(
    harness: ServiceHarness,
    decision: Decision | None,
    *amounts: int,
    **more: str,
) -> None:
    """Ask for refunds of these amounts, and decide each."""
    for amount in amounts:
        thread = f"{decision and decision.kind} {amount} {more}"
        call = refund(amount, thread, **more)
        _, [verdict] = await harness.submit(call, thread=thread)
        if decision is not None:
            await harness.decide(verdict, decision)


async def past(harness: ServiceHarness, amount: int = 20) -> PastCalls:
    """Ask for another refund, and look back from it."""
    _, [verdict] = await harness.submit(refund(amount, "now"), thread="now")
    approval = await harness.approval(verdict.item_id)
    standing = harness.reviews.standing
    offer = standing.offer(approval, 0)
    assert isinstance(offer, Offer)
    return await standing.past(approval, 0, offer, entries=1_000)


async def test_the_largest_approved_amount_is_proposed(harness: ServiceHarness) -> None:
    await decided(harness, Approve(), 10, 90)

    found = await past(harness)

    assert found == PastCalls(decided=2, within=2, each_micro=90 * MICRO)
    assert found.is_usual


async def test_corrections_in_the_bounds_are_counted(harness: ServiceHarness) -> None:
    await decided(harness, Approve(), 30, 40)
    await decided(harness, Reject(), 35, 95)
    [edited] = (await harness.submit(refund(25, "edited"), thread="edited"))[1]
    await harness.decide(edited, Edit(args=refund(5, "edited")[1]))

    found = await past(harness)

    assert found == PastCalls(decided=5, within=4, corrected=2, each_micro=40 * MICRO)
    assert not found.is_usual


async def test_undecided_or_other_calls_do_not_count(harness: ServiceHarness) -> None:
    await decided(harness, Approve(), 30)
    await decided(harness, None, 31)
    await decided(harness, Approve(), 32, customer="c2")

    found = await past(harness)

    assert (found.decided, found.within) == (2, 1)
    assert not found.is_usual


async def test_calls_within_the_bounds_are_covered(harness: ServiceHarness) -> None:
    amounts = [5, 20, 60, 99, 100, 101, 150, 199]
    await decided(harness, Approve(), *amounts)
    found = await past(harness)

    await allowed(harness, what=chosen(each=found.each_micro // MICRO))
    again = [
        (await harness.submit(refund(amount, f"again {amount}"), thread=f"a{amount}"))[
            1
        ]
        for amount in amounts
    ]

    # A senior is needed above 100, so those calls are neither decided nor covered.
    covered = sum(verdict.kind is VerdictKind.RUN for [verdict] in again)
    assert (found.decided, found.within, covered) == (5, 5, 5)


async def test_no_audit_folder_means_no_past_calls(harness: ServiceHarness) -> None:
    await decided(harness, Approve(), 30, 40)
    key = harness.keys.audit_tree
    # As after a gateway moved entries into its files.
    moved = "9999999999999-0"
    await harness.store.conn.command("HSET", key, "moved", "1", "last", moved)

    found = await past(harness)

    assert found == PastCalls(each_micro=20 * MICRO)
