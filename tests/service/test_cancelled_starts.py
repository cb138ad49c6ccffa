"""A cancellation while calls start or end together leaves no doubt behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, ClaimRequest
from keyturn.gateway.store.connection.connection import Connection
from tests.conftest import eventually
from tests.service.harness import ServiceHarness, claim_of

RAN = Result(ok=True, summary="refunded")


class Held:
    """Delays the replies of scripts until they are released."""

    def __init__(self, conn: Connection, patch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_answer = asyncio.Event(), asyncio.Event()
        real: Callable[..., Any] = conn.evalsha

        async def held(*given: Any, **named: Any) -> Any:
            found = await real(*given, **named)
            self.begun.set()
            await self.may_answer.wait()
            return found

        patch.setattr(conn, "evalsha", held)


async def approved(harness: ServiceHarness) -> list[ClaimRequest]:
    """Return the claims of three approved calls of one card."""
    calls: list[tuple[str, JsonObject]] = [
        ("process_refund", {"amount": n + 1}) for n in range(3)
    ]
    ref, verdicts = await harness.submit(*calls)
    for verdict in verdicts:
        await harness.decide(verdict, Approve())
    return [claim_of(ref, one, owner=one.item_id) for one in verdicts]


async def test_others_get_their_answer_from_what_a_cancelled_one_wrote(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await approved(harness)
    held = Held(harness.store.conn, monkeypatch)
    starts = [asyncio.create_task(harness.agents.claim(one)) for one in claims]
    await held.begun.wait()

    starts[0].cancel()
    await asyncio.sleep(0)
    held.may_answer.set()
    cancelled, *replies = await asyncio.gather(*starts, return_exceptions=True)

    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(isinstance(reply, Claimed) for reply in replies)


async def test_what_was_not_begun_for_a_cancelled_one_is_not_written(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await approved(harness)
    held = Held(harness.store.conn, monkeypatch)
    first = asyncio.create_task(harness.agents.claim(claims[0]))
    await held.begun.wait()
    late = [asyncio.create_task(harness.agents.claim(one)) for one in claims[1:]]
    await asyncio.sleep(0)

    for one in (first, *late):
        one.cancel()
    held.may_answer.set()
    await asyncio.gather(first, *late, return_exceptions=True)
    item = await harness.item(claims[2].item_id)
    again = await harness.agents.claim(claims[1])

    assert item.state is ItemState.AUTHORIZED
    assert isinstance(again, Claimed)


async def test_an_end_is_recorded_though_its_caller_is_cancelled(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await approved(harness)
    granted = [await harness.agents.claim(one) for one in claims]
    held = Held(harness.store.conn, monkeypatch)
    ends = [
        asyncio.create_task(harness.agents.finish(claim.item_id, reply.fence, RAN))
        for claim, reply in zip(claims, granted, strict=True)
        if isinstance(reply, Claimed)
    ]
    await asyncio.sleep(0)

    for one in ends:
        one.cancel()
    held.may_answer.set()
    await asyncio.gather(*ends, return_exceptions=True)

    async def all_ended() -> bool:
        items = [await harness.item(one.item_id) for one in claims]
        return all(item.state is ItemState.EXECUTED for item in items)

    await eventually(all_ended)
