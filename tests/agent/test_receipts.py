"""A tool finds the receipt of its call, to pass it on to the executor of the effect."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from keyturn.agent import current_receipt, receipt_meta
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.client import http_gateway
from keyturn.gateway.client.http_gateway import (
    NOT_PROVEN,
    OUT_OF_TIME,
    ClaimReceipts,
    HttpGateway,
)
from keyturn.gateway.errors import SettingsError
from keyturn.gateway.protocol.wire import (
    Busy,
    Claimed,
    ClaimReply,
    ClaimRequest,
    ProposedCall,
    Refused,
    Turn,
)
from keyturn.gateway.remote.program import RemoteKeyturn
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.key_folder import Role, SigningKey
from tests.agent.agent_runner import FREE, Runner, build
from tests.agent.agent_runner import pay as pay_turn
from tests.agent.fake_gateway import FakeGateway
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ANA, ServiceHarness, claim_of

OTHER = SigningKey.from_seed("keyturn/gateway", bytes(range(32)))


async def test_a_tool_sees_the_receipt_of_its_call_only(runner: Runner) -> None:
    gateway = FakeGateway(FREE)
    gateway.tamper = lambda claimed: claimed.with_(receipt="signed")
    seen: list[object] = []
    runner.inside = lambda: seen.append((current_receipt(), receipt_meta()))
    graph = build(gateway, runner.tools(), pay_turn())

    await runner.say(graph, "pay")
    gateway.approve("ap0.0")
    await runner.resume(graph, gateway)

    assert seen == [("signed", {"dev.keyturn/receipt": "signed"})]
    assert (current_receipt(), receipt_meta()) == ("", {})


@pytest.fixture
async def stack(store: Store) -> AsyncGenerator[ApiStack]:
    async with serving(ServiceHarness(store)) as found:
        yield found


async def _approved(stack: ApiStack, gateway: HttpGateway) -> Any:
    ref, _ = await stack.harness.submit(("look_up_order", {}))
    call = ProposedCall(tool="process_refund", args={"amount": 9}, tool_call_id="c1")
    ref = ref.with_(message_id="m-http")
    (verdict,) = await gateway.submit(Turn(ref=ref, calls=(call,)))
    click = await stack.harness.click(verdict)
    await stack.harness.reviews.decide(click, Approve(), ANA)
    return claim_of(ref, verdict)


async def test_the_gateways_key_verifies_each_claim(stack: ApiStack) -> None:
    keyring = stack.harness.store.keyring
    assert keyring
    known = [key.text for key in keyring.verifying(Role.GATEWAY)]
    ours = HttpGateway(stack.url, stack.key(), receipt_keys=known)
    theirs = HttpGateway(stack.url, stack.key(), receipt_keys=[OTHER.public.text])
    try:
        claim = await _approved(stack, ours)
        refused = await theirs.claim(claim)
        granted = await ours.claim(claim)
    finally:
        await ours.aclose()
        await theirs.aclose()

    assert refused == Refused(reason=NOT_PROVEN)
    assert isinstance(granted, Claimed)
    now_s = (await stack.harness.item(claim.item_id)).changed_at_ms / 1000

    def verified(
        reply: ClaimReply, asked: ClaimRequest = claim, later_s: float = 0
    ) -> ClaimReply:
        return ClaimReceipts(known).verified(reply, asked, now_s + later_s)

    for changes in (
        {"receipt": ""},
        {"receipt": granted.receipt[:-1]},
        {"action_hash": "sha256:" + "0" * 64},
        {"idempotency_key": "another"},
    ):
        changed = granted.with_(**changes)
        assert verified(changed) == refused
    assert verified(granted, claim.with_(item_id="ap.1")) == refused
    assert verified(granted, later_s=929) == granted
    # An old, stored answer.
    late = Refused(reason=OUT_OF_TIME)
    assert verified(granted, later_s=931) == late
    assert verified(granted, later_s=-31) == late
    # An answer that allows no execution needs no proof.
    assert verified(Busy()) == Busy()


async def test_an_answer_to_a_claim_is_for_one_attempt(stack: ApiStack) -> None:
    keyring = stack.harness.store.keyring
    assert keyring
    known = [key.text for key in keyring.verifying(Role.GATEWAY)]
    gateway = HttpGateway(stack.url, stack.key(), receipt_keys=known)
    try:
        claim = await _approved(stack, gateway)
        granted = await gateway.claim(claim)
        # The first answer may have been lost.
        assert await gateway.claim(claim) == granted
    finally:
        await gateway.aclose()
    now_s = (await stack.harness.item(claim.item_id)).changed_at_ms / 1000
    receipts = ClaimReceipts(known)
    other = claim.with_(owner="worker-2")

    assert receipts.verified(granted, claim, now_s) == granted
    assert receipts.verified(granted, claim, now_s) == granted
    # Until the receipt has ended by itself.
    for later_s in (0, 929):
        found = receipts.verified(granted, other, now_s + later_s)
        assert found == Refused(reason=NOT_PROVEN)


async def test_a_program_that_knows_the_gateways_key_takes_no_other(
    stack: ApiStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, key = [OTHER.public.text], stack.key()
    monkeypatch.setenv(http_gateway.URL_VARIABLE, stack.url)
    monkeypatch.setenv(http_gateway.KEY_VARIABLE, key)
    gateways = [
        http_gateway.given_gateway(stack.url, key, other),
        http_gateway.given_gateway(None, None, other),
        RemoteKeyturn(stack.url, api_key=key, receipt_keys=other).gateway,
    ]
    plain = http_gateway.given_gateway(stack.url, key)
    assert isinstance(plain, HttpGateway)
    claim = await _approved(stack, plain)
    for gateway in gateways:
        assert isinstance(gateway, HttpGateway)
        assert await gateway.claim(claim) == Refused(reason=NOT_PROVEN)
        await gateway.aclose()

    assert isinstance(await plain.claim(claim), Claimed)
    await plain.aclose()


def test_keys_are_for_gateways_at_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(http_gateway.URL_VARIABLE, raising=False)
    for given in (None, FakeGateway(FREE)):
        with pytest.raises(
            SettingsError, match=r"gateway at a URL|No gateway is named"
        ):
            http_gateway.given_gateway(given, None, [OTHER.public.text])
