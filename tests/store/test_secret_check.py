"""A process whose secret is another one does not start, and sets nothing aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from keyturn.gateway.approvals.decisions import Approve, Click, Decided, Gesture
from keyturn.gateway.approvals.events import SecurityKind
from keyturn.gateway.errors import ForgedRecord, SettingsError, StoreUnavailable
from keyturn.gateway.service.decide.reviews import ReviewService
from keyturn.gateway.store.open_store import open_store
from keyturn.gateway.store.store import Store
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


async def test_what_a_secret_seals_that_came_since_is_no_forgery(
    store: Store, tmp_path: Path
) -> None:
    """A process that was suspended decides nothing, and removes nothing."""
    await starts(store, tmp_path, *SECRETS)
    harness = ServiceHarness(store)
    click, other = await pending(harness, "a"), await pending(harness, "b")

    await starts(store, tmp_path, *SECRETS, OTHER)
    await starts(store, tmp_path, OTHER, *SECRETS)
    newer = Store(store.conn.url, secrets=(OTHER, *SECRETS))
    newer.keyring = store.keyring
    reviews = ReviewService(newer, lambda: RULES)
    await reviews.extend(click.approval, BEN)

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


async def test_a_forgery_is_one_also_while_the_secret_is_replaced(
    store: Store, tmp_path: Path
) -> None:
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
