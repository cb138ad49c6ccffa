"""A tool finds the receipt of its call, to pass it on to who runs the effect."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from tests.agent.agent_runner import FREE, Effects, Runner, build
from tests.agent.agent_runner import pay as pay_turn
from tests.agent.fake_gateway import FakeGateway
from tests.api.api_stack import ApiStack, serving
from tests.service.harness import ANA, ServiceHarness, claim_of
from twokey.agent import current_receipt, receipt_meta
from twokey.agent.scripted_model import calling
from twokey.gateway.approvals.decisions import Approve
from twokey.gateway.client.claim_receipts import NOT_PROVEN, verified_claim
from twokey.gateway.client.http_gateway import HttpGateway
from twokey.gateway.errors import SettingsError
from twokey.gateway.protocol.wire import Busy, Claimed, ProposedCall, Refused, Turn
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import Role
from twokey.gateway.trust.signing_key import SigningKey

OTHER = SigningKey.from_seed("twokey/gateway", bytes(range(32)))


async def test_a_tool_sees_the_receipt_of_its_call_and_of_no_other(
    runner: Runner, memory: InMemorySaver, effects: Effects
) -> None:
    gateway = FakeGateway(FREE)
    gateway.tamper = lambda claimed: claimed.with_(receipt="signed")
    seen: list[object] = []
    effects.inside = lambda: seen.append((current_receipt(), receipt_meta()))
    graph = build(gateway, effects.tools(), pay_turn(), saver=memory)

    await runner.say(graph, "pay")
    gateway.approve("ap0.0")
    await runner.resume(graph, gateway)

    assert seen == [("signed", {"dev.twokey/receipt": "signed"})]
    assert (current_receipt(), receipt_meta()) == ("", {})


async def test_an_auto_approved_call_has_none(
    runner: Runner, memory: InMemorySaver
) -> None:
    seen: list[object] = []

    def look_up(query: str) -> str:
        """Look something up."""
        seen.append((query, current_receipt(), receipt_meta()))
        return "found"

    turn = calling(("look_up", {"query": "x"}, "c1"))
    graph = build(FakeGateway(FREE), [tool(look_up)], turn, saver=memory)

    await runner.say(graph, "look")

    assert seen == [("x", "", {})]


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


async def test_an_agent_with_the_gateways_key_verifies_each_claim(
    stack: ApiStack,
) -> None:
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
    keys = keyring.verifying(Role.GATEWAY)
    for changes in (
        {"receipt": ""},
        {"receipt": granted.receipt[:-1]},
        {"action_hash": "sha256:" + "0" * 64},
        {"idempotency_key": "another"},
    ):
        changed = granted.with_(**changes)
        assert verified_claim(changed, claim, keys) == refused
    assert verified_claim(granted, claim.with_(item_id="ap.1"), keys) == refused
    # An answer that lets nothing run needs no proof.
    assert verified_claim(Busy(), claim, keys) == Busy()


def test_keys_are_a_list_of_whole_keys() -> None:
    text = OTHER.public.text
    for keys in (text, ["x"], [text[:-4]]):
        with pytest.raises(SettingsError):
            HttpGateway("https://gateway.example", "key", receipt_keys=keys)
