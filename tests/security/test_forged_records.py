"""A writer to Redis without a secret runs no call, and deceives no reader.

Each forgery is written by a separate connection, without seals. A newly started
process, with empty caches, then reads it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from redis.asyncio import Redis

from keyturn.gateway.approvals.decisions import Approve, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import CorruptRecord
from keyturn.gateway.protocol.records import ItemState, RunRef
from keyturn.gateway.protocol.wire import Claimed, Refused
from keyturn.gateway.store.records.codec import QUARANTINED
from keyturn.gateway.store.store import Store
from tests.security.record_forgeries import (
    FORGERIES,
    IDS,
    OTHER_SECRET,
    Before,
    Forge,
    requirement,
)
from tests.security.record_forging import Victim, asked, authorized, executed, executing
from tests.service.harness import ANA, EVE, ServiceHarness, claim_of
from tests.store_secrets import SECRETS
from tests.streams import announced, audit_entries


@pytest.fixture
async def redis(store: Store) -> AsyncGenerator[Redis]:
    client = Redis.from_url(store.conn.url)  # pyright: ignore[reportUnknownMemberType]
    yield client
    await client.aclose()


def newcomer(harness: ServiceHarness) -> ServiceHarness:
    """Return a gateway that has just started."""
    url = harness.store.conn.url
    return ServiceHarness(Store(url, secrets=SECRETS, lease_ms=2000))


async def told(store: Store) -> tuple[list[str], list[str]]:
    """Return the security events, and the records that were quarantined."""
    part = store.keys_of_tenant("default")
    events = await audit_entries(store.conn, part)
    found = [one for one in events if one.name is EventName.SECURITY_DETECTED]
    outbox = await announced(store.conn, part)
    aside = [one for one in outbox if one.name is EventName.RECORD_QUARANTINED]
    return [one.reason for one in found], [one.approval for one in aside]


async def is_refused(victim: Victim, kind: str = "seal_wrong") -> None:
    """Read the record in every way, in a gateway that has just started."""
    now = newcomer(victim.harness)
    ref, run_ref = victim.claims[0].ref, RunRef(agent="support", thread="t1")
    for claim in victim.claims:
        reply = await now.agents.claim(claim)
        assert isinstance(reply, Refused), reply
        with pytest.raises(CorruptRecord):
            await now.reviews.read(victim.id)
    # The model gets nothing of it: neither an outcome nor an edit.
    ids = {claim.item_id for claim in victim.claims}
    outcomes = await now.agents.outcomes(ref)
    assert not [one for one in outcomes if one.item_id in ids]
    assert await now.agents.history(run_ref) == ()
    await now.sweeper.sweep()

    kinds, aside = await told(now.store)
    assert kinds == [kind]
    assert aside == [victim.id]
    assert QUARANTINED.encode() in await victim.head()
    for claim in victim.claims:
        assert isinstance(await now.agents.claim(claim), Refused)
    await now.store.close()


@pytest.mark.parametrize(("before", "forge"), FORGERIES, ids=IDS)
async def test_a_forged_record_runs_nothing_and_is_set_aside(
    harness: ServiceHarness, redis: Redis, before: Before, forge: Forge
) -> None:
    victim = await before(harness, redis)
    ref, (verdict,) = await harness.submit(("wire_money", {"amount": 1}), thread="wire")
    victim.others["wire"] = claim_of(ref, verdict)

    await forge(victim)

    await is_refused(victim)
    # What others wait for is not touched.
    assert (await harness.item(verdict.item_id)).is_pending


async def test_a_forged_need_lets_no_one(harness: ServiceHarness, redis: Redis) -> None:
    victim = await asked(harness, redis)
    click = await harness.click_on(victim.claims[0].item_id)
    await requirement(victim)
    now = newcomer(harness)

    with pytest.raises(CorruptRecord):
        await now.reviews.decide(click, Approve(), EVE)

    await now.store.close()


@pytest.mark.parametrize("before", [executing, executed], ids=["started", "ran"])
async def test_an_older_sealed_record_is_noticed_by_who_knows_a_newer_one(
    harness: ServiceHarness, redis: Redis, before: Before
) -> None:
    """All parts have valid seals: only knowledge of a newer record reveals it."""
    victim = await before(harness, redis)
    await victim.put_back()

    for claim in victim.claims:
        assert isinstance(await harness.agents.claim(claim), Refused)

    kinds, aside = await told(harness.store)
    assert kinds == ["replayed"]
    assert aside == [victim.id]


@pytest.mark.parametrize("knows", ["wrote", "read"])
async def test_a_sealed_record_that_lost_a_race_is_not_taken_for_the_winner(
    harness: ServiceHarness, redis: Redis, knows: str
) -> None:
    """An attacker who reads the traffic knows both, including the one that lost."""
    victim = await asked(harness, redis)
    item_id = victim.claims[0].item_id
    await harness.decide(item_id, Approve())
    lost, its_body = await victim.head(), await victim.body(victim.id)
    await victim.put_back()
    # Another process, which the first one lost against.
    winner = newcomer(harness)
    await winner.reviews.decide(await winner.click_on(item_id), Reject(), ANA)
    assert (await victim.head())[b"rev"] == lost[b"rev"]
    first = winner if knows == "wrote" else newcomer(harness)
    assert (await first.item(item_id)).state is ItemState.REJECTED

    victim.older, victim.older_body = lost, its_body
    await victim.put_back()

    assert isinstance(await first.agents.claim(victim.claims[0]), Refused)
    assert await told(harness.store) == (["replayed"], [victim.id])
    for one in (winner, first):
        await one.store.close()


async def test_an_old_secret_still_seals(harness: ServiceHarness, redis: Redis) -> None:
    victim = await authorized(harness, redis)
    url = harness.store.conn.url
    rotated = ServiceHarness(Store(url, secrets=(OTHER_SECRET, *SECRETS)))

    reply = await rotated.agents.claim(victim.claims[0])
    assert isinstance(reply, Claimed)

    # Sealed with the new secret now, which the old one alone does not know.
    with pytest.raises(CorruptRecord):
        await newcomer(harness).reviews.read(victim.id)
    await rotated.store.close()
