"""An agent that gives back a claim whose receipt it used has no second use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from pydantic import JsonValue

from keyturn.gateway.approvals.decisions import Approve, Reconcile
from keyturn.gateway.approvals.record import Approval, Item
from keyturn.gateway.errors import NotVerified
from keyturn.gateway.protocol.http_api import Gateway
from keyturn.gateway.protocol.receipts import (
    SKEW_S,
    USABLE_S,
    Receipt,
    read_receipt,
)
from keyturn.gateway.protocol.records import Finding, ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import CheckState, Claimed, ClaimRequest, Refused
from keyturn.gateway.service.run.proving import NOT_PROVEN
from keyturn.receipts import SqliteLedger, Verifier
from tests.api.api_stack import serving
from tests.service.decided_calls import (
    decided,
    forge,
    gateway_keys,
    receipt_of,
)
from tests.service.harness import ANA, ServiceHarness
from tests.service.test_business_state import CLOSED, OPEN, asked, now

ARGS: JsonObject = {"amount": 120}


@pytest.fixture(params=["in process", "over http"])
async def port(
    request: pytest.FixtureRequest, harness: ServiceHarness
) -> AsyncGenerator[Gateway]:
    if request.param == "in process":
        yield harness.agents
        return
    async with serving(harness) as stack, stack.gateway() as gateway:
        yield gateway


@pytest.fixture
def tool_server(harness: ServiceHarness, tmp_path: Path) -> Verifier:
    return Verifier(
        audience="support",
        keys=gateway_keys(harness),
        ledger=SqliteLedger(tmp_path / "used.db"),
    )


async def granted(port: Gateway, claim: ClaimRequest, owner: str) -> Claimed:
    found = await port.claim(claim.with_(owner=owner))
    assert isinstance(found, Claimed)
    return found


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_claim_that_is_given_back_has_no_second_use(
    harness: ServiceHarness, port: Gateway, tool_server: Verifier, *, has_begun: bool
) -> None:
    claim = await decided(harness)
    first = await granted(port, claim, "1" * 32)
    tool_server.verify(first.receipt, tool="process_refund", args=ARGS)

    for attempt in range(2, 5):
        before = attempt - 1
        await port.release(claim.item_id, before, has_begun=has_begun)
        again = await granted(port, claim, str(attempt) * 32)

        assert again.receipt != first.receipt
        with pytest.raises(NotVerified, match="used"):
            tool_server.verify(again.receipt, tool="process_refund", args=ARGS)


async def test_a_claim_that_was_given_back_unused_can_be_used_once(
    harness: ServiceHarness, port: Gateway, tool_server: Verifier
) -> None:
    claim = await decided(harness)
    first = await granted(port, claim, "1" * 32)
    await port.release(claim.item_id, first.fence, has_begun=True)
    again = await granted(port, claim, "2" * 32)

    tool_server.verify(again.receipt, tool="process_refund", args=ARGS)
    with pytest.raises(NotVerified, match="used"):
        tool_server.verify(first.receipt, tool="process_refund", args=ARGS)


async def test_a_new_state_gives_no_second_use(harness: ServiceHarness) -> None:
    async def approve() -> None:
        click = await harness.click_on(claim.item_id)
        assert (await harness.reviews.decide(click, Approve(), ANA)).kind == "decided"

    async def ask(state: JsonValue, owner: str) -> object:
        mine = claim.with_(owner=owner)
        reply = await harness.agents.claim(mine)
        assert isinstance(reply, CheckState)
        seen = now(reply.action_hash, state)
        return await harness.agents.claim(mine.with_(state=seen))

    def read(reply: object) -> Receipt:
        assert isinstance(reply, Claimed)
        return read_receipt(reply.receipt, gateway_keys(harness))[0]

    _, claim = await asked(harness)
    await approve()
    first = read(await ask(OPEN, "1" * 32))
    await harness.agents.release(claim.item_id, first.attempt)
    await ask(CLOSED, "2" * 32)
    await approve()
    again = read(await ask(CLOSED, "3" * 32))

    assert again.state != first.state
    assert again.jti == first.jti


async def test_people_who_let_a_doubtful_call_run_again_give_it_another_use(
    harness: ServiceHarness, tool_server: Verifier
) -> None:
    claim = await decided(harness)
    first = await granted(harness.agents, claim, "1" * 32)
    tool_server.verify(first.receipt, tool="process_refund", args=ARGS)
    await harness.doubt(claim.item_id)
    await harness.decide(claim.item_id, Reconcile(finding=Finding.RERUN))

    again = await granted(harness.agents, claim, "2" * 32)

    tool_server.verify(again.receipt, tool="process_refund", args=ARGS)


async def test_a_forged_record_gives_no_other_use(harness: ServiceHarness) -> None:
    claim = await decided(harness)
    first = await granted(harness.agents, claim, "1" * 32)
    await harness.agents.release(claim.item_id, first.fence)

    await forge(
        harness,
        claim.item_id,
        lambda approval, item: (approval, item.with_(reconciled_fence=1)),
    )

    refused = await harness.agents.claim(claim.with_(owner="2" * 32))
    assert refused == Refused(reason=NOT_PROVEN, state=ItemState.AUTHORIZED)


async def test_a_repeatable_call_has_a_use_per_claim(harness: ServiceHarness) -> None:
    claim = await decided(harness, tool="send_email")
    first = await receipt_of(harness, claim)
    await harness.owner_dies(claim.item_id)

    again = await receipt_of(harness, claim.with_(owner="2" * 32))

    assert (first.attempt, again.attempt) == (1, 2)
    assert first.jti != again.jti


@pytest.mark.parametrize(("left_s", "lives_s"), [(600, 600), (0, 0), (-600, -600)])
async def test_no_receipt_of_an_id_ends_later_than_a_ledger_remembers_it(
    harness: ServiceHarness, left_s: int, lives_s: int
) -> None:
    claim = await decided(harness)
    first = await receipt_of(harness, claim)
    await harness.agents.release(claim.item_id, first.attempt)

    def old(approval: Approval, item: Item) -> tuple[Approval, Item]:
        # In whole seconds, as receipts count.
        ago_ms = (USABLE_S - left_s) * 1000
        now_ms = item.changed_at_ms // 1000 * 1000
        return approval.with_(created_at_ms=now_ms - ago_ms), item

    opened_s = (await harness.item(claim.item_id)).changed_at_ms // 1000
    await forge(harness, claim.item_id, old)
    later = await receipt_of(harness, claim.with_(owner="2" * 32))

    assert later.jti == first.jti
    assert later.exp == opened_s + lives_s
    # The use of the first one is kept for as long.
    assert later.exp + SKEW_S <= first.exp + USABLE_S + SKEW_S
