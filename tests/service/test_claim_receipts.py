"""A claim is granted on signed decisions alone, and answered with a receipt."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.approvals.signed_decisions import (
    check_end,
)
from keyturn.gateway.errors import NotVerified, SettingsError
from keyturn.gateway.protocol.receipts import (
    Grant,
    Ledger,
    read_receipt,
    verify_receipt,
)
from keyturn.gateway.protocol.records import Effect
from keyturn.gateway.protocol.run_context import one_write
from keyturn.gateway.protocol.wire import InDoubt
from keyturn.gateway.service.run.proving import calls_under
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring, Role
from tests.service.decided_calls import (
    REQUEST,
    claimed,
    decided,
    gateway_keys,
    receipt_of,
    two_of_two,
)
from tests.service.harness import (
    ANA,
    ServiceHarness,
    claim_of,
)


class Unused(Ledger):
    """Knows no receipt."""

    def use(self, jti: str, expires_at_s: int) -> bool:
        """Take every receipt for a new one."""
        return bool(jti) and expires_at_s > 0


async def test_a_claim_is_answered_with_a_receipt_that_its_tool_verifies(
    harness: ServiceHarness,
) -> None:
    claim = await decided(harness)

    found = await claimed(harness, claim)

    item = await harness.item(claim.item_id)
    receipt = verify_receipt(
        found.receipt,
        tool="process_refund",
        args={"amount": 120},
        keys=gateway_keys(harness),
        audience="support",
        ledger=Unused(),
        now_s=item.changed_at_ms / 1000,
        needs_people=True,
    )
    assert receipt.decision is Grant.APPROVE
    assert (receipt.approval, receipt.item) == (
        approval_of(claim.item_id)[0],
        claim.item_id,
    )
    assert receipt.idempotency_key == found.idempotency_key
    assert receipt.effect is Effect.IRREVERSIBLE
    assert receipt.exp - receipt.iat == 900
    [approver] = receipt.approvers
    assert (approver.user, approver.role) == ("U0ANA", "support")
    assert approver.slack_request == REQUEST


async def test_an_edit_is_in_the_receipt_and_only_the_edited_call_runs(
    harness: ServiceHarness,
) -> None:
    claim = await decided(harness, Edit(args={"amount": 60}))

    found = await claimed(harness, claim)

    receipt, digest = read_receipt(found.receipt, gateway_keys(harness))
    assert digest == found.action_hash
    assert receipt.decision is Grant.EDIT
    assert receipt.edit == ({"op": "replace", "path": "/amount", "value": 60},)
    assert found.edit
    assert receipt.original == found.edit.original_hash


async def test_every_approver_is_in_the_receipt_or_that_the_policy_let_it_run(
    harness: ServiceHarness,
) -> None:
    receipt = await receipt_of(harness, await two_of_two(harness))
    assert [one.user for one in receipt.approvers] == ["U0ANA", "U0CHLOE"]
    assert receipt.tier == "escalate"
    harness.put_policy(("look_up_order: {tier: auto}", "look_up: {tier: notify}"))
    ref, verdicts = await harness.submit(("look_up", {}))
    receipt = await receipt_of(harness, claim_of(ref, verdicts[0]))
    assert (receipt.decision, receipt.approvers) == (Grant.POLICY, ())


async def test_the_policy_names_who_runs_a_tool_and_what_it_does(
    harness: ServiceHarness,
) -> None:
    harness.put_policy(
        (
            "process_refund: {tier: approve}",
            "process_refund: {tier: approve, audience: payments, effect: reversible}",
        )
    )

    receipt = await receipt_of(harness, await decided(harness))

    assert (receipt.aud, receipt.effect) == ("payments", Effect.REVERSIBLE)


async def test_the_same_claim_has_one_receipt_and_another_attempt_its_id(
    harness: ServiceHarness,
) -> None:
    claim = await decided(harness)

    with one_write():
        first, again = [await claimed(harness, claim) for _ in range(2)]
    assert first.receipt == again.receipt
    await harness.agents.release(claim.item_id, first.fence)
    other = await receipt_of(harness, claim.with_(owner="worker-2"))

    before, _ = read_receipt(first.receipt, gateway_keys(harness))
    assert (before.attempt, other.attempt) == (1, 2)
    assert before.jti == other.jti


async def test_a_claim_that_is_asked_for_again_has_no_receipt_once_it_is_frozen(
    harness: ServiceHarness,
) -> None:
    claim, write = await decided(harness), dict[str, str]()
    with one_write(write):
        await claimed(harness, claim)

    scope = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
    await harness.reviews.freezes.freeze(scope, "T0/U0BEN", "stop")

    # It may have begun, so it is not refused as if it had not.
    with one_write(write):
        assert await harness.agents.claim(claim) == InDoubt()


async def test_each_decision_is_signed_and_says_what_was_seen(
    harness: ServiceHarness,
) -> None:
    assert harness.store.keyring
    keys = harness.store.keyring.verifying(Role.BOT)
    for decision in (Reject(reason="no"), Respond(message="ask Bob")):
        claim = await decided(harness, decision)
        approval = await harness.approval(claim.item_id)
        [item] = approval.items
        check_end(approval, item, keys)
        assert item.decision
        assert item.decision.signed
        assert item.decision.signed.request == REQUEST
        assert item.decision.signed.policy == harness.policy.digest
        assert item.decision.signed.roles == ("support",)
        said = item.decision.with_(text="yes")
        with pytest.raises(NotVerified, match="signature_wrong"):
            check_end(approval, item.with_(decision=said), keys)


async def test_no_receipt_is_issued_by_a_process_without_the_key(
    harness: ServiceHarness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    claim = await decided(harness)
    known = harness.store.keyring
    assert known
    harness.store.keyring = Keyring(
        tmp_path_factory.mktemp("empty"),
        known={Role.BOT: [key.text for key in known.verifying(Role.BOT)]},
    )

    with pytest.raises(SettingsError, match="keyturn keys create gateway"):
        await harness.agents.claim(claim)


async def test_a_process_that_is_no_bot_decides_nothing(
    harness: ServiceHarness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    click, _ = await harness.refund()
    harness.store.keyring = Keyring(tmp_path_factory.mktemp("empty"))

    with pytest.raises(SettingsError, match="keyturn keys create bot"):
        await harness.reviews.decide(click, Approve(), ANA)
    assert (await harness.item(f"{click.approval}.0")).is_pending


async def test_without_keys_nothing_is_signed_or_verified(
    harness: ServiceHarness,
) -> None:
    harness.store.keyring = None

    found = await claimed(harness, await decided(harness))

    assert found.receipt == ""


# It is known how many calls a signing key still has to verify.


async def test_calls_that_wait_under_a_key_are_counted(store: Store) -> None:
    harness = ServiceHarness(store)
    assert store.keyring is not None
    key_id = store.keyring.signing(Role.BOT).public.id.hex()
    ref, verdicts = await harness.submit(
        ("process_refund", {"amount": 1}), ("process_refund", {"amount": 2})
    )

    async def counted(role: Role = Role.BOT, of: str = key_id) -> int:
        return await calls_under(store, "default", role, of)

    assert await counted() == 0
    for verdict in verdicts:
        await harness.decide(verdict, Approve())
    assert await counted() == len(verdicts)
    assert await counted(of=f"{key_id}0") == await counted(Role.AUDIT) == 0
    assert await counted(Role.GATEWAY) == 0

    await harness.agents.claim(claim_of(ref, verdicts[0]))
    assert await counted(Role.GATEWAY) == 1
    assert await counted() == len(verdicts)
