"""A queue is delegated for the chosen time, and not longer."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit, Reviewer
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.people import queue
from keyturn.gateway.service.people.queue import DelegationService
from keyturn.gateway.store.connection.connection import Argument
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.reviewers.bot_records import Delegation
from keyturn.gateway.store.sealing.sealing import Sealed
from keyturn.gateway.store.store import Store
from tests.service.harness import ANA, BEN, CHLOE, EVE, ServiceHarness, claim_of, person
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


async def test_a_delegation_ends(service: DelegationService, store: Store) -> None:
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


async def test_nobody_gets_their_own_queue(service: DelegationService) -> None:
    with pytest.raises(ValueError, match="you cannot delegate to yourself"):
        await service.delegate(ANA.person, "U0ANA", FOUR_HOURS)
    with pytest.raises(ValueError, match="choose a time of up to 30 days"):
        await service.delegate(ANA.person, "U0BEN", timedelta(days=31))


async def test_delegations_are_logged(service: DelegationService, store: Store) -> None:
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


REFUND: tuple[str, JsonObject] = ("process_refund", {"amount": 5.0})
POLICY = """
version: 1
defaults: {tier: approve, expires_in: 1h, channel: C0APPROVALS}
roles:
  support: {users: [U0ANA, U0BEN]}
  finance: {usergroups: [S0FINANCE], users: [U0CHLOE]}
protect: {pending_per_agent: 10000, requests_per_10m: 100000}
tools:
  process_refund:
    needs: support
    raise: [{to: escalate, when: "args.amount > 500.0", because: "over 500"}]
  pay: {needs: finance}
requirements:
  with_finance: {all: [{of: [support, finance]}, {of: finance}]}
tiers:
  escalate: {needs: with_finance}
"""
FRANK = person("U0FRANK").with_(usergroups=frozenset({"S0FINANCE"}))


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    """Give agents and reviewers."""
    return ServiceHarness(store, load_policy(POLICY, "policy.yml"))


async def threads(harness: ServiceHarness, *people: Reviewer) -> list[str]:
    """Return the threads of people's pending calls, in the order of the queue."""
    found = harness.reviews.queue.concerning(people)
    return [one.approval.thread async for one in found]


async def crowd(store: Store, keys: Keys, count: int) -> None:
    """List so many other approvals, due before any other, which are gone since."""
    rows: list[Argument] = []
    for index in range(count):
        rows += [index // 300 + 1, index.to_bytes(16)]
    await store.conn.command("ZADD", keys.expiry, *rows)


async def test_ten_thousand_approvals_hide_none(harness: ServiceHarness) -> None:
    await harness.submit(("pay", {}), thread="theirs")
    await crowd(harness.store, harness.keys, 10_000)
    for index in range(5):
        await harness.submit(REFUND, thread=f"mine{index}")

    assert await threads(harness, ANA) == [f"mine{index}" for index in range(5)]
    assert await threads(harness, EVE) == []


async def test_all_pages_of_one_queue_are_read_and_each_approval_once(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "_PAGE", 2)
    for index in range(5):
        await harness.submit(REFUND, thread=f"r{index}")
        await harness.submit(("pay", {}), thread=f"p{index}")

    both = await threads(harness, ANA, CHLOE)

    assert both == [f"{kind}{index}" for index in range(5) for kind in "rp"]


async def test_members_of_any_group_find_their_calls(harness: ServiceHarness) -> None:
    await harness.submit(("pay", {}), thread="paid")
    open_ = person("U0GRACE").with_(unknown_groups=frozenset({"S0FINANCE"}))

    assert await harness.reviews.queue.groups() == {"S0FINANCE"}
    assert await threads(harness, FRANK) == ["paid"]
    assert await threads(harness, open_) == ["paid"]
    assert await threads(harness, ANA) == []
    # Dan asked for it: he may take it back.
    assert await threads(harness, person("U0DAN")) == ["paid"]


async def test_an_edit_moves_a_call_to_other_queues(harness: ServiceHarness) -> None:
    _, (verdict,) = await harness.submit(REFUND, thread="mine")
    assert await threads(harness, FRANK) == []

    await harness.decide(verdict, Edit(args={"amount": 900.0}, reason="x"))

    item = await harness.item(verdict.item_id)
    assert item.args["amount"] == 900
    assert await threads(harness, FRANK) == ["mine"]
    assert await threads(harness, BEN) == ["mine"]
    # Ana edited it, so it concerns her, independent of her roles.
    assert await threads(harness, ANA) == ["mine"]


async def test_decided_and_expired_calls_leave_a_queue(harness: ServiceHarness) -> None:
    _, batch = await harness.submit(REFUND, ("pay", {}), thread="batch")
    await harness.submit(REFUND, thread="over")

    await harness.decide(batch[0], Approve())
    assert await threads(harness, FRANK) == ["batch"]
    assert await threads(harness, ANA) == ["over"], "only the other call waits still"

    await harness.decide(batch[1], Approve(), FRANK)
    assert await threads(harness, FRANK) == []

    (over,) = [one async for one in harness.reviews.queue.concerning([ANA])]
    await harness.overdue(over.approval.id)
    assert await threads(harness, ANA) == []
    await harness.sweeper.sweep()
    assert await threads(harness, ANA, person("U0DAN")) == []


async def test_a_reopened_call_is_back_in_its_queues(harness: ServiceHarness) -> None:
    ref, (verdict,) = await harness.submit(REFUND, thread="mine")
    await harness.decide(verdict, Approve())
    assert await threads(harness, ANA, BEN, FRANK) == []
    harness.put_policy(("> 500.0", "> 1.0"), of=POLICY)

    await harness.agents.claim(claim_of(ref, verdict))

    assert (await harness.item(verdict.item_id)).is_pending
    assert await threads(harness, FRANK) == ["mine"]
    assert await threads(harness, BEN) == ["mine"]


async def test_what_moves_while_it_is_read_comes_once(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extension moves it behind the current place of the reader."""
    monkeypatch.setattr(queue, "_PAGE", 2)
    clicks = [(await harness.refund(thread=f"t{n}"))[0] for n in range(5)]
    ids = [click.approval for click in clicks]
    keys, found = harness.keys, list[str]()

    async for loaded in harness.reviews.queue.concerning([ANA]):
        found.append(loaded.approval.id)
        if len(found) == 1:
            member, far = keys.listed(found[0]), 10**14
            await harness.command("ZADD", keys.expiry, "XX", far, member)

    assert sorted(found) == sorted(ids)


# The queue shows what waits for a person, whatever else waits or runs.


async def waiting(harness: ServiceHarness, limit: int = 1000) -> list[str]:
    """Return the threads of what waits, in the order of the queue."""
    found = [loaded async for loaded in harness.reviews.queue.waiting(limit)]
    return [one.approval.thread for one in found]


async def test_the_soonest_call_of_any_agent_is_first(harness: ServiceHarness) -> None:
    for agent in ("b", "a", "c"):
        await harness.submit(REFUND, thread=f"of-{agent}", agent=agent)

    assert await waiting(harness) == ["of-b", "of-a", "of-c"]
    assert await waiting(harness, limit=2) == ["of-b", "of-a"]
