"""A queue is delegated for the chosen time, and not longer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.service.people.queue import DelegationService
from keyturn.gateway.store.reviewers.delegations import Delegation
from keyturn.gateway.store.sealing.sealing import Sealed
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, CHLOE
from tests.streams import audit_entries

FOUR_HOURS = timedelta(hours=4)


@pytest.fixture
def service(store: Store) -> DelegationService:
    return DelegationService(store)


async def test_a_queue_is_given_and_taken_back(service: DelegationService) -> None:
    await service.delegate(ANA.person, "U0BEN", FOUR_HOURS)
    await service.delegate(CHLOE.person, "U0BEN", FOUR_HOURS)
    given = await service.given_to("U0BEN")
    assert sorted(one.user for one in given) == ["U0ANA", "U0CHLOE"]

    await service.delegate(ANA.person, "U0EVE", FOUR_HOURS)
    assert [one.user for one in await service.given_to("U0BEN")] == ["U0CHLOE"]
    assert [one.user for one in await service.given_to("U0EVE")] == ["U0ANA"]

    assert await service.take_back(ANA.person)
    assert not await service.take_back(ANA.person)
    assert await service.given_to("U0EVE") == ()


async def test_what_was_given_ends_by_the_stores_clock(
    service: DelegationService, store: Store
) -> None:
    until_ms = await service.delegate(ANA.person, "U0BEN", FOUR_HOURS)
    keys = store.keys_of_tenant("default")
    key = keys.delegations
    assert await store.conn.command("PEXPIRETIME", key) == until_ms

    row = Delegation(user="U0ANA", to="U0BEN", since_ms=until_ms, until_ms=1)
    body = row.model_dump_json().encode()
    ended = store.sealing.sealed(Sealed.DELEGATION, (key, "U0ANA"), body)
    await store.conn.command("HSET", key, "U0ANA", ended)

    assert await service.given_to("U0BEN") == ()
    await service.delegate(CHLOE.person, "U0BEN", FOUR_HOURS)
    assert await store.conn.command("HLEN", key) == 1


@pytest.mark.parametrize("body", ["", "junk", "U0BEN soon", b"\xff 1"])
async def test_a_row_that_nobody_can_read_gives_nothing_and_stops_no_other(
    service: DelegationService,
    store: Store,
    caplog: pytest.LogCaptureFixture,
    body: str | bytes,
) -> None:
    key = store.keys_of_tenant("default").delegations
    await service.delegate(ANA.person, "U0BEN", FOUR_HOURS)
    await store.conn.command("HSET", key, "U0EVE", body)

    given = await service.given_to("U0BEN")
    await service.delegate(CHLOE.person, "U0BEN", FOUR_HOURS)

    assert [one.user for one in given] == ["U0ANA"]
    assert "delegation.corrupt" in caplog.text
    assert len(await service.given_to("U0BEN")) == 2


async def test_nobody_gets_their_own_queue_nor_one_for_ever(
    service: DelegationService,
) -> None:
    with pytest.raises(ValueError, match="you cannot delegate to yourself"):
        await service.delegate(ANA.person, "U0ANA", FOUR_HOURS)
    with pytest.raises(ValueError, match="choose a time of up to 30 days"):
        await service.delegate(ANA.person, "U0BEN", timedelta(days=31))


async def test_each_hand_over_is_in_the_audit_log(
    service: DelegationService, store: Store
) -> None:
    await asyncio.gather(
        service.delegate(ANA.person, "U0BEN", FOUR_HOURS),
        service.delegate(BEN.person, "U0CHLOE", FOUR_HOURS),
    )
    await service.take_back(BEN.person)

    entries = await audit_entries(store.conn, store.keys_of_tenant("default"))

    said = {(one.name, one.actor, one.data.get("to", "")) for one in entries}
    assert said == {
        (EventName.DELEGATION_SET, "T0/U0ANA", "U0BEN"),
        (EventName.DELEGATION_SET, "T0/U0BEN", "U0CHLOE"),
        (EventName.DELEGATION_LIFTED, "T0/U0BEN", ""),
    }
