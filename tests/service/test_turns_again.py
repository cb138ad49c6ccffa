"""A turn that is submitted again gets its first answer."""

from __future__ import annotations

from typing import cast

import pytest

from keyturn.gateway.approvals.decisions import Edit
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import VerdictKind
from tests.service.harness import ServiceHarness

REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 5})
WIRE: tuple[str, JsonObject] = ("wire_money", {"amount": 5})
ORDER: tuple[str, JsonObject] = ("look_up_order", {"id": "1"})

RAISING = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}
roles:
  support: {users: [U0ANA, U0BEN]}
tiers:
  escalate: {needs: support}
tools:
  process_refund:
    tier: approve
    raise: [{to: escalate, when: args.amount > 500, because: "over 500"}]
"""

WINDOWED = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS, needs: support}
roles:
  support: {users: [U0ANA, U0BEN]}
windows:
  refunds: {tools: [process_refund], by: call.agent, sum: args.amount, within: 24h}
tools:
  process_refund:
    tier: approve
    raise: [{to: deny, when: windows.refunds > 100, because: "over 100 a day"}]
"""


@pytest.mark.parametrize(
    "calls",
    [[REFUND], [REFUND, REFUND, REFUND], [REFUND, ORDER], [ORDER], [WIRE, WIRE]],
    ids=["one", "one card", "beside another", "no record", "two cards"],
)
async def test_a_turn_gets_its_first_answer_again(
    harness: ServiceHarness, calls: list[tuple[str, JsonObject]]
) -> None:
    ref, verdicts = await harness.submit(*calls)

    _, again = await harness.submit(*calls, message_id=ref.message_id)

    assert again == verdicts


async def test_a_turn_is_answered_as_at_first_after_an_edit_raised_it(
    harness: ServiceHarness,
) -> None:
    harness.policy = load_policy(RAISING, "policy.yml")
    ref, (verdict,) = await harness.submit(REFUND)
    edit = Edit(args={"amount": 900}, reason="the whole order")
    await harness.decide(verdict, edit)
    raised = await harness.item(verdict.item_id)
    assert (raised.tier, raised.args) != (verdict.tier, {"amount": 5})

    _, (again,) = await harness.submit(REFUND, message_id=ref.message_id)

    assert again == verdict
    assert len(await harness.opened()) == 1


async def test_a_turn_whose_record_is_damaged_is_not_opened_again(
    harness: ServiceHarness,
) -> None:
    ref, (verdict,) = await harness.submit(REFUND)
    approval = verdict.item_id.rpartition(".")[0]
    keys, conn = harness.keys, harness.store.conn
    pinned = keys.document(approval)

    await conn.command("DEL", pinned)
    _, again = await harness.submit(REFUND, message_id=ref.message_id)

    assert again == (verdict,)
    assert len(await harness.opened()) == 1


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
    _, (one,) = await harness.submit(REFUND)
    ref, (two,) = await harness.submit(REFUND)
    keys, conn = harness.keys, harness.store.conn
    approvals = [verdict.item_id.rpartition(".")[0] for verdict in (one, two)]
    moved = [
        (key(approvals[0]), key(approvals[1])) for key in (keys.head, keys.document)
    ]
    for source, target in moved:
        await conn.command("RENAME", target, f"{target}:aside")
        await conn.command("COPY", source, target)

    with pytest.raises(CorruptRecord):
        await harness.item(two.item_id)
    assert (await harness.item(one.item_id)).id == one.item_id
    turn = keys.turn(digest.turn_key(tenant="default", **ref.names))
    await conn.command("DEL", turn, *(f"{target}:aside" for _, target in moved))


async def test_a_turn_without_its_verdicts_is_refused_while_a_record_of_it_is_there(
    harness: ServiceHarness,
) -> None:
    ref, (verdict,) = await harness.submit(REFUND)
    await forget(harness, b":turn:")

    with pytest.raises(CorruptRecord):
        await harness.submit(REFUND, message_id=ref.message_id)

    assert await harness.opened() == [verdict.item_id.rpartition(".")[0]]


async def test_a_turn_of_which_nothing_is_left_has_the_ids_that_the_ledger_knows(
    harness: ServiceHarness,
) -> None:
    ref, verdicts = await harness.submit(REFUND, WIRE)
    await harness.command("FLUSHALL")

    _, again = await harness.submit(REFUND, WIRE, message_id=ref.message_id)

    assert [one.item_id for one in again] == [one.item_id for one in verdicts]


async def forget(harness: ServiceHarness, part: bytes) -> None:
    """Delete every key of the store with this in its name."""
    conn = harness.store.conn
    for key in cast("list[bytes]", await conn.command("KEYS", "*")):
        if part in key:
            await conn.command("DEL", key)
