"""Calls without possible approvers are counted, shown and reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.bot.cards.states import status_sentence
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.config import PolicySource
from keyturn.gateway.policy_file import PolicyFile, followed
from keyturn.gateway.service.people.queue import dead_ends
from keyturn.gateway.store.store import Store
from tests.conftest import eventually
from tests.service.harness import POLICY, ServiceHarness

REPLACED = ("users: [U0ANA, U0BEN, U0DAN]", "users: [U0EVE]")
FORBIDDEN = ("process_refund: {tier: approve}", "process_refund: {tier: deny}")


async def found(harness: ServiceHarness) -> list[str]:
    """Return the tools of the calls without possible approvers."""
    return [
        one.tool
        for one in await dead_ends(harness.store, harness.policy, tenant="default")
    ]


async def test_a_call_nobody_may_approve_is_a_dead_end(harness: ServiceHarness) -> None:
    await harness.refund()
    assert await found(harness) == []

    for change in (REPLACED, FORBIDDEN):
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
