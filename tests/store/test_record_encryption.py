"""With `encrypt_store`, reading a record or moving a part needs the secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from keyturn.gateway.approvals.decisions import Approve, Edit, Reject
from keyturn.gateway.approvals.events import EventName
from keyturn.gateway.errors import CorruptRecord, ForgedRecord
from keyturn.gateway.protocol.digest import action_args
from keyturn.gateway.protocol.records import ItemState, Result
from keyturn.gateway.protocol.wire import Claimed, Refused
from keyturn.gateway.store.connection.connection import fields
from keyturn.gateway.store.sealing.encryption import DATA_KEY, MARK
from keyturn.gateway.store.store import Store
from keyturn.gateway.trust.encryption import encrypted_by, encryption_keys
from keyturn.gateway.trust.seals import Purpose, derived_key
from tests.service.harness import ANA, ServiceHarness, claim_of
from tests.store_secrets import SECRETS

WORD = "canary-4711"
"""Stands in everything that is to be encrypted."""

RAN = Result(ok=True, summary=f"refunded {WORD}", payload=f'"{WORD}"')


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    store.conn.encrypts = True
    return ServiceHarness(store)


def another(
    harness: ServiceHarness, *secrets: bytes, encrypts: bool = True
) -> ServiceHarness:
    """Return a gateway that has just started, and remembers nothing."""
    url = harness.store.conn.url
    store = Store(url, secrets=secrets or SECRETS, lease_ms=2000)
    store.conn.encrypts, store.keyring = encrypts, harness.store.keyring
    return ServiceHarness(store)


async def stored(harness: ServiceHarness, approval: str) -> bytes:
    """Return the document of a record."""
    document = await harness.command("GET", harness.keys.document(approval))
    assert isinstance(document, bytes)
    return document


async def field(harness: ServiceHarness, approval: str, name: str) -> bytes:
    key = harness.keys.head(approval)
    found = await harness.command("HGET", key, name)
    assert isinstance(found, bytes)
    return found


async def edited_and_run(harness: ServiceHarness) -> str:
    """Edit, approve and run a call; return its approval."""
    ref, [verdict] = await harness.submit(
        ("process_refund", {"amount": 5, "note": f"one {WORD}"})
    )
    click = await harness.click(verdict)
    change = Edit(args={"amount": 4, "note": f"two {WORD}"}, reason=f"why {WORD}")
    await harness.reviews.decide(click, change, ANA)
    claim = claim_of(ref, verdict)
    reply = await harness.granted(claim)
    assert action_args(reply.action) == {"amount": 4, "note": f"two {WORD}"}
    await harness.agents.finish(claim.item_id, reply.fence, RAN)
    return click.approval


async def test_without_the_secret_nothing_is_readable(harness: ServiceHarness) -> None:
    approval = await edited_and_run(harness)

    document = await stored(harness, approval)
    head = fields(await harness.command("HGETALL", harness.keys.head(approval)))
    assert document.startswith(MARK)
    for word in (WORD, "process_refund", "U0DAN", "U0ANA", "amount"):
        assert word.encode() not in b" ".join((document, *head.values()))

    there = another(harness, encrypts=False)
    read = await there.reviews.read(approval)

    assert read
    item = read.approval.items[0]
    assert item.state is ItemState.EXECUTED
    assert action_args(item.action)["note"] == f"two {WORD}"
    assert item.edit
    assert item.edit.reason == f"why {WORD}"
    assert item.result
    assert item.result.summary == f"refunded {WORD}"
    await there.store.close()


async def test_each_approval_has_a_key_of_its_own(harness: ServiceHarness) -> None:
    first, _ = await harness.refund()
    second, _ = await harness.refund(thread="t2")

    keys = [await field(harness, one.approval, DATA_KEY) for one in (first, second)]

    assert keys[0] != keys[1]
    # The id of the wrapping key, a nonce, the key, and its tag.
    assert {len(one) for one in keys} == {4 + 12 + 32 + 16}
    wrapping = encryption_keys(SECRETS, Purpose.DATA_KEYS)
    bare = {
        wrapping.decrypt(one, (click.approval, "data key"))
        for one, click in zip(keys, (first, second), strict=True)
    }
    assert len(bare) == 2
    assert derived_key(SECRETS[0], Purpose.DATA_KEYS) not in bare


async def test_a_record_is_encrypted_by_its_next_change(store: Store) -> None:
    plain = ServiceHarness(store)
    click, claim = await plain.refund()

    there = another(plain)
    await there.reviews.decide(click, Approve(), ANA)

    assert isinstance(await plain.agents.claim(claim), Claimed)
    document = await stored(plain, click.approval)
    assert document.startswith(MARK)
    await there.store.close()


async def test_a_reader_keeps_a_record_encrypted(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()

    there = another(harness, encrypts=False)
    await there.reviews.decide(click, Reject(reason=f"no {WORD}"), ANA)

    document = await stored(harness, click.approval)
    assert document.startswith(MARK)
    assert WORD.encode() not in document
    await there.store.close()


async def test_a_replaced_secret_wraps_anew(harness: ServiceHarness) -> None:
    click, claim = await harness.refund()
    before = await field(harness, click.approval, DATA_KEY)

    there = another(harness, b"n" * 32, *SECRETS)
    await there.reviews.decide(click, Approve(reason=f"fine {WORD}"), ANA)

    after = await field(harness, click.approval, DATA_KEY)
    assert encrypted_by(after) != encrypted_by(before)
    assert isinstance(await there.agents.claim(claim), Claimed)
    await there.store.close()


Move = Callable[[ServiceHarness, str, str], Awaitable[None]]


async def _document_of_another(harness: ServiceHarness, one: str, other: str) -> None:
    theirs = await stored(harness, other)
    await harness.command("SET", harness.keys.document(one), theirs)


async def _key_of_another(harness: ServiceHarness, one: str, other: str) -> None:
    theirs = await field(harness, other, DATA_KEY)
    key = harness.keys.head(one)
    await harness.command("HSET", key, DATA_KEY, theirs)


async def _no_key(harness: ServiceHarness, one: str, _: str) -> None:
    key = harness.keys.head(one)
    await harness.command("HDEL", key, DATA_KEY)


@pytest.mark.parametrize("move", [_document_of_another, _key_of_another, _no_key])
async def test_moved_parts_are_refused(harness: ServiceHarness, move: Move) -> None:
    clicks = [await harness.refund(thread=one) for one in ("t1", "t2")]
    for click, _ in clicks:
        await harness.reviews.decide(click, Approve(reason=WORD), ANA)
    (one, claim), (other, _) = clicks

    # The store of the tests seals its writes anew: as if the seal were broken.
    await move(harness, one.approval, other.approval)

    there = another(harness)
    reply = await there.agents.claim(claim)
    assert isinstance(reply, Refused)
    with pytest.raises(CorruptRecord):
        await there.reviews.read(one.approval)
    assert await harness.audited(EventName.SECURITY_DETECTED)
    await there.store.close()


async def test_a_forged_record_reports_to_its_thread(harness: ServiceHarness) -> None:
    click, _ = await harness.refund()
    # Past the store of the tests, which would seal it anew.
    client = Redis.from_url(harness.store.conn.url)  # pyright: ignore[reportUnknownMemberType]
    await client.hset(harness.keys.head(click.approval), "0:s", "authorized")  # pyright: ignore[reportGeneralTypeIssues]
    await client.aclose()

    there = another(harness)
    with pytest.raises(ForgedRecord):
        await there.reviews.read(click.approval)

    [found] = await harness.announced(EventName.RECORD_QUARANTINED)
    assert (found.tenant, found.agent, found.thread) == ("default", "support", "t1")
    await there.store.close()
