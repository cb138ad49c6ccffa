"""A list of approvals takes a few round trips to the server, and not one for each."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from keyturn.gateway.errors import CorruptRecord, StoreUnavailable
from keyturn.gateway.store.records.approvals import AT_ONCE, read_each
from keyturn.gateway.store.records.atomic_write import Loaded

IDS = [f"ap_{number}" for number in range(AT_ONCE)]


async def test_a_list_is_read_together_and_keeps_its_order() -> None:
    begun, are_all_sent = list[str](), asyncio.Event()

    async def load(approval_id: str) -> Loaded | None:
        begun.append(approval_id)
        if len(begun) == AT_ONCE:
            are_all_sent.set()
        await are_all_sent.wait()
        if approval_id == IDS[1]:
            raise CorruptRecord("broken")
        return None if approval_id == IDS[2] else cast("Loaded", approval_id)

    async with asyncio.timeout(10):
        found = await read_each(load, IDS)

    assert cast("list[object]", found) == [IDS[0], *IDS[3:]]


async def test_a_list_of_a_server_that_does_not_answer_is_not_a_short_one() -> None:
    async def load(approval_id: str) -> Loaded | None:
        raise StoreUnavailable(approval_id)

    with pytest.raises(StoreUnavailable):
        await read_each(load, IDS)
