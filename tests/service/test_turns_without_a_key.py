"""A turn with one approval is found by the approval's id, and answered from it."""

from __future__ import annotations

import pytest

from tests.service.harness import ANA, ServiceHarness
from twokey.gateway.approvals.decisions import Approve, Edit
from twokey.gateway.errors import CorruptRecord, NewerRecord
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol import digest
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import TurnRef, VerdictKind
from twokey.gateway.store import codec
from twokey.gateway.store.store import Store

REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 5})
WIRE: tuple[str, JsonObject] = ("wire_money", {"amount": 5})
ORDER: tuple[str, JsonObject] = ("look_up_order", {"id": "1"})

RAISING = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, reviewers: support}
roles:
  support: {users: [U0ANA, U0BEN]}
tiers:
  escalate: {approvals: 2, of: [support]}
tools:
  process_refund:
    tier: approve
    raise: [{to: escalate, when: args.amount > 500, because: "over 500"}]
"""

WINDOWED = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, reviewers: support}
roles:
  support: {users: [U0ANA, U0BEN]}
windows:
  refunds: {tools: [process_refund], by: call.agent, sum: args.amount, within: 24h}
tools:
  process_refund:
    tier: approve
    raise: [{to: deny, when: windows.refunds > 100, because: "over 100 a day"}]
"""


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


async def has_key(harness: ServiceHarness, ref: TurnRef) -> bool:
    keys = harness.store.keys_of_tenant("default")
    turn = keys.turn(digest.turn_key(tenant="default", **ref.names))
    return bool(await harness.store.conn.command("EXISTS", turn))


@pytest.mark.parametrize(
    ("calls", "is_kept"),
    [
        ([REFUND], False),
        ([REFUND, REFUND, REFUND], False),
        ([REFUND, ORDER], True),
        ([ORDER], True),
        ([WIRE, WIRE], True),
    ],
    ids=["one", "one card", "beside another", "no record", "two cards"],
)
async def test_verdicts_are_kept_where_they_do_not_follow_from_one_record(
    harness: ServiceHarness, calls: list[tuple[str, JsonObject]], *, is_kept: bool
) -> None:
    ref, verdicts = await harness.submit(*calls)

    assert await has_key(harness, ref) is is_kept
    _, again = await harness.submit(*calls, message_id=ref.message_id)
    assert again == verdicts


async def test_a_turn_is_answered_as_at_first_after_an_edit_raised_it(
    harness: ServiceHarness,
) -> None:
    harness.policy = load_policy(RAISING, "policy.yml")
    ref, (verdict,) = await harness.submit(REFUND)
    edit = Edit(args={"amount": 900}, reason="the whole order")
    await harness.reviews.decide(await harness.click(verdict), edit, ANA)
    raised = await harness.item(verdict.item_id)
    assert (raised.tier, raised.args) != (verdict.tier, {"amount": 5})

    _, (again,) = await harness.submit(REFUND, message_id=ref.message_id)

    assert again == verdict
    assert len(await harness.opened()) == 1


async def test_a_turn_whose_record_is_newer_or_damaged_is_not_opened_again(
    harness: ServiceHarness,
) -> None:
    ref, (verdict,) = await harness.submit(REFUND)
    approval = verdict.item_id.rpartition(".")[0]
    keys, conn = harness.store.keys_of_tenant("default"), harness.store.conn
    head, pinned = keys.head(approval), keys.pinned(approval)

    await conn.command("HSET", head, "format", codec.FORMAT + 1)
    with pytest.raises(NewerRecord):
        await harness.submit(REFUND, message_id=ref.message_id)
    await conn.command("HSET", head, "format", codec.FORMAT)
    body = await conn.command("GETDEL", pinned)
    with pytest.raises(CorruptRecord):
        await harness.submit(REFUND, message_id=ref.message_id)

    assert isinstance(body, bytes)
    await conn.command("SET", pinned, body)
    _, again = await harness.submit(REFUND, message_id=ref.message_id)
    assert again == (verdict,)


async def test_what_the_version_before_wrote_ends_with_its_run_and_turn(
    harness: ServiceHarness,
) -> None:
    """Until format 13 a field ``of`` named both, and every turn had its key."""
    ref, (verdict,) = await harness.submit(REFUND)
    approval = verdict.item_id.rpartition(".")[0]
    keys, conn = harness.store.keys_of_tenant("default"), harness.store.conn
    head = keys.head(approval)
    turn = keys.turn(digest.turn_key(tenant="default", **ref.names))
    run = await conn.command("HGET", head, "run")
    assert isinstance(run, bytes)
    of = run[:16] + bytes.fromhex(turn.rpartition(":")[2]) + run[16:]
    await conn.transaction(
        ["HDEL", head, "run"],
        ["HSET", head, "of", of, "format", 13],
        ["SET", turn, f"{approval}\n"],
    )

    await harness.reviews.decide(await harness.click(verdict), Approve(), ANA)
    await harness.agents.supersede(ref)

    lists = keys.run("default", ref.run_ref)
    for key in (head, turn, lists):
        left = await conn.command("PTTL", key)
        assert isinstance(left, int)
        assert left > 0


async def test_a_turn_with_a_window_is_answered_again_and_counts_once(
    harness: ServiceHarness,
) -> None:
    harness.policy = load_policy(WINDOWED, "policy.yml")
    ref, verdicts = await harness.submit(REFUND)

    _, again = await harness.submit(REFUND, message_id=ref.message_id)
    assert again == verdicts
    _, (denied,) = await harness.submit(("process_refund", {"amount": 96}))
    assert denied.kind is VerdictKind.DENY
    _, (held,) = await harness.submit(("process_refund", {"amount": 95}))
    assert held.kind is VerdictKind.HOLD


async def test_a_record_that_was_moved_to_another_id_is_refused(
    harness: ServiceHarness,
) -> None:
    """Its id is not repeated in it: it follows from the turn that the record names."""
    _, (one,) = await harness.submit(REFUND)
    _, (two,) = await harness.submit(REFUND)
    keys, conn = harness.store.keys_of_tenant("default"), harness.store.conn
    approvals = [verdict.item_id.rpartition(".")[0] for verdict in (one, two)]
    moved = [(key(approvals[0]), key(approvals[1])) for key in (keys.head, keys.pinned)]
    for source, target in moved:
        await conn.command("RENAME", target, f"{target}:aside")
        await conn.command("COPY", source, target)

    with pytest.raises(CorruptRecord):
        await harness.item(two.item_id)
    assert (await harness.item(one.item_id)).id == one.item_id
    await conn.command("DEL", *(f"{target}:aside" for _, target in moved))
