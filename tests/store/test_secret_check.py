"""A process whose secret is another one does not start, and sets nothing aside."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from keyturn.gateway.approvals import waiting_changes
from keyturn.gateway.approvals.audit_leaf import SealState
from keyturn.gateway.approvals.decisions import Approve, Click, Decided, Gesture
from keyturn.gateway.approvals.events import Event, EventName, SecurityKind
from keyturn.gateway.errors import ForgedRecord, SettingsError, StoreUnavailable
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.keys import Keys
from keyturn.gateway.store.runs.jobs import Job, JobKind, sealed_job
from keyturn.gateway.store.sealing.event_seals import sealed_text
from keyturn.gateway.store.store import Store, open_store
from tests.service.audit_harness import AuditHarness
from tests.service.harness import ANA, BEN, RULES, ServiceHarness
from tests.store_secrets import SECRETS

OTHER = b"another secret of some 32 bytes!"


async def starts(store: Store, folder: Path, *secrets: bytes) -> None:
    async with open_store(store.conn.url, folder, secrets=secrets):
        pass


async def pending(harness: ServiceHarness, thread: str) -> Click:
    """Make an agent's call in a thread, and return a click on it."""
    _, (verdict,) = await harness.submit(
        ("process_refund", {"amount": 5}), thread=thread
    )
    return await harness.click(verdict)


async def test_another_secret_is_refused(store: Store, tmp_path: Path) -> None:
    await starts(store, tmp_path, *SECRETS)

    with pytest.raises(SettingsError, match="sealed with another secret"):
        await starts(store, tmp_path, OTHER)


async def test_a_secret_is_replaced_in_two_steps(store: Store, tmp_path: Path) -> None:
    """First all accept the new one, then it seals, then the old one is taken out."""
    await starts(store, tmp_path, *SECRETS)

    await starts(store, tmp_path, *SECRETS, OTHER)
    await starts(store, tmp_path, OTHER, *SECRETS)
    await starts(store, tmp_path, *SECRETS, OTHER)
    await starts(store, tmp_path, OTHER, *SECRETS)
    await starts(store, tmp_path, OTHER)

    with pytest.raises(SettingsError, match="sealed with another secret"):
        await starts(store, tmp_path, *SECRETS)


PRESSED = ANA.with_(gesture=Gesture.BUTTON)


async def test_a_newer_secrets_seal_is_no_forgery(store: Store, tmp_path: Path) -> None:
    """A process that was suspended decides nothing, and removes nothing."""
    await starts(store, tmp_path, *SECRETS)
    harness = ServiceHarness(store)
    click, other = await pending(harness, "a"), await pending(harness, "b")

    await starts(store, tmp_path, *SECRETS, OTHER)
    await starts(store, tmp_path, OTHER, *SECRETS)
    newer = Store(store.conn.url, secrets=(OTHER, *SECRETS))
    newer.keyring = store.keyring
    reviews = ReviewService(newer, lambda: RULES)
    await reviews.change_own(click.approval, waiting_changes.extend, BEN)

    with pytest.raises(StoreUnavailable, match="restart it with the new one"):
        await harness.reviews.decide(click, Approve(), PRESSED)
    assert store.security.counts == {SecurityKind.SECRET_UNKNOWN: 1}
    assert isinstance(await reviews.decide(click, Approve(), PRESSED), Decided)
    # An unchanged record is sealed as before, which the others accept.
    assert isinstance(await harness.reviews.decide(other, Approve(), PRESSED), Decided)
    loaded = await newer.approvals.load(other.approval)
    assert loaded
    assert loaded.approval.items[0].may_run
    await newer.close()


async def test_a_rotation_still_shows_a_forgery(store: Store, tmp_path: Path) -> None:
    """This process accepts the new one, and others seal with it already."""
    await starts(store, tmp_path, *SECRETS)
    await starts(store, tmp_path, *SECRETS, OTHER)
    await starts(store, tmp_path, OTHER, *SECRETS)
    between = Store(store.conn.url, secrets=(*SECRETS, OTHER))
    click = await pending(ServiceHarness(between), "c")
    head = store.keys_of_tenant("default").head(click.approval)
    await store.conn.evalsha(
        "return {redis.call('HSET', KEYS[1], '0:s', 'authorized')}", [head], []
    )

    with pytest.raises(ForgedRecord):
        await between.approvals.load(click.approval)

    assert await store.conn.command("HEXISTS", head, "quarantined")
    await between.close()


# A process that was forgotten while the secret was replaced forges no alarm.

UNKNOWN = "restart it with the new one"
START = Job(
    kind=JobKind.START, tenant="default", agent="a", thread="t", input="hi", id="1"
)
EVENT = Event(name=EventName.RUN_FINISHED, tenant="default", agent="a", thread="t")


@pytest.fixture
async def newer(store: Store, tmp_path: Path) -> AsyncGenerator[Store]:
    """Give a process that seals with the new secret; ``store`` knows the old alone."""
    for secrets in (SECRETS, (*SECRETS, OTHER), (OTHER, *SECRETS)):
        await starts(store, tmp_path, *secrets)
    found = Store(store.conn.url, secrets=(OTHER, *SECRETS))
    yield found
    await found.close()


@pytest.fixture
def keys(store: Store) -> Keys:
    return store.keys_of_tenant("default")


def told(store: Store) -> set[SecurityKind]:
    return {*store.security.counts}


async def test_unknown_seals_are_left(store: Store, newer: Store, keys: Keys) -> None:
    outbox = store.outbox(keys, reader="slack")
    await outbox.prepare()
    body, seal = sealed_text(newer.conn, keys, EVENT.model_dump_json()).split("\n")
    await newer.conn.command("XADD", keys.outbox, "*", "e", body, "at", 1, "s", seal)

    with pytest.raises(StoreUnavailable, match=UNKNOWN):
        await outbox.take("forgotten", block_ms=1, limit=10)

    assert (outbox.corrupt, told(store)) == (0, {SecurityKind.SECRET_UNKNOWN})
    restarted = newer.outbox(keys, reader="slack")
    [event], _ = await restarted.left("restarted", start="0-0", limit=10)
    assert event.name is EventName.RUN_FINISHED


async def test_an_agents_start_is_kept(store: Store, newer: Store, keys: Keys) -> None:
    queue = store.queue(keys)
    await queue.prepare()
    await newer.queue(keys).put(sealed_job(newer.sealing, START))

    with pytest.raises(StoreUnavailable, match=UNKNOWN):
        await queue.take(block_ms=1)

    assert told(store) == {SecurityKind.SECRET_UNKNOWN}
    assert await queue.depth() == 1


async def test_the_audit_log_calls_no_entry_forged(
    store: Store, newer: Store, tmp_path: Path
) -> None:
    forgotten, writes = (AuditHarness(one, tmp_path / "a") for one in (store, newer))
    await forgotten.put(2)
    await forgotten.writer.tick()
    await writes.put(3)

    with pytest.raises(StoreUnavailable, match=UNKNOWN):
        await forgotten.writer.tick(is_last=True)

    assert told(store) == {SecurityKind.SECRET_UNKNOWN}
    await writes.writer.tick(is_last=True)
    size = writes.checkpoints()[-1].size
    assert size >= 5
    assert {one.state for one in writes.files.records(0, size)} == {SealState.SEALED}
    assert told(newer) == set()


async def test_forgeries_are_reported(store: Store, newer: Store, keys: Keys) -> None:
    """The mark alone is not enough: this process accepts the new secret."""
    outbox = newer.outbox(keys, reader="slack")
    await outbox.prepare()
    await store.conn.command(
        "XADD", keys.outbox, "*", "e", EVENT.model_dump_json(), "at", 1, "s", "0" * 64
    )

    assert await outbox.take("bot", block_ms=1, limit=10) == []

    assert (outbox.corrupt, told(newer)) == (1, {SecurityKind.SEAL_WRONG})
