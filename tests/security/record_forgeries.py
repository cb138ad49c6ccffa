"""Forgeries of a record by a writer to Redis, each a function."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from redis.asyncio import Redis

from keyturn.gateway.store.connection.connection import fields
from keyturn.gateway.store.records.codec import SEAL, RecordSeals, Stored
from keyturn.gateway.store.store import Store
from tests.security.record_forging import (
    FORGED,
    Victim,
    asked,
    authorized,
    edited,
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


async def state_alone(victim: Victim) -> None:
    await victim.put(i0_s="authorized")


async def both_states(victim: Victim) -> None:
    await victim.put(i0_s="authorized", i1_s="authorized")


async def executed_state(victim: Victim) -> None:
    await victim.put(i0_s="executed")


async def rejected_state(victim: Victim) -> None:
    await victim.put(i0_s="rejected")


async def votes(victim: Victim) -> None:
    item = await victim.harness.item(victim.claims[0].item_id)
    by = {"team": "T0", "user": "U0ANA", "name": "Ana"}
    vote = {"by": by, "at_ms": 1, "action_hash": item.action_hash, "roles": ["support"]}
    await victim.detail(votes=[vote])


async def decision(victim: Victim) -> None:
    by = {"team": "T0", "user": "U0ANA", "name": "Ana"}
    await victim.detail(decision={"verb": "approve", "by": by, "at_ms": 1})
    await victim.put(i0_s="authorized", i0_l=FOREVER)


async def decision_by_another(victim: Victim) -> None:
    by = {"team": "T0", "user": "U0EVE", "name": "Eve"}
    await victim.detail(decision={"verb": "approve", "by": by, "at_ms": 1})


async def principals(victim: Victim) -> None:
    await victim.detail(principals=[])


async def requester(victim: Victim) -> None:
    await victim.document(lambda body: body.pop("requester"))


async def card_principals(victim: Victim) -> None:
    await victim.document(lambda body: body.update(principals=[]))


async def tenant(victim: Victim) -> None:
    await victim.document(lambda body: body.update(tenant="other"))


async def thread(victim: Victim) -> None:
    await victim.document(lambda body: body.update(thread="other"))


async def lifetime(victim: Victim) -> None:
    await victim.document(lambda body: body.update(ttl_ms=FOREVER))


async def requirement(victim: Victim) -> None:
    role = {"name": "anybody", "users": ["U0EVE"]}
    await victim.detail(requirement={"approvals": 1, "of": [role]})


async def tier(victim: Victim) -> None:
    await victim.detail(tier="notify")


async def floor(victim: Victim) -> None:
    await victim.detail(floor=None, reasons=["Nobody has to look at this."])


async def description(victim: Victim) -> None:
    await victim.detail(description="Pays nothing.")


async def action(victim: Victim) -> None:
    item = await victim.harness.item(victim.claims[0].item_id)
    await victim.detail(action=victim.other_action(item.action))


async def edit_record(victim: Victim) -> None:
    """Another amount, with the record of an edit that nobody made."""
    item = await victim.harness.item(victim.claims[0].item_id)
    document = victim.other_action(item.action)
    assert item.edit is not None
    edit = {
        **item.edit.model_dump(mode="json"),
        "executed_args": {"amount": FORGED},
    }
    await victim.detail(action=document, edit=edit)


async def edit_author(victim: Victim) -> None:
    item = await victim.harness.item(victim.claims[0].item_id)
    assert item.edit is not None
    edit = item.edit.model_dump(mode="json")
    text = json.dumps(edit).replace("U0ANA", "U0CHLOE")
    await victim.detail(edit=json.loads(text))


async def edit_taken_out(victim: Victim) -> None:
    await victim.forget_detail("edit")


async def requested(victim: Victim) -> None:
    def change(body: dict[str, object]) -> None:
        text = json.dumps(body["items"]).replace("899", str(FORGED))
        body["items"] = json.loads(text)

    await victim.document(change)


async def tool(victim: Victim) -> None:
    item = await victim.harness.item(victim.claims[0].item_id)
    named = item.requested.replace("process_refund", "wire_money")
    await victim.detail(requested=named)


async def expiry(victim: Victim) -> None:
    await victim.put(expires=FOREVER)


async def expiry_of_one(victim: Victim) -> None:
    await victim.put(i0_e=FOREVER)


async def expiry_taken_out(victim: Victim) -> None:
    await victim.drop("expires")


async def created(victim: Victim) -> None:
    await victim.put(created=1)


async def lapse(victim: Victim) -> None:
    await victim.put(i0_l=FOREVER)


async def lapse_taken_out(victim: Victim) -> None:
    await victim.drop("0:l")


async def authorized_since(victim: Victim) -> None:
    await victim.put(i0_t=FOREVER)


async def result(victim: Victim) -> None:
    body = {"ok": True, "summary": "refunded twice", "payload": "refunded twice"}
    await victim.detail(result=body)


async def result_of_a_failure(victim: Victim) -> None:
    await victim.detail(result={"ok": False, "summary": "no"})
    await victim.put(i0_s="failed")


async def result_made_up(victim: Victim) -> None:
    body = {"ok": True, "summary": "refunded", "payload": "refunded"}
    await victim.detail(result=body)
    await victim.put(i0_s="executed", i0_f=1)


async def result_taken_out(victim: Victim) -> None:
    await victim.forget_detail("result")


async def late_result(victim: Victim) -> None:
    await victim.detail(late_result={"ok": False, "summary": "no"})


async def runs_again(victim: Victim) -> None:
    await victim.put(i0_s="authorized", i0_l=FOREVER)
    await victim.drop("0:f")
    await victim.forget_detail("result")
    await victim.forget_detail("owner")


async def fence(victim: Victim) -> None:
    await victim.put(i0_f=7)


async def fence_taken_out(victim: Victim) -> None:
    await victim.drop("0:f")


async def owner(victim: Victim) -> None:
    await victim.detail(owner="somebody-else")


async def reconciled(victim: Victim) -> None:
    await victim.detail(reconciled_fence=1)


async def older_record(victim: Victim) -> None:
    """A sealed one of before, under the number of now."""
    await victim.put_back((await victim.head())[b"rev"])


async def rev_risen(victim: Victim) -> None:
    await victim.put(rev=99)


async def rev_fallen(victim: Victim) -> None:
    await victim.put(rev=1)


async def version(victim: Victim) -> None:
    await victim.document(lambda body: body.update(version=9))


async def seal_taken_out(victim: Victim) -> None:
    await victim.drop(SEAL)


async def seal_emptied(victim: Victim) -> None:
    await victim.put(h=b"")


async def seal_shortened(victim: Victim) -> None:
    await victim.put(h=(await victim.head())[b"h"][:8])


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


async def seal_lost(victim: Victim) -> None:
    await states(victim)
    await victim.drop(SEAL)


async def field_added(victim: Victim) -> None:
    await victim.put(format=14)


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


async def item_copied(victim: Victim) -> None:
    head = await victim.head()
    copied = {b"1" + name[1:]: one for name, one in head.items() if name[:2] == b"0:"}
    await victim.replace({**head, **copied})


async def items_fewer(victim: Victim) -> None:
    await victim.put(n=1)


async def run(victim: Victim) -> None:
    await victim.put(run=b"\x00" * 16)


async def uses(victim: Victim) -> None:
    await victim.put(i0_w=json.dumps([["tk:{default}:w", "x 1", 1]]))


async def standing_uses(victim: Victim) -> None:
    await victim.document(lambda body: body.update(uses=[]))
    await victim.put(checked=FOREVER)


async def confirmed(victim: Victim) -> None:
    await victim.put(checked=FOREVER, checked_seal=b"0" * 16)


async def acknowledged(victim: Victim) -> None:
    by = {"team": "T0", "user": "U0ANA", "name": "Ana"}
    said = {"by": by, "until_ms": FOREVER}
    await victim.document(lambda body: body.update(acknowledged=said))


async def remark(victim: Victim) -> None:
    by = {"team": "T0", "user": "U0ANA", "name": "Ana"}
    said = [{"by": by, "text": "I saw it. Fine."}]
    await victim.document(lambda body: body.update(remarks=said))


async def inquiry(victim: Victim) -> None:
    await victim.document(lambda body: body.update(inquiries=[]))


async def reminded(victim: Victim) -> None:
    times = {"reminded_at_ms": 1, "escalated_at_ms": 1}
    await victim.document(lambda body: body.update(times))


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


FORGERIES: list[tuple[Before, Forge]] = [
    *((asked, one) for one in (states, state_alone, both_states, executed_state)),
    *((asked, one) for one in (rejected_state, votes, decision, decision_by_another)),
    *((asked, one) for one in (principals, requester, card_principals, tenant)),
    *((asked, one) for one in (thread, lifetime, requirement, tier, floor)),
    *((asked, one) for one in (description, requested, tool, expiry, expiry_of_one)),
    *((asked, one) for one in (expiry_taken_out, created, result_made_up, version)),
    *((asked, one) for one in (rev_risen, seal_taken_out, seal_emptied)),
    *((asked, one) for one in (seal_shortened, seal_of_another_key)),
    *((asked, one) for one in (seal_of_another_record, seal_lost, field_added)),
    *((asked, one) for one in (head_of_another, record_of_another, items_fewer)),
    *((asked, one) for one in (run, uses, standing_uses, confirmed, acknowledged)),
    *((asked, one) for one in (remark, inquiry, reminded, set_aside_by_others)),
    *((asked, one) for one in (unknown_field, name_of_no_text, junk)),
    *((authorized, one) for one in (action, lapse, lapse_taken_out, items_swapped)),
    *((authorized, one) for one in (item_copied, authorized_since, older_record)),
    *((authorized, one) for one in (rev_fallen, fence, owner, tier, requirement)),
    *((edited, one) for one in (edit_record, edit_author, edit_taken_out, action)),
    *((executing, one) for one in (fence, fence_taken_out, owner, runs_again)),
    *((executing, one) for one in (older_record, result_made_up, reconciled)),
    *((executed, one) for one in (result, result_of_a_failure, result_taken_out)),
    *((executed, one) for one in (late_result, runs_again, older_record, states)),
]
IDS = [f"{before.__name__}-{forge.__name__}" for before, forge in FORGERIES]
