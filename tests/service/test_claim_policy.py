"""A claim is granted by signed decisions and the current policy, with a receipt."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from keyturn.bot.cards.states import status_sentence
from keyturn.gateway.approvals.decisions import (
    Approve,
    Edit,
    Expired,
    GestureRefused,
    Reject,
    Respond,
)
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import Approval, approval_of
from keyturn.gateway.approvals.resume_value import answer_for
from keyturn.gateway.approvals.revoking import FORBIDDEN, NEEDS_MORE
from keyturn.gateway.approvals.signed_decisions import check_end
from keyturn.gateway.config import PolicySource
from keyturn.gateway.errors import NotVerified, SettingsError
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.protocol.receipts import (
    Grant,
    Ledger,
    read_receipt,
    verify_receipt,
)
from keyturn.gateway.protocol.records import Effect, ItemState, Tier
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    AnswerKind,
    Claimed,
    InDoubt,
    Refused,
    Reopened,
)
from keyturn.gateway.service.people.queue import dead_ends
from keyturn.gateway.service.run.proving import calls_under
from keyturn.gateway.store.connection.connection import text
from keyturn.gateway.store.limits.freezes import FreezeScope, ScopeKind
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Keyring, Role
from tests.conftest import eventually
from tests.service.decided_calls import (
    REQUEST,
    decided,
    gateway_keys,
    receipt_of,
    two_of_two,
)
from tests.service.harness import (
    ANA,
    BEN,
    POLICY,
    ServiceHarness,
    claim_of,
)
from tests.store_secrets import SECRETS

REFUND = "process_refund: {tier: approve}"
SUPPORT = "support: {users: [U0ANA, U0BEN, U0DAN]}"
RAISING = "raise: [{to: escalate, when: args.amount > 500, because: large}]"


async def test_a_newly_forbidden_call_ends(harness: ServiceHarness) -> None:
    claim = await harness.approved()
    harness.put_policy((REFUND, "process_refund: {tier: deny}"))

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Refused)
    assert reply.reason == f"{FORBIDDEN[:-1]}, so the call did not run."
    item = await harness.item(claim.item_id)
    assert item.state is ItemState.LAPSED
    [event] = await harness.announced(EventName.ITEM_LAPSED)
    assert (event.reason, event.actor) == (FORBIDDEN, "keyturn")
    assert event.policy_digest == harness.policy.digest
    answer = answer_for(item)
    assert answer
    assert answer.message == reply.reason
    assert await harness.agents.claim(claim) == reply, "and it stays so"


async def test_what_needs_more_people_at_the_claim_goes_back_to_them(
    harness: ServiceHarness,
) -> None:
    claim = await harness.approved()
    before = await harness.approval(claim.item_id)
    harness.put_policy((REFUND, f"{REFUND[:-1]}, {RAISING}}}"))

    reply = await harness.agents.claim(claim)

    assert reply == Reopened(reason=NEEDS_MORE)
    after = await harness.approval(claim.item_id)
    item = after.items[0]
    assert item.state is ItemState.PENDING
    assert item.decision is None
    assert after.version == before.version + 1
    assert after.expires_at_ms >= before.expires_at_ms
    [event] = await harness.announced(EventName.ITEM_REOPENED)
    assert (event.reason, event.actor) == (NEEDS_MORE, "keyturn")
    assert await harness.agents.claim(claim) == reply, (
        "it waits, and is asked about again"
    )


async def test_an_edited_call_runs_as_edited(harness: ServiceHarness) -> None:
    click, claim = await harness.refund()
    await harness.reviews.decide(click, Edit(args={"amount": 5}, reason="less"), ANA)
    harness.put_policy((SUPPORT, "support: {users: [U0BEN, U0DAN]}"))
    assert isinstance(await harness.agents.claim(claim), Reopened)

    await harness.decide(claim.item_id, Approve(), BEN)
    answer = answer_for(await harness.item(claim.item_id))
    reply = await harness.agents.claim(claim)

    assert answer
    assert (answer.type, answer.args) == (AnswerKind.EDIT, {"amount": 5})
    assert isinstance(reply, Claimed)
    assert reply.edit
    assert reply.edit.edited_args == {"amount": 5}


async def test_a_forbidden_call_is_not_repeated(harness: ServiceHarness) -> None:
    ref, (verdict,) = await harness.submit(("send_email", {"to": "ana@example.org"}))
    await harness.decide(verdict, Approve())
    claim = claim_of(ref, verdict)
    assert isinstance(await harness.agents.claim(claim), Claimed)
    await harness.owner_dies(verdict.item_id)
    harness.put_policy(("send_email: {tier: approve", "send_email: {tier: deny"))

    reply = await harness.agents.claim(claim.with_(owner="w2"))

    assert reply.kind == "in_doubt"


async def test_a_call_that_was_given_back_meanwhile_is_evaluated_before_it_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = ServiceHarness(store)
    claim = await harness.approved()
    first = await harness.granted(claim)
    harness.put_policy((REFUND, "process_refund: {tier: deny}"))
    evalsha = store.conn.evalsha
    of_first = Store(store.conn.url, secrets=SECRETS, lease_ms=2000)

    async def given_back_before(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(store.conn, "evalsha", evalsha)
        await ServiceHarness(of_first).agents.release(claim.item_id, first.fence)
        await of_first.close()
        return await evalsha(*args, **options)

    await harness.owner_dies(claim.item_id)
    monkeypatch.setattr(store.conn, "evalsha", given_back_before)
    between = await harness.agents.claim(claim.with_(owner="w2"))
    after = await harness.agents.claim(claim.with_(owner="w2"))

    assert isinstance(between, Refused)
    assert isinstance(after, Refused)


# A claim is granted on signed decisions alone, and answered with a receipt.


class Unused(Ledger):
    """Knows no receipt."""

    def use(self, jti: str, expires_at_s: int) -> bool:
        """Take every receipt for a new one."""
        return bool(jti) and expires_at_s > 0


async def test_a_tool_verifies_the_receipt_of_a_claim(harness: ServiceHarness) -> None:
    claim = await decided(harness)

    found = await harness.granted(claim)

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


async def test_only_the_edited_call_runs(harness: ServiceHarness) -> None:
    claim = await decided(harness, Edit(args={"amount": 60}))

    found = await harness.granted(claim)

    receipt, digest = read_receipt(found.receipt, gateway_keys(harness))
    assert digest == found.action_hash
    assert receipt.decision is Grant.EDIT
    assert receipt.edit == ({"op": "replace", "path": "/amount", "value": 60},)
    assert found.edit
    assert receipt.original == found.edit.original_hash


async def test_a_receipt_names_every_approver(harness: ServiceHarness) -> None:
    receipt = await receipt_of(harness, await two_of_two(harness))
    assert [one.user for one in receipt.approvers] == ["U0ANA", "U0CHLOE"]
    assert receipt.tier == "escalate"
    harness.put_policy(("look_up_order: {tier: auto}", "look_up: {tier: notify}"))
    ref, verdicts = await harness.submit(("look_up", {}))
    receipt = await receipt_of(harness, claim_of(ref, verdicts[0]))
    assert (receipt.decision, receipt.approvers) == (Grant.POLICY, ())


async def test_the_policy_names_executor_and_effect(harness: ServiceHarness) -> None:
    harness.put_policy(
        (
            "process_refund: {tier: approve}",
            "process_refund: {tier: approve, audience: payments, effect: reversible}",
        )
    )

    receipt = await receipt_of(harness, await decided(harness))

    assert (receipt.aud, receipt.effect) == ("payments", Effect.REVERSIBLE)


async def test_a_claims_attempts_share_a_receipt_id(harness: ServiceHarness) -> None:
    claim = await decided(harness)

    first, again = [await harness.granted(claim) for _ in range(2)]
    assert first == again
    await harness.agents.release(claim.item_id, first.fence)
    other = await receipt_of(harness, claim.with_(owner="worker-2"))

    before, _ = read_receipt(first.receipt, gateway_keys(harness))
    assert (before.attempt, other.attempt) == (1, 2)
    assert before.jti == other.jti


async def test_a_frozen_claim_gets_no_second_receipt(harness: ServiceHarness) -> None:
    claim = await decided(harness)
    await harness.granted(claim)

    scope = FreezeScope(kind=ScopeKind.TOOL, name="process_refund")
    await harness.reviews.freezes.freeze(scope, "T0/U0BEN", "stop")

    # It may have begun, so it is not refused as if it had not.
    assert await harness.agents.claim(claim) == InDoubt()


async def test_each_decision_is_signed_as_seen(harness: ServiceHarness) -> None:
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


async def test_nothing_is_signed_without_keys(harness: ServiceHarness) -> None:
    harness.store.keyring = None

    found = await harness.granted(await decided(harness))

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


# A call that is raised has less time to be decided.


HOUR = int(timedelta(hours=1).total_seconds() * 1000)
TEN = int(timedelta(minutes=10).total_seconds() * 1000)
SLACK = 5_000
"""Milliseconds that the test itself may take."""
STRICT = POLICY.replace(
    "{needs: with_senior}",
    "{needs: with_senior, expires_in: 10m}",
).replace(
    "process_refund: {tier: approve}",
    "process_refund:\n    tier: approve\n    raise:\n"
    "      - {to: escalate, when: 'args.amount > 500', because: large}",
)


@pytest.fixture
def strict(store: Store) -> ServiceHarness:
    return ServiceHarness(store, load_policy(STRICT, "policy.yml"))


async def raised(strict: ServiceHarness) -> tuple[Approval, Approval]:
    """Edit a small refund into a large one as Ana; return it before and after."""
    click, claim = await strict.refund(1)
    before = await strict.approval(claim.item_id)
    args = {**before.items[0].args, "amount": 900}
    await strict.reviews.decide(click, Edit(args=args), ANA)
    after = await strict.approval(claim.item_id)
    assert after.items[0].tier is Tier.ESCALATE
    return before, after


async def test_an_edit_that_raises_shortens_the_wait(strict: ServiceHarness) -> None:
    before, after = await raised(strict)

    assert before.expires_at_ms - before.created_at_ms == HOUR
    waits_ms = after.expires_at_ms - before.created_at_ms
    assert TEN <= waits_ms <= TEN + SLACK
    keys, conn = strict.keys, strict.store.conn
    due = await conn.command("ZSCORE", keys.expiry, keys.listed(after.id))
    waits = keys.waiting("support")
    full = await conn.command("ZSCORE", waits, keys.listed(after.id) + b"0")
    assert float(text(due)) == float(text(full)) == after.expires_at_ms


async def beside(strict: ServiceHarness) -> Approval:
    """Edit one of three refunds into a large one as Ana."""
    refund: JsonObject = {"amount": 1}
    _, verdicts = await strict.submit(*[("process_refund", refund)] * 3)
    edit = Edit(args={"amount": 900})
    await strict.decide(verdicts[1], edit)
    return await strict.approval(verdicts[0].item_id)


async def test_one_call_of_a_card_expires_alone(strict: ServiceHarness) -> None:
    approval = await beside(strict)
    keys, conn = strict.keys, strict.store.conn
    # The clock: the raised call is over.
    await conn.transaction(
        ["HSET", keys.head(approval.id), "1:e", 1],
        ["ZADD", keys.expiry, 1, keys.listed(approval.id)],
    )

    assert await strict.sweeper.sweep()

    after = await strict.approval(approval.items[0].id)
    states = [item.state for item in after.items]
    assert states == [ItemState.PENDING, ItemState.EXPIRED, ItemState.PENDING]
    listed = keys.listed(approval.id)
    due = float(text(await conn.command("ZSCORE", keys.expiry, listed)))
    assert due == after.expires_at_ms == approval.created_at_ms + HOUR
    assert not await strict.sweeper.sweep()
    click = await strict.click_on(approval.items[2].id)
    assert (await strict.reviews.decide(click, Approve(), BEN)).kind == "decided"


async def test_an_expired_call_stops_a_click_on_all(strict: ServiceHarness) -> None:
    approval = await beside(strict)
    keys, conn = strict.keys, strict.store.conn
    await conn.command("HSET", keys.head(approval.id), "1:e", 1)
    partition = {item.index: Reject(reason="no") for item in approval.items}

    outcome = await strict.decide_card(approval, partition, BEN)

    assert outcome == GestureRefused(refusals={1: Expired(expires_at_ms=1)})
    after = await strict.approval(approval.items[0].id)
    states = [item.state for item in after.items]
    assert states == [ItemState.PENDING, ItemState.EXPIRED, ItemState.PENDING]


# Calls without possible approvers are counted, shown and reported.


REPLACED = ("users: [U0ANA, U0BEN, U0DAN]", "users: [U0EVE]")
NOW_DENIED = ("process_refund: {tier: approve}", "process_refund: {tier: deny}")


async def found(harness: ServiceHarness) -> list[str]:
    """Return the tools of the calls without possible approvers."""
    return [
        one.tool
        for one in await dead_ends(harness.store, harness.policy, tenant="default")
    ]


async def test_a_call_nobody_may_approve_is_a_dead_end(harness: ServiceHarness) -> None:
    await harness.refund()
    assert await found(harness) == []

    for change in (REPLACED, NOW_DENIED):
        harness.put_policy(change)
        assert await found(harness) == ["process_refund"]

    harness.put_policy()
    assert await found(harness) == []


async def test_another_policys_cards_are_redrawn_once(harness: ServiceHarness) -> None:
    await harness.refund()
    assert await harness.reviews.reevaluated() == []

    harness.put_policy(REPLACED)
    [loaded] = await harness.reviews.reevaluated()
    said = status_sentence(
        loaded.approval, loaded.approval.items[0], now_ms=loaded.now_ms
    )

    assert "Cannot be approved" in said.text
    assert "It can be rejected." in said.text
    assert await harness.reviews.reevaluated() == []


async def test_a_policy_that_leaves_dead_ends_is_told_with_their_number(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    harness = ServiceHarness(store)
    click, _ = await harness.refund()
    file = tmp_path / "policy.yml"
    file.write_text(POLICY.replace(*REPLACED))

    async def is_told() -> bool:
        return bool(await harness.announced(EventName.POLICY_LOADED))

    async with followed(
        PolicyFile(PolicySource(path=file)), store, tenant="default", every_s=0.05
    ):
        await eventually(is_told)

    [event] = await harness.announced(EventName.POLICY_LOADED)
    assert event.data["dead_ends"] == "1"
    assert f"calls=1 first={click.approval}.0" in caplog.text
