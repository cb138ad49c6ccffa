"""A person's pending calls are found, among any others, and read by pages."""

from __future__ import annotations

import pytest

from keyturn.gateway.approvals.decisions import Approve, Edit, Reviewer
from keyturn.gateway.policy.load import load_policy
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.service.people import queue
from keyturn.gateway.store.connection.connection import Argument
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.store import Store
from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    EVE,
    ServiceHarness,
    claim_of,
    person,
)

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
