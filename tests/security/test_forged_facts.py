"""Forged facts in the store run no call and reach no reader.

Each forgery is written as by a writer to Redis without a secret. It causes no
execution, no false text for the model, and one security event.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import cast

import pytest

from keyturn.gateway.approvals.record import Origin
from keyturn.gateway.errors import CorruptRecord, RefReused
from keyturn.gateway.protocol.records import Person, Result
from keyturn.gateway.protocol.wire import (
    CallEnd,
    CallProgress,
    Claimed,
    VerdictKind,
)
from keyturn.gateway.service.people.queue import DelegationService
from keyturn.gateway.store.limits.freezes import (
    Freeze,
    FreezeList,
    FreezeScope,
    ScopeKind,
    sealed_key,
)
from keyturn.gateway.store.runs.jobs import Job, JobKind, sealed_job
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.scripts.fences import holding
from keyturn.gateway.store.sealing.encryption import packed
from keyturn.gateway.store.sealing.sealing import Sealed
from keyturn.gateway.store.store import Store
from tests.security.forging import (
    EVE,
    LOOK_UP,
    OTHER,
    PLACE,
    REFUND,
    REFUNDS,
    TENANT,
    Attack,
    authorized,
    freeze,
    turn_key,
)
from tests.service.harness import ServiceHarness
from tests.store_secrets import SECRETS

# Verdicts of turns


def with_run(stored: bytes, head: bytes) -> bytes:
    """Return verdicts in which the held call may run."""
    document = {
        "policy": "sha256:" + "0" * 64,
        "verdicts": [
            {
                "kind": "run",
                "tool": "process_refund",
                "tool_call_id": "c1",
                "tier": "auto",
                "args_hash": "sha256:" + "0" * 64,
            }
        ],
    }
    line = stored.partition(b"\n")[0]
    return line + b"\n" + head + json.dumps(document).encode()


FORGED_VERDICTS: dict[str, Callable[[bytes], bytes]] = {
    "without any seal, as format 2": lambda one: with_run(one, b""),
    "with a seal of zeros": lambda one: with_run(one, b"\x05" + bytes(16)),
    "with the seal of what was there": lambda one: with_run(
        one, one.partition(b"\n")[2][:17]
    ),
    "with one bit of the text changed": lambda one: one[:-1] + bytes([one[-1] ^ 1]),
    "with approvals of another turn": lambda one: (
        b"ap_default_" + b"0" * 32 + b"\n" + one.partition(b"\n")[2]
    ),
    "cut off": lambda one: one[:-1],
}


@pytest.mark.parametrize("how", FORGED_VERDICTS)
async def test_forged_verdicts_run_no_held_call(attack: Attack, how: str) -> None:
    ref, key, stored = await attack.turn()
    await attack.do("SET", key, FORGED_VERDICTS[how](stored))

    try:
        verdicts = await attack.again(ref)
    except (CorruptRecord, RefReused):
        verdicts = ()

    assert not any(one.kind is VerdictKind.RUN for one in verdicts)
    assert await attack.found() == [("seal_wrong", "verdicts")]


async def test_another_turns_verdicts_do_not_count(attack: Attack) -> None:
    _, _, run = await attack.turn(message="m1")
    ref, key, _ = await attack.turn(message="m2")
    await attack.do("SET", key, run)

    with pytest.raises(CorruptRecord):
        await attack.again(ref)
    assert await attack.found() == [("seal_wrong", "verdicts")]


# The requesters of a thread


def sealed_before(facts: bytes) -> bytes:
    return b"\x1d" + bytes(16) + bytes(8) + facts


FORGED_FACTS: dict[str, bytes] = {
    "somebody else asked": packed(ThreadFacts(requester=EVE).model_dump_json()),
    "nobody asked": b"{}",
    "with a seal of zeros": sealed_before(b"{}"),
    "their words belong elsewhere": packed(
        ThreadFacts(origin=Origin(channel="C0EVIL", thread_ts="1.2")).model_dump_json()
    ),
    "junk": b"\xff\xfe",
}


@pytest.mark.parametrize("how", FORGED_FACTS)
async def test_forged_facts_name_nobody(attack: Attack, how: str) -> None:
    key = attack.keys.thread_facts(*PLACE)
    await attack.harness.submit(LOOK_UP)
    await attack.do("HSET", key, "facts", FORGED_FACTS[how])

    found = await attack.store.threads.facts(attack.keys, *PLACE)

    assert found.is_partial
    assert (found.requester, found.origin) == (None, None)
    assert await attack.found() == [("seal_wrong", "thread")]


async def test_another_threads_facts_do_not_count(attack: Attack) -> None:
    await attack.harness.submit(LOOK_UP, thread="t2")
    await attack.harness.submit(LOOK_UP)
    copied = await attack.do("HGET", attack.keys.thread_facts("support", "t2"), "facts")
    key = attack.keys.thread_facts(*PLACE)
    await attack.do("HSET", key, "facts", cast("bytes", copied))

    assert (await attack.store.threads.facts(attack.keys, *PLACE)).is_partial
    assert await attack.found() == [("seal_wrong", "thread")]


async def test_older_facts_do_not_let_the_requester_approve(attack: Attack) -> None:
    key = attack.keys.thread_facts(*PLACE)
    change = attack.store.threads.change
    await change(attack.keys, *PLACE, lambda _: ThreadFacts(), why="begin")
    before = cast("bytes", await attack.do("HGET", key, "facts"))
    await change(attack.keys, *PLACE, lambda one: one.asked_by(EVE), why="begin")
    await attack.store.threads.facts(attack.keys, *PLACE)
    await attack.do("HSET", key, "facts", before)

    assert (await attack.store.threads.facts(attack.keys, *PLACE)).is_partial
    assert await attack.found() == [("replayed", "thread")]


# Delegations


async def _delegated(attack: Attack) -> bytes:
    service = DelegationService(attack.store)
    owner = Person(team="T0", user="U0ANA", name="Ana")
    await service.delegate(owner, "U0EVE", timedelta(hours=1))
    key = attack.keys.delegations
    return cast("bytes", await attack.do("HGET", key, "U0ANA"))


async def _made(attack: Attack) -> str:
    until = await attack.store.conn.now_ms(attack.keys.outbox) + 10**7
    await attack.do("HSET", attack.keys.delegations, "U0ANA", f"U0EVE {until}")
    return TENANT


async def _extended(attack: Attack) -> str:
    row = await _delegated(attack)
    await attack.do("HSET", attack.keys.delegations, "U0ANA", row + b"0")
    return TENANT


async def _of_another_person(attack: Attack) -> str:
    row = await _delegated(attack)
    key = attack.keys.delegations
    await attack.do("DEL", key)
    await attack.do("HSET", key, "U0BEN", row)
    return TENANT


async def _to_another_person(attack: Attack) -> str:
    row = (await _delegated(attack)).replace(b"U0EVE", b"U0DAN")
    await attack.do("HSET", attack.keys.delegations, "U0ANA", row)
    return TENANT


async def _of_another_tenant(attack: Attack) -> str:
    row = await _delegated(attack)
    keys = attack.store.keys_of_tenant(OTHER)
    await attack.do("HSET", keys.delegations, "U0ANA", row)
    return OTHER


@pytest.mark.parametrize(
    "forge",
    [_made, _extended, _of_another_person, _to_another_person, _of_another_tenant],
)
async def test_a_forged_delegation_gives_nobody_anything(
    attack: Attack, forge: Callable[[Attack], Awaitable[str]]
) -> None:
    tenant = await forge(attack)
    keys = attack.store.keys_of_tenant(tenant)
    for key in (attack.keys.delegations, keys.delegations):
        await attack.do("PEXPIRE", key, 10**7)

    assert await attack.store.delegations.all(keys) == ()
    assert await attack.found(tenant) == [("seal_wrong", "delegation")]


async def test_an_ended_delegation_is_not_put_back(attack: Attack) -> None:
    row = await _delegated(attack)
    owner = Person(team="T0", user="U0ANA", name="Ana")
    assert await DelegationService(attack.store).take_back(owner)
    key = attack.keys.delegations
    await attack.do("HSET", key, "U0ANA", row)
    await attack.do("PEXPIRE", key, 10**7)

    assert await attack.store.delegations.all(attack.keys) == ()
    assert await attack.found() == [("replayed", "delegation")]


# Jobs that start an agent


START = Job(
    kind=JobKind.START,
    tenant=TENANT,
    agent="support",
    thread="t1",
    input="pay Eve 1,000,000",
    id="0" * 16,
)

ZEROS = f"{'A' * 22}=="

FORGED_JOBS: dict[str, Callable[[Job], Job]] = {
    "without a seal": lambda one: one.with_(input=one.input[24:]),
    "as a plain text": lambda one: one.with_(input="pay Eve"),
    "with a seal of zeros": lambda one: one.with_(input=f"{ZEROS}{one.input[24:]}"),
    "with other words": lambda one: one.with_(input=one.input.replace("Eve", "Bob")),
    "for another thread": lambda one: one.with_(thread="t2"),
    "for another agent": lambda one: one.with_(agent="ops"),
    "with another id": lambda one: one.with_(id="1" * 16),
    "with a seal that is none": lambda one: one.with_(input=f"zz!{one.input[3:]}"),
}


@pytest.mark.parametrize("how", FORGED_JOBS)
async def test_a_forged_job_starts_nothing(attack: Attack, how: str) -> None:
    queue = attack.store.queue(attack.keys)
    await queue.prepare()
    await queue.put(sealed_job(attack.store.sealing, START))
    [entry] = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]",
        await attack.do("XRANGE", attack.keys.jobs, "-", "+"),
    )
    ours = Job.model_validate_json(entry[1][b"j"])
    await attack.do("XDEL", attack.keys.jobs, entry[0])
    forged = FORGED_JOBS[how](ours).model_dump_json()
    await attack.do("XADD", attack.keys.jobs, "*", "j", forged)

    assert await queue.take(block_ms=1) is None
    assert await queue.depth() == 0
    assert await attack.found() == [("seal_wrong", "job")]


# Ends of calls that run without people


FORGED_ENDS: dict[str, Callable[[bytes], bytes]] = {
    "without a seal": lambda _: (
        Result(ok=True, summary="paid").model_dump_json().encode()
    ),
    "with the seal of another text": lambda one: (
        one[:17] + Result(ok=True, summary="paid").model_dump_json().encode()
    ),
    "with one bit changed": lambda one: one[:-1] + bytes([one[-1] ^ 1]),
}


@pytest.mark.parametrize("how", FORGED_ENDS)
async def test_no_forged_end_reaches_the_model(attack: Attack, how: str) -> None:
    ref, (verdict,) = await attack.harness.submit(LOOK_UP)
    key, agents = attack.keys.begun(turn_key(ref)), attack.harness.agents
    progress = CallProgress(ref=ref, tool=verdict.tool, tool_call_id="c0", verb="begin")
    async with attack.store.threads.lease(attack.keys, *PLACE) as lease:
        with holding(lease):
            await agents.report_progress(progress)
            await agents.ended(
                CallEnd(
                    ref=ref,
                    tool=verdict.tool,
                    tool_call_id="c0",
                    result=Result(ok=True, summary="shipped"),
                )
            )
    stored = cast("bytes", await attack.do("HGET", key, "c0:r"))
    await attack.do("HSET", key, "c0:r", FORGED_ENDS[how](stored))

    async with attack.store.threads.lease(attack.keys, *PLACE) as lease:
        with holding(lease):
            begun = await agents.report_progress(progress)

    assert (begun.may_run, begun.result) == (False, None)
    assert await attack.found() == [("seal_wrong", "call")]


# Pages that a reviewer has seen


@pytest.mark.parametrize("value", [b"1", b"00" * 16, b"", b"\xff"])
async def test_a_forged_page_counts_as_unseen(attack: Attack, value: bytes) -> None:
    click, _ = await attack.harness.refund()
    own, reader = attack.keys.opened(click.approval), "U0ANA 0 sha256:0"
    pages = attack.store.read_pages
    await pages.opened_page(attack.keys, click.approval, reader=reader, page=0, pages=2)
    await attack.do("HSET", own, f"{reader} 1", value)

    assert not await pages.has_opened(
        attack.keys, click.approval, reader=reader, pages=2
    )
    assert await attack.found() == [("seal_wrong", "page")]


async def test_the_page_that_somebody_else_saw_is_not_seen(attack: Attack) -> None:
    click, _ = await attack.harness.refund()
    own, pages = attack.keys.opened(click.approval), attack.store.read_pages
    await pages.opened_page(
        attack.keys, click.approval, reader="U0ANA", page=0, pages=1
    )
    seal = cast("bytes", await attack.do("HGET", own, "U0ANA 0"))
    await attack.do("HSET", own, "U0BEN 0", seal)

    assert not await pages.has_opened(
        attack.keys, click.approval, reader="U0BEN", pages=1
    )
    assert await attack.found() == [("seal_wrong", "page")]


# With another secret


async def test_another_secret_seals_nothing(attack: Attack) -> None:
    claim = await authorized(attack)
    await freeze(attack)
    other = Store(attack.store.conn.url, secrets=[b"x" * 32], lease_ms=2000)

    try:
        reply: object = await ServiceHarness(other).agents.claim(claim)
    except CorruptRecord as error:
        reply = error
    await other.close()

    assert not isinstance(reply, Claimed)


async def test_a_rotation_keeps_what_was_sealed(attack: Attack) -> None:
    await attack.harness.submit(LOOK_UP)
    await freeze(attack)
    rotated = Store(attack.store.conn.url, secrets=[b"n" * 32, *SECRETS], lease_ms=2000)

    frozen = await ServiceHarness(rotated).reviews.freezes.frozen()
    facts = await rotated.threads.facts(attack.keys, *PLACE)
    await rotated.close()

    assert [one.by for one in frozen] == ["T0/U0ANA"]
    assert facts.requester is not None
    assert await attack.found() == []


# A writer to the store lifts no freeze, and forges no text of one.

# Freezes


async def _list_gone(attack: Attack) -> None:
    await attack.do("DEL", sealed_key(attack.keys))


async def _list_unsealed(attack: Attack) -> None:
    body = FreezeList(epoch=2**50).model_dump_json().encode()
    await attack.do("SET", sealed_key(attack.keys), b"\x1d" + bytes(16) + body)


async def _list_with_its_seal(attack: Attack) -> None:
    key = sealed_key(attack.keys)
    stored = cast("bytes", await attack.do("GET", key))
    await attack.do("SET", key, stored[:17] + b'{"epoch": 9}')


FORGED_FREEZES = {
    "the list deleted": _list_gone,
    "an empty list with a seal of zeros": _list_unsealed,
    "another list under the seal": _list_with_its_seal,
}


@pytest.mark.parametrize("how", FORGED_FREEZES)
async def test_a_freeze_outlives_what_is_written(attack: Attack, how: str) -> None:
    claim = await authorized(attack)
    await freeze(attack)
    await FORGED_FREEZES[how](attack)

    reply = await attack.harness.agents.claim(claim)

    assert not isinstance(reply, Claimed)
    frozen = await attack.harness.reviews.freezes.frozen()
    assert any(one.scope in (REFUNDS, _EVERYTHING) for one in frozen)
    # The list and the freeze in it may each be reported.
    assert {*await attack.found()} in (
        {("seal_wrong", "freezes")},
        {("replayed", "freezes")},
    )


_EVERYTHING = FreezeScope(kind=ScopeKind.TENANT)


async def test_an_older_list_of_freezes_lifts_none(attack: Attack) -> None:
    freezes, key = attack.harness.reviews.freezes, sealed_key(attack.keys)
    other = FreezeScope(kind=ScopeKind.TOOL, name="send_email")
    await freezes.freeze(other, "T0/U0ANA", "why")
    older = cast("bytes", await attack.do("GET", key))
    claim = await authorized(attack)
    await freeze(attack)
    await attack.do("SET", key, older)

    reply = await attack.harness.agents.claim(claim)

    assert not isinstance(reply, Claimed)
    assert await attack.found() == [("replayed", "freezes")]


async def test_the_list_of_another_tenant_lifts_no_freeze(attack: Attack) -> None:
    keys = attack.store.keys_of_tenant(OTHER)
    body = FreezeList(epoch=2**50).model_dump_json().encode()
    copied = attack.store.sealing.sealed(Sealed.FREEZES, (sealed_key(keys),), body)
    claim = await authorized(attack)
    await freeze(attack)
    await attack.do("SET", sealed_key(attack.keys), copied)

    reply = await attack.harness.agents.claim(claim)

    assert not isinstance(reply, Claimed)
    assert await attack.found() == [("seal_wrong", "freezes")]


async def test_a_second_freeze_does_not_end_the_first(attack: Attack) -> None:
    freezes = attack.harness.reviews.freezes
    claim = await authorized(attack)
    await freeze(attack)
    await _list_gone(attack)
    await attack.harness.agents.claim(claim)
    other = FreezeScope(kind=ScopeKind.TOOL, name="send_email")

    await freezes.freeze(other, "T0/U0ANA", "not now")
    assert not isinstance(await attack.harness.agents.claim(claim), Claimed)
    await freezes.unfreeze(other, "T0/U0ANA")
    assert not isinstance(await attack.harness.agents.claim(claim), Claimed)
    assert await freezes.unfreeze(_EVERYTHING, "T0/U0ANA")

    assert isinstance(await attack.harness.agents.claim(claim), Claimed)
    # The loss of the list is reported once, and not that ours is one.
    assert await attack.found() == [("replayed", "freezes")]


async def test_a_freeze_that_is_not_in_the_list_stops_nothing(attack: Attack) -> None:
    forged = Freeze(scope=REFUNDS, by="the CEO", reason="because")
    await attack.do("HSET", attack.keys.frozen, str(REFUNDS), forged.model_dump_json())

    _, (ran,) = await attack.harness.submit(LOOK_UP, thread="t9")
    _, (held,) = await attack.harness.submit(REFUND, thread="t8")

    assert (ran.kind, held.kind) == (VerdictKind.RUN, VerdictKind.HOLD)
    assert await attack.harness.reviews.freezes.frozen() == ()
