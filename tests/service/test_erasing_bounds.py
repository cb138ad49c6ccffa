"""Erasing removes exactly the named approvals."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Click, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.protocol.records import Person
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import ProposedCall, Turn, TurnRef, VerdictKind
from keyturn.gateway.service.submit.submitting import ERASED
from keyturn.gateway.store.erasing import erase_approval
from keyturn.gateway.store.keys import KEEP_MS
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from tests.security.test_canary import dump
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, DAN, ServiceHarness
from tests.service.test_erasing import WORD, erase, keys_of, left, rejected
from tests.store_secrets import SECRETS

EVE = DAN.with_(user="U0EVE", name="Eve")


async def rejected_of(harness: ServiceHarness, who: Person, thread: str) -> Click:
    """Request a call as a person, and reject it as Ana."""
    facts = ThreadFacts(requester=who)
    await harness.store.threads.change(
        keys_of(harness), "support", thread, lambda _: facts, why="aside"
    )
    call = ProposedCall(tool="process_refund", args={"amount": 5}, tool_call_id="c0")
    ref = TurnRef(agent="support", thread=thread, message_id="m")
    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
    click = await harness.click(verdict)
    await harness.reviews.decide(click, Reject(reason=WORD), ANA)
    return click


async def test_what_was_erased_is_found_by_who_asked_for_it(
    harness: ServiceHarness,
) -> None:
    mine, theirs = await rejected(harness), await rejected_of(harness, EVE, "t2")
    for one in (mine, theirs):
        await erase(harness, one.approval)

    for who, click in ((DAN, mine), (EVE, theirs)):
        assert (await erase(harness, who.user)).approvals == (click.approval,)
    assert (await erase(harness, ANA.user)).approvals == ()


async def test_a_person_is_found_where_they_acted_and_by_their_whole_id(
    harness: ServiceHarness,
) -> None:
    for thread in ("t1", "t2"):
        await rejected(harness, thread)

    acted = await erase(harness, ANA.user, yes=False)
    other = await erase(harness, ANA.user[:-1], yes=False)

    assert (acted.approvals, acted.live) == ((), 2)
    assert (other.approvals, other.live) == ((), 0)


async def test_what_changed_since_it_was_read_is_not_erased(
    harness: ServiceHarness,
) -> None:
    click = await rejected(harness)
    read = await harness.reviews.read(click.approval)
    assert read

    older = read.approval.with_(rev=read.approval.rev - 1)
    outcome = await erase_approval(
        harness.store, keys_of(harness), older, over=b"", by="x", is_person=False
    )

    assert outcome == "moved"
    assert await harness.reviews.read(click.approval)


async def test_verdicts_and_who_read_it_go_with_an_approval(
    harness: ServiceHarness,
) -> None:
    _, verdicts = await harness.submit(
        ("process_refund", {"amount": 5}), ("look_up_order", {"id": WORD})
    )
    click = await harness.click(verdicts[0])
    await harness.reviews.decide(click, Reject(reason=WORD), ANA)
    keys, conn = keys_of(harness), harness.store.conn
    seen_by = keys.opened(approval_of(verdicts[0].item_id)[0])
    await conn.command("HSET", seen_by, "reader", "1")
    await conn.command("PEXPIRE", seen_by, KEEP_MS)
    before = await dump(conn)
    turns = {one for one in before if ":turn:" in one}
    assert turns

    await erase(harness, click.approval)

    after = await dump(conn)
    assert seen_by not in after
    assert turns <= after.keys()
    assert not any(before[one] in after[one] for one in turns)
    assert not await left(harness)


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_turn_that_was_erased_is_over(
    harness: ServiceHarness, caplog: pytest.LogCaptureFixture, calls: int
) -> None:
    # The second call runs without people, and makes the turn keep its verdicts.
    refund: JsonObject = {"amount": 5, "note": WORD}
    asked = [("process_refund", refund), ("look_up_order", refund)][:calls]
    _, [verdict, *_] = await harness.submit(*asked, message_id="m")
    click = await harness.click(verdict)
    await harness.reviews.decide(click, Reject(reason=WORD), ANA)
    await erase(harness, click.approval)

    # By a process that knew its record, and by one that did not.
    other = Store(harness.store.conn.url, secrets=SECRETS, lease_ms=2000)
    try:
        for each in (harness, ServiceHarness(other)):
            _, verdicts = await each.submit(*asked, message_id="m")
            assert [one.kind for one in verdicts] == [VerdictKind.DENY] * calls
            assert {one.reason for one in verdicts} == {ERASED}
            assert not any(one.item_id for one in verdicts)
            assert await each.reviews.read(click.approval) is None
    finally:
        await other.close()

    names = await dump(harness.store.conn)
    [turn] = (one for one in names if ":turn:" in one)
    left_ms = await harness.command("PTTL", turn)
    assert isinstance(left_ms, int)
    assert left_ms > KEEP_MS - 3_600_000
    assert not await left(harness)
    assert "security" not in caplog.text


async def test_who_erased_is_known_after_all_that_is_erased(
    store: Store, tmp_path: Path
) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    store.audit_folder = store.tree_folder
    click = await rejected(harness)
    await erase(harness, click.approval)
    await house.writer.tick(is_last=True)

    found = await erase(harness, click.approval)

    assert found.entries > 0
    rows = [one async for one in store.audit(keys_of(harness)).entries()]
    [erasure] = [one for one in rows if one.name is EventName.APPROVAL_ERASED]
    assert (erasure.approval, erasure.actor) == (click.approval, "cli/eve")


async def test_no_file_is_changed_while_a_gateway_seals(
    store: Store, tmp_path: Path
) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    store.audit_folder = store.tree_folder
    click = await rejected(harness)
    await house.writer.tick(is_last=True)

    there = Store(store.conn.url, secrets=SECRETS, lease_ms=60_000)
    async with there.threads.lease(keys_of(harness), "", "audit"):
        with pytest.raises(ThreadUnavailable):
            await erase(harness, click.approval)

    rows = [one async for one in store.audit(keys_of(harness)).entries()]
    assert WORD in {one.reason for one in rows}
    assert (await erase(harness, click.approval)).entries > 0
    await there.close()
