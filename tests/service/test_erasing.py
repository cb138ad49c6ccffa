"""Erased text is in no key and no file, and the audit log still verifies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Approve, Click, Edit, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.protocol.records import Result
from keyturn.gateway.protocol.wire import Claimed
from keyturn.gateway.service.people.erasing import WHY_KEPT, Eraser, Erasure
from keyturn.gateway.service.report.audit_reading import AuditBundler, verify_log_of
from keyturn.gateway.service.report.audit_writing import public_keys
from keyturn.gateway.store.audit.index import AuditIndex
from keyturn.gateway.store.http.api_keys import ApiKeyStore
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs.threads import ThreadFacts
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.audit_bundle import verify_bundle
from tests.api.test_api_key_store import SEALS, made
from tests.security.test_canary import dump
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, DAN, ServiceHarness, claim_of
from tests.streams import announced, audit_entries

WORD = "canary-erased"


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def harness(store: Store, request: pytest.FixtureRequest) -> ServiceHarness:
    store.conn.encrypts = request.param
    return ServiceHarness(store)


def keys_of(harness: ServiceHarness) -> Keys:
    return harness.keys


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
    claim = claim_of(ref, verdict)
    reply = await harness.granted(claim)
    ran = Result(ok=True, summary=WORD, payload=f'"{WORD}"')
    await harness.agents.finish(claim.item_id, reply.fence, ran)
    return click


async def left(harness: ServiceHarness, word: str = WORD) -> set[str]:
    """Return the keys that contain a word, except for streams."""
    found = await dump(harness.store.conn)
    streams = {keys_of(harness).audit, keys_of(harness).outbox}
    return {
        key
        for key, body in found.items()
        if word.encode() in body and key not in streams
    }


async def test_an_executed_call_is_gone_with_its_data_key(
    harness: ServiceHarness,
) -> None:
    click = await executed(harness)

    found = await erase(harness, click.approval)

    assert found.approvals == (click.approval,)
    assert not found.kept
    assert await harness.reviews.read(click.approval) is None
    names = await dump(harness.store.conn)
    head, pinned = (
        f(click.approval) for f in (keys_of(harness).head, keys_of(harness).document)
    )
    assert not {head, pinned} & names.keys()
    assert not await left(harness)


async def test_the_erasure_is_announced_and_audited_with_who_did_it(
    harness: ServiceHarness,
) -> None:
    click = await rejected(harness)

    await erase(harness, click.approval)

    for told in (
        await announced(harness.store.conn, keys_of(harness)),
        await audit_entries(harness.store.conn, keys_of(harness)),
    ):
        assert told[-1].name is EventName.APPROVAL_ERASED
        assert (told[-1].approval, told[-1].actor) == (click.approval, "cli/eve")


async def test_a_dry_run_changes_nothing(harness: ServiceHarness) -> None:
    click = await rejected(harness)
    before = await dump(harness.store.conn)

    found = await erase(harness, click.approval, yes=False)

    assert found.approvals == (click.approval,)
    assert await dump(harness.store.conn) == before


@pytest.mark.parametrize("yes", [False, True])
async def test_what_is_still_to_happen_is_kept(
    harness: ServiceHarness, *, yes: bool
) -> None:
    pending, _ = await harness.refund()
    authorized, claim = await harness.refund(thread="t2")
    await harness.reviews.decide(authorized, Approve(), ANA)

    for click in (pending, authorized):
        found = await erase(harness, click.approval, yes=yes)
        assert found.approvals == ()
        assert found.kept == {click.approval: WHY_KEPT["open"]}

    assert isinstance(await harness.agents.claim(claim), Claimed)


async def test_what_an_agent_may_still_ask_for_is_kept(
    harness: ServiceHarness,
) -> None:
    click = await rejected(harness)
    threads, keys = harness.store.threads, keys_of(harness)
    await threads.open_run(keys, "support", "t1", has_past=False)

    found = await erase(harness, click.approval)

    assert found.kept == {click.approval: WHY_KEPT["running"]}
    assert await harness.reviews.read(click.approval)


async def test_a_person_is_erased_from_what_they_asked_for(
    harness: ServiceHarness,
) -> None:
    mine = await rejected(harness)
    eve = DAN.with_(user="U0EVE", name="Eve")
    ref, verdicts = await harness.submit(("process_refund", {"amount": 7}), thread="t2")
    assert verdicts
    await harness.store.threads.change(
        keys_of(harness), "support", "t3",
        lambda _: ThreadFacts(requester=eve), why="aside"
    )  # fmt: skip

    found = await erase(harness, DAN.user)

    assert found.approvals == (mine.approval,)
    # That of the second thread waits.
    assert list(found.kept.values()) == [WHY_KEPT["open"]]
    facts = await harness.store.threads.facts(keys_of(harness), "support", ref.thread)
    assert facts.requester == DAN, "its run goes on"
    gone = await harness.store.threads.facts(keys_of(harness), "support", "t1")
    assert gone.requester is None


@pytest.mark.parametrize("what", ["", "dan", "ap_1", "*", "U0", "ap_default_zz"])
async def test_only_ids_are_taken(harness: ServiceHarness, what: str) -> None:
    with pytest.raises(ValueError, match=r"is no id of an approval \(ap_"):
        await erase(harness, what)


@pytest.mark.parametrize("is_one", [True, False], ids=["approval", "person"])
async def test_names_and_words_leave_the_files_and_all_of_it_still_verifies(
    store: Store, tmp_path: Path, *, is_one: bool
) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    keys, folder = keys_of(harness), store.tree_folder
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


async def test_what_was_in_no_file_yet_is_erased_by_the_same_words_later(
    store: Store, tmp_path: Path
) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    store.audit_folder = store.tree_folder
    click = await rejected(harness)
    first = await erase(harness, DAN.user)

    await house.writer.tick(is_last=True)
    second = await erase(harness, DAN.user)

    assert (first.entries, second.live) == (0, 0)
    assert first.approvals == second.approvals == (click.approval,)
    assert second.entries == first.live > 0
    rows = [one async for one in store.audit(keys_of(harness)).entries()]
    assert not [one for one in rows if WORD in one.reason or DAN.user in one.actor]


async def test_a_revocation_outlives_that_who_revoked_was_erased(
    store: Store, tmp_path: Path
) -> None:
    house, harness = AuditHarness(store, tmp_path), ServiceHarness(store)
    store.audit_folder = store.tree_folder
    keys = ApiKeyStore(store, SEALS, tenant="default")
    new = await made(keys)
    await keys.revoke(new.kept.id, DAN.user)

    await house.writer.tick(is_last=True)
    assert (await erase(harness, DAN.user)).entries == 1
    index = AuditIndex()
    index.folder = house.files.folder
    assert index.is_revoked("default", new.kept.id)
    assert not index.is_revoked("default", "another")
    rows = [one async for one in store.audit(keys_of(harness)).entries()]
    assert not [one for one in rows if DAN.user in one.actor]
    # And erasing again finds nothing.
    assert (await erase(harness, DAN.user)).entries == 0
