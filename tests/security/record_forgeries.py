"""Forgeries of a record by a writer to Redis, each a function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from keyturn.gateway.store.connection.connection import fields
from keyturn.gateway.store.records.codec import SEAL, RecordSeals, Stored
from keyturn.gateway.store.store import Store
from tests.security.record_forging import (
    Victim,
    asked,
    authorized,
    executed,
    executing,
)
from tests.service.harness import ServiceHarness

Forge = Callable[[Victim], Awaitable[None]]
Before = Callable[[ServiceHarness, Redis], Awaitable[Victim]]

FOREVER = 2**52
OTHER_SECRET = b"the secret of somebody else: 32b"


async def states(victim: Victim) -> None:
    await victim.put(i0_s="authorized", i0_t=1, i0_l=FOREVER)


async def decision(victim: Victim) -> None:
    by = {"team": "T0", "user": "U0ANA", "name": "Ana"}
    await victim.detail(decision={"verb": "approve", "by": by, "at_ms": 1})
    await victim.put(i0_s="authorized", i0_l=FOREVER)


async def thread(victim: Victim) -> None:
    await victim.document(lambda body: body.update(thread="other"))


async def requirement(victim: Victim) -> None:
    role = {"name": "anybody", "users": ["U0EVE"]}
    await victim.detail(requirement={"approvals": 1, "of": [role]})


async def action(victim: Victim) -> None:
    item = await victim.harness.item(victim.claims[0].item_id)
    await victim.detail(action=victim.other_action(item.action))


async def result(victim: Victim) -> None:
    body = {"ok": True, "summary": "refunded twice", "payload": "refunded twice"}
    await victim.detail(result=body)


async def runs_again(victim: Victim) -> None:
    await victim.put(i0_s="authorized", i0_l=FOREVER)
    await victim.drop("0:f")
    await victim.forget_detail("result")
    await victim.forget_detail("owner")


async def owner(victim: Victim) -> None:
    await victim.detail(owner="somebody-else")


async def older_record(victim: Victim) -> None:
    """A sealed one of before, under the number of now."""
    await victim.put_back((await victim.head())[b"rev"])


async def rev_fallen(victim: Victim) -> None:
    await victim.put(rev=1)


async def seal_taken_out(victim: Victim) -> None:
    await victim.drop(SEAL)


async def seal_of_another_key(victim: Victim) -> None:
    """By the very construction, under a secret that is not ours."""
    await states(victim)
    conn = Store(victim.harness.store.conn.url, secrets=(OTHER_SECRET,)).conn
    stored = fields(await victim.head())  # pyright: ignore[reportArgumentType]
    document = await victim.body(victim.id)
    await victim.put(h=RecordSeals(conn).of(victim.id, Stored(stored, document)))
    await conn.close()


async def seal_of_another_record(victim: Victim) -> None:
    await states(victim)
    other = victim.others["authorized"].item_id.partition(".")[0]
    await victim.put(h=(await victim.head(other))[b"h"])


async def head_of_another(victim: Victim) -> None:
    other = victim.others["authorized"].item_id.partition(".")[0]
    await victim.replace(await victim.head(other))


async def record_of_another(victim: Victim) -> None:
    other = victim.others["authorized"].item_id.partition(".")[0]
    await victim.replace(await victim.head(other))
    body = await victim.body(other)
    await victim.redis.set(victim.keys.document(victim.id), body)
    # Nothing names the turn any more: its verdicts would stay.
    turn = victim.older[b"turn"].hex()
    await victim.redis.delete(victim.keys.turn(f"sha256:{turn}"))


async def items_swapped(victim: Victim) -> None:
    """What the first one has becomes the second one's."""
    head = await victim.head()
    for name in list(head):
        if name.startswith((b"0:", b"1:")):
            head[(b"1" if name[:1] == b"0" else b"0") + name[1:]] = head[name]
    await victim.replace(head)


async def items_fewer(victim: Victim) -> None:
    await victim.put(n=1)


async def confirmed(victim: Victim) -> None:
    await victim.put(checked=FOREVER, checked_seal=b"0" * 16)


async def set_aside_by_others(victim: Victim) -> None:
    """As if we had quarantined it, so that no one is informed."""
    await states(victim)
    await victim.put(quarantined=1, quarantine_seal=b"0" * 16)


async def unknown_field(victim: Victim) -> None:
    await victim.put_field("0:z", "1")


async def name_of_no_text(victim: Victim) -> None:
    await victim.redis.hset(victim.keys.head(victim.id), b"\xff", b"1")  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]


async def junk(victim: Victim) -> None:
    await victim.redis.set(victim.keys.document(victim.id), b"\x03junk")


# One of each kind: `test_sealed_bytes` changes every field of a record.
FORGERIES: list[tuple[Before, Forge]] = [
    *((asked, one) for one in (states, decision, requirement, items_fewer)),
    *((asked, one) for one in (seal_taken_out, seal_of_another_key)),
    *((asked, one) for one in (seal_of_another_record, head_of_another)),
    *((asked, one) for one in (record_of_another, confirmed, set_aside_by_others)),
    *((asked, one) for one in (unknown_field, name_of_no_text, junk)),
    *((authorized, one) for one in (action, items_swapped, older_record, rev_fallen)),
    *((executing, one) for one in (owner, runs_again)),
    *((executed, one) for one in (result, older_record)),
]
IDS = [f"{before.__name__}-{forge.__name__}" for before, forge in FORGERIES]
