"""Calls that start at once are evaluated from one reading, each by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tests.service.harness import ANA, POLICY, ServiceHarness, claim_of
from twokey.gateway.approvals.decisions import Approve, BatchDecided, Decision
from twokey.gateway.errors import StoreUnavailable
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import (
    Claimed,
    ClaimReply,
    ClaimRequest,
    Refused,
    Reopened,
)
from twokey.gateway.service.decided_by import DecidedBy
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store

REFUND = "process_refund"
TOOL = "  process_refund: {tier: approve}\n"
LARGE = "raise: [{to: escalate, when: args.amount > 500, because: large}]"
RAISING = TOOL.replace("}", f", {LARGE}}}")


class Reading:
    """What is read of agents to evaluate their calls, and what comes after it."""

    def __init__(self, store: Store) -> None:
        self.of_tools = list[Sequence[str]]()
        self.then = list[Any]()
        self._plain = store.agent_load.load

    async def load(self, *given: Any, **named: Any) -> Any:
        self.of_tools.append(tuple(named["wanted"].tools))
        found = await self._plain(*given, **named)
        while self.then:
            await self.then.pop()()
        return found


@pytest.fixture
def harness(store: Store, monkeypatch: pytest.MonkeyPatch) -> ServiceHarness:
    """Return a process in which nobody decided anything."""

    def find(*_: object) -> None:
        """Know of no decision."""

    monkeypatch.setattr(DecidedBy, "find", find)
    return ServiceHarness(store)


async def approved(harness: ServiceHarness, *amounts: float) -> list[ClaimRequest]:
    """Return the claims of refunds of one card that Ana approved by one gesture."""
    calls: list[tuple[str, JsonObject]] = [
        (REFUND, {"amount": amount}) for amount in amounts
    ]
    ref, verdicts = await harness.submit(*calls)
    click = await harness.click(verdicts[0])
    approval = await harness.approval(verdicts[0].item_id)
    partition: dict[int, Decision | None] = {
        item.index: Approve() for item in approval.items
    }
    outcome = await harness.reviews.decide_batch(
        click.with_(action_hash=approval.digest), partition, ANA
    )
    assert isinstance(outcome, BatchDecided)
    return [claim_of(ref, one, owner=one.tool_call_id) for one in verdicts]


@pytest.fixture
def reading(store: Store, monkeypatch: pytest.MonkeyPatch) -> Reading:
    found = Reading(store)
    monkeypatch.setattr(store.agent_load, "load", found.load)
    return found


async def started(
    harness: ServiceHarness, claims: Sequence[ClaimRequest]
) -> list[ClaimReply]:
    """Start all of them at once; nothing is kept of what was read for them."""
    replies = await asyncio.gather(*map(harness.agents.claim, claims))
    assert kept(harness) == 0
    return replies


def kept(harness: ServiceHarness) -> int:
    """Return how much is remembered of calls that are to start."""
    together: Any = harness.agents
    return len(together._together._starting) + len(together._together._read)


async def test_what_they_depend_on_is_read_once(
    harness: ServiceHarness, reading: Reading
) -> None:
    claims = await approved(harness, *range(1, 7))
    reading.of_tools.clear()

    replies = await started(harness, claims)

    assert all(isinstance(one, Claimed) for one in replies)
    assert reading.of_tools == [(REFUND,) * 6]


async def test_each_is_held_to_the_policy_of_now(
    harness: ServiceHarness, reading: Reading
) -> None:
    claims = await approved(harness, 20, 600, 30)
    harness.policy = load_policy(POLICY.replace(TOOL, RAISING), "policy.yml")

    replies = await started(harness, claims)

    kinds = [type(one) for one in replies]
    assert kinds == [Claimed, Reopened, Claimed]


async def test_after_a_write_they_are_read_again(
    harness: ServiceHarness, reading: Reading
) -> None:
    """The first goes back to people, which is a write of its own."""
    claims = await approved(harness, 600, 20, 30)
    harness.policy = load_policy(POLICY.replace(TOOL, RAISING), "policy.yml")
    reading.of_tools.clear()

    replies = await started(harness, claims)

    kinds = [type(one) for one in replies]
    assert kinds == [Reopened, Claimed, Claimed]
    assert reading.of_tools == [(REFUND,) * 3, (REFUND,) * 2]


async def test_a_freeze_right_after_the_reading_stops_all_of_them(
    harness: ServiceHarness, reading: Reading
) -> None:
    claims = await approved(harness, 20, 30, 40)
    scope = FreezeScope(kind=ScopeKind.TOOL, name=REFUND)
    freezes = harness.reviews.freezes
    reading.then.append(lambda: freezes.freeze(scope, "U0ANA", "stop"))

    replies = await started(harness, claims)
    await freezes.unfreeze(scope, "U0ANA")

    assert all(isinstance(one, Refused) for one in replies)


async def test_a_policy_that_is_loaded_after_the_reading_is_asked(
    harness: ServiceHarness, reading: Reading
) -> None:
    claims = await approved(harness, 20, 600, 30)

    async def load() -> None:
        harness.policy = load_policy(POLICY.replace(TOOL, RAISING), "policy.yml")

    reading.then.append(load)

    replies = await started(harness, claims)

    assert isinstance(replies[1], Reopened)


async def test_what_was_read_before_another_reading_of_the_card_is_not_used(
    harness: ServiceHarness, reading: Reading
) -> None:
    """Somebody else starts one of them in between, so that the step writes nothing."""
    claims = await approved(harness, 20, 30, 40)
    other = ServiceHarness(harness.store)

    async def beaten() -> None:
        # Not in turn with the others, as another process.
        cast("Any", harness.store.approvals)._rows._rows.clear()
        assert isinstance(await other.agents.claim(claims[2]), Claimed)

    reading.of_tools.clear()
    reading.then.append(beaten)

    replies = await started(harness, claims)

    assert all(isinstance(one, Claimed) for one in replies)
    assert len(reading.of_tools) > 2
    for claim in claims:
        assert (await harness.item(claim.item_id)).state is ItemState.EXECUTING
        assert (await harness.item(claim.item_id)).fence == 1


async def test_one_that_cannot_be_read_fails_alone_and_leaves_nothing(
    harness: ServiceHarness, reading: Reading
) -> None:
    claims = await approved(harness, 20, 30)

    async def broken() -> None:
        raise StoreUnavailable("gone")

    reading.then.extend([broken] * 2)

    replies = await asyncio.gather(
        *map(harness.agents.claim, claims), return_exceptions=True
    )

    assert sum(isinstance(one, Claimed) for one in replies) >= 1
    assert kept(harness) == 0


async def test_of_one_that_is_cancelled_while_it_is_read_nothing_is_kept(
    harness: ServiceHarness, reading: Reading
) -> None:
    claims = await approved(harness, 20, 30, 40)
    starts = [asyncio.create_task(harness.agents.claim(one)) for one in claims]

    async def cancelled() -> None:
        starts[1].cancel()
        await asyncio.wait([starts[1]])

    reading.then.append(cancelled)

    replies = await asyncio.gather(*starts, return_exceptions=True)

    assert [type(one) for one in replies[::2]] == [Claimed, Claimed]
    assert isinstance(replies[1], asyncio.CancelledError)
    assert kept(harness) == 0


async def test_an_id_of_no_call_is_refused(harness: ServiceHarness) -> None:
    [claim] = await approved(harness, 20)

    reply = await harness.agents.claim(claim.with_(item_id="none of ours"))

    assert isinstance(reply, Refused)
