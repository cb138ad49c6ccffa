"""Erased text is in no key and no file, and the audit log still verifies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Approve, Click, Edit, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.approvals.record import approval_of
from keyturn.gateway.errors import ThreadUnavailable
from keyturn.gateway.protocol.records import Person, Result
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import (
    Claimed,
    ProposedCall,
    Turn,
    TurnRef,
    VerdictKind,
)
from keyturn.gateway.service.people.erasing import WHY_KEPT, Eraser, Erasure
from keyturn.gateway.service.report.audit_reading import AuditBundler, verify_log_of
from keyturn.gateway.service.report.audit_writing import public_keys
from keyturn.gateway.service.submit.submitting import ERASED
from keyturn.gateway.store.audit.log import AuditIndex
from keyturn.gateway.store.erasing import erase_approval, turn_key_of
from keyturn.gateway.store.keys import KEEP_MS
from keyturn.gateway.store.scripts.fences import holding
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_proofs import verify_bundle
from tests.api.test_api_key_store import Box
from tests.security.test_canary import dump
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, DAN, ServiceHarness, claim_of
from tests.store_secrets import SECRETS

WORD = "canary-erased"


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def harness(store: Store, request: pytest.FixtureRequest) -> ServiceHarness:
    store.conn.encrypts = request.param
    return ServiceHarness(store)


async def erase(harness: ServiceHarness, what: str, *, yes: bool = True) -> Erasure:
    eraser = Eraser(harness.store)
    return await eraser.erase(what, by="cli/eve", is_dry_run=not yes)


async def rejected(harness: ServiceHarness, thread: str = "t1") -> Click:
    _, [verdict] = await harness.submit(
        ("process_refund", {"amount": 5, "note": WORD}), thread=thread
    )
    click = await harness.click(verdict)
    await harness.reviews.decide(click, Reject(reason=WORD), ANA)
    return click


async def executed(harness: ServiceHarness) -> Click:
    ref, [verdict] = await harness.submit(
        ("process_refund", {"amount": 5, "note": WORD})
    )
    click = await harness.click(verdict)
    edit = Edit(args={"amount": 4, "note": WORD}, reason=WORD)
    await harness.reviews.decide(click, edit, ANA)
    ran = Result(ok=True, summary=WORD, payload=f'"{WORD}"')
    await harness.ran(claim_of(ref, verdict), ran)
    return click


async def left(harness: ServiceHarness, word: str = WORD) -> set[str]:
    """Return the keys that contain a word, except for streams."""
    found = await dump(harness.store.conn)
    streams = {harness.keys.audit, harness.keys.outbox}
    return {
        key
        for key, body in found.items()
        if word.encode() in body and key not in streams
    }


async def test_an_erased_call_loses_its_data_key(harness: ServiceHarness) -> None:
    click = await executed(harness)

    found = await erase(harness, click.approval)

    assert found.approvals == (click.approval,)
    assert not found.kept
    assert await harness.reviews.read(click.approval) is None
    names = await dump(harness.store.conn)
    keys = harness.keys
    of_it = {keys.head(click.approval), keys.document(click.approval)}
    assert not of_it & names.keys()
    assert not await left(harness)


async def test_an_erasure_is_announced_and_audited(harness: ServiceHarness) -> None:
    click = await rejected(harness)

    await erase(harness, click.approval)

    for told in (await harness.announced(), await harness.audited()):
        assert told[-1].name is EventName.APPROVAL_ERASED
        assert (told[-1].approval, told[-1].actor) == (click.approval, "cli/eve")


async def test_a_dry_run_changes_nothing(harness: ServiceHarness) -> None:
    click = await rejected(harness)
    before = await dump(harness.store.conn)

    found = await erase(harness, click.approval, yes=False)

    assert found.approvals == (click.approval,)
    assert await dump(harness.store.conn) == before


@pytest.mark.parametrize("yes", [False, True])
async def test_an_open_call_is_kept(harness: ServiceHarness, *, yes: bool) -> None:
    pending, _ = await harness.refund()
    authorized, claim = await harness.refund(thread="t2")
    await harness.reviews.decide(authorized, Approve(), ANA)

    for click in (pending, authorized):
        found = await erase(harness, click.approval, yes=yes)
        assert found.approvals == ()
        assert found.kept == {click.approval: WHY_KEPT["open"]}

    assert isinstance(await harness.agents.claim(claim), Claimed)


@pytest.mark.parametrize("yes", [False, True])
async def test_a_call_its_agent_still_needs_is_kept(
    harness: ServiceHarness, *, yes: bool
) -> None:
    click = await rejected(harness)
    threads, keys = harness.store.threads, harness.keys
    await threads.open_run(keys, "support", "t1", has_past=False)

    found = await erase(harness, click.approval, yes=yes)

    assert found.kept == {click.approval: WHY_KEPT["running"]}
    assert await harness.reviews.read(click.approval)


async def test_a_person_is_erased_from_their_requests(harness: ServiceHarness) -> None:
    mine = await rejected(harness)
    eve = DAN.with_(user="U0EVE", name="Eve")
    ref, verdicts = await harness.submit(("process_refund", {"amount": 7}), thread="t2")
    assert verdicts
    await harness.asked_by(eve, "t3")

    found = await erase(harness, DAN.user)

    assert found.approvals == (mine.approval,)
    # That of the second thread waits.
    assert list(found.kept.values()) == [WHY_KEPT["open"]]
    facts = await harness.store.threads.facts(harness.keys, "support", ref.thread)
    assert facts.requester == DAN, "its run goes on"
    gone = await harness.store.threads.facts(harness.keys, "support", "t1")
    assert gone.requester is None


@pytest.mark.parametrize("what", ["", "dan", "ap_1", "*", "U0", "ap_default_zz"])
async def test_only_ids_are_taken(harness: ServiceHarness, what: str) -> None:
    with pytest.raises(ValueError, match="has no approval"):
        await erase(harness, what)


@pytest.mark.parametrize("is_one", [True, False], ids=["approval", "person"])
async def test_names_and_words_leave_the_files_and_all_of_it_still_verifies(
    store: Store, tmp_path: Path, *, is_one: bool
) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    keys, folder = harness.keys, store.tree_folder
    assert store.keyring
    assert folder
    store.audit_folder = folder
    click, other = await rejected(harness), await rejected(harness, "t2")

    await house.writer.tick(is_last=True)

    # As kill -9 leaves it in front of the name of a segment.
    [segment] = folder.glob("default-*.jsonl.gz")
    shutil.copy(segment, folder / "default.segment.part")
    what = click.approval if is_one else DAN.user
    counted = await erase(harness, what, yes=False)
    found = await erase(harness, what)
    again = await erase(harness, what)

    assert not [*folder.glob("*.part")]
    assert counted.entries == found.entries > 0
    assert counted.approvals == found.approvals == again.approvals
    assert again.entries == 0
    rows = [one async for one in store.audit(keys).entries()]
    of_erased = [one for one in rows if one.approval == click.approval]
    assert EventName.ITEM_REJECTED in {one.name for one in of_erased}
    assert {(one.actor, one.reason) for one in of_erased if one.actor != "cli/eve"} == {
        ("", "")
    }
    words = {one.reason for one in rows if one.approval == other.approval}
    assert (WORD in words) is is_one
    house.clock.now += 61
    await house.writer.tick(is_last=True)
    verified = await verify_log_of(store, "default")
    assert verified.problems == []
    lines: list[bytes] = []
    await AuditBundler(store, tenant="default").export(lines.append)
    report = verify_bundle(lines, public_keys(store.keyring))
    assert report.problem == ""
    erased = [one for one in lines if click.approval.encode() in one]
    assert erased
    assert not [one for one in erased if WORD.encode() in one]


async def test_an_unwritten_entry_is_erased_later(store: Store, tmp_path: Path) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    store.audit_folder = store.tree_folder
    click = await rejected(harness)
    first = await erase(harness, DAN.user)

    await house.writer.tick(is_last=True)
    second = await erase(harness, DAN.user)

    assert (first.entries, second.live) == (0, 0)
    assert first.approvals == second.approvals == (click.approval,)
    assert second.entries == first.live > 0
    rows = [one async for one in store.audit(harness.keys).entries()]
    assert not [one for one in rows if WORD in one.reason or DAN.user in one.actor]


async def test_a_revocation_outlives_its_person(store: Store, tmp_path: Path) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    store.audit_folder = store.tree_folder
    box = Box(store)
    new = await box.made()
    await box.kept.revoke(new.kept.id, DAN.user)

    await house.writer.tick(is_last=True)
    assert (await erase(harness, DAN.user)).entries == 1
    index = AuditIndex()
    index.folder = house.files.folder
    assert index.is_revoked("default", new.kept.id)
    assert not index.is_revoked("default", "another")
    rows = [one async for one in store.audit(harness.keys).entries()]
    assert not [one for one in rows if DAN.user in one.actor]
    # And erasing again finds nothing.
    assert (await erase(harness, DAN.user)).entries == 0


# Erasing removes exactly the named approvals.

EVE = DAN.with_(user="U0EVE", name="Eve")


async def rejected_of(harness: ServiceHarness, who: Person, thread: str) -> Click:
    """Request a call as a person, and reject it as Ana."""
    await harness.asked_by(who, thread)
    call = ProposedCall(tool="process_refund", args={"amount": 5}, tool_call_id="c0")
    ref = TurnRef(agent="support", thread=thread, message_id="m")
    [verdict] = await harness.agents.submit(Turn(ref=ref, calls=(call,)))
    click = await harness.click(verdict)
    await harness.reviews.decide(click, Reject(reason=WORD), ANA)
    return click


async def test_an_erased_request_is_found_by_requester(harness: ServiceHarness) -> None:
    mine, theirs = await rejected(harness), await rejected_of(harness, EVE, "t2")
    for one in (mine, theirs):
        await erase(harness, one.approval)

    for who, click in ((DAN, mine), (EVE, theirs)):
        assert (await erase(harness, who.user)).approvals == (click.approval,)
    assert (await erase(harness, ANA.user)).approvals == ()


async def test_a_person_is_found_by_their_whole_id(harness: ServiceHarness) -> None:
    for thread in ("t1", "t2"):
        await rejected(harness, thread)

    acted = await erase(harness, ANA.user, yes=False)
    other = await erase(harness, ANA.user[:-1], yes=False)

    assert (acted.approvals, acted.live) == ((), 2)
    assert (other.approvals, other.live) == ((), 0)


async def test_a_record_changed_since_reading_is_kept(harness: ServiceHarness) -> None:
    click = await rejected(harness)
    read = await harness.reviews.read(click.approval)
    assert read

    older = read.approval.with_(rev=read.approval.rev - 1)
    outcome = await erase_approval(
        harness.store,
        harness.keys,
        older,
        over=b"",
        by="x",
        is_person=False,
        is_dry_run=False,
    )

    assert outcome == "moved"
    assert await harness.reviews.read(click.approval)


async def test_an_approval_takes_its_verdicts_along(harness: ServiceHarness) -> None:
    _, verdicts = await harness.submit(
        ("process_refund", {"amount": 5}), ("look_up_order", {"id": WORD})
    )
    click = await harness.click(verdicts[0])
    await harness.reviews.decide(click, Reject(reason=WORD), ANA)
    keys, conn = harness.keys, harness.store.conn
    seen_by = keys.opened(approval_of(verdicts[0].item_id)[0])
    await conn.command("HSET", seen_by, "reader", "1")
    await conn.command("PEXPIRE", seen_by, KEEP_MS)
    loaded = await harness.reviews.read(click.approval)
    assert loaded
    call = keys, turn_key_of(loaded.approval)
    auto_runs, found = harness.store.auto_runs, Result(ok=True, summary=WORD)
    async with harness.store.threads.lease(keys, "support", "t1") as lease:
        with holding(lease):
            await auto_runs.begin(*call, "c1", repeats=False)
            await auto_runs.note(*call, "end", "c1", found)
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


async def test_sealing_changes_no_file(store: Store, tmp_path: Path) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    store.audit_folder = store.tree_folder
    click = await rejected(harness)
    await house.writer.tick(is_last=True)

    there = Store(store.conn.url, secrets=SECRETS, lease_ms=60_000)
    async with there.threads.lease(harness.keys, "", "audit"):
        with pytest.raises(ThreadUnavailable):
            await erase(harness, click.approval)

    rows = [one async for one in store.audit(harness.keys).entries()]
    assert WORD in {one.reason for one in rows}
    assert (await erase(harness, click.approval)).entries > 0
    await there.close()
