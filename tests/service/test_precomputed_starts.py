"""A call that was approved as precomputed is started so, too, or the long way."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from dataclasses import replace
from typing import cast

import pytest
from pydantic_core import to_json

from tests.service.harness import POLICY, ServiceHarness, claim_of
from tests.service.starts import (
    PRESSED,
    REFUND,
    REQUEST,
    approved,
    kept,
    working,
)
from tests.store_secrets import SECRETS
from twokey.gateway.approvals.record import approval_of
from twokey.gateway.errors import (
    SettingsError,
    StoreUnavailable,
    TwokeyError,
)
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.records import Result
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import (
    Busy,
    Claimed,
)
from twokey.gateway.service import (
    precomputed_starts,
)
from twokey.gateway.service.precomputed_starts import AFTER_MS
from twokey.gateway.service.receipts import Receipts
from twokey.gateway.store.atomic_write import Assumed
from twokey.gateway.store.audit_seals import parts_of
from twokey.gateway.store.connection import Argument, Connection, Reply
from twokey.gateway.store.next_version import moves
from twokey.gateway.store.precomputed import Beside
from twokey.gateway.store.store import Store


@pytest.fixture
def harness(store: Store) -> Generator[ServiceHarness]:
    with working(store) as found:
        yield found


async def test_a_call_starts_as_it_was_precomputed(
    harness: ServiceHarness, written: list[bool]
) -> None:
    claim = await approved(harness)

    reply = await harness.agents.claim(claim)

    assert written == [True]
    assert isinstance(reply, Claimed)
    assert reply.fence == 1
    assert reply.receipt
    item = await harness.item(claim.item_id)
    assert (item.state, item.owner, item.fence) == (ItemState.EXECUTING, "worker-1", 1)
    assert await harness.agents.finish(claim.item_id, reply.fence, Result(ok=True))
    assert (await harness.item(claim.item_id)).state is ItemState.EXECUTED


async def test_its_record_is_the_one_that_is_stored(
    harness: ServiceHarness, valkey_url: str
) -> None:
    """It is made when somebody asks for it; who reads it verifies its seal."""
    claim = await approved(harness)
    assert isinstance(await harness.agents.claim(claim), Claimed)

    known = harness.store.approvals.remembered(approval_of(claim.item_id)[0])

    other = Store(valkey_url, secrets=SECRETS, lease_ms=2000)
    read = await other.approvals.load(approval_of(claim.item_id)[0])
    await other.close()
    assert read
    assert known
    assert known == read.approval
    assert known.items[0].state is ItemState.EXECUTING


def told_of(document: bytes) -> dict[str, object]:
    """Return what a script is told, without the seals that are never the same."""
    told = cast("dict[str, object]", json.loads(document))
    events = cast("list[str]", told.get("events", []))
    return {**told, "events": [parts_of(one)[0] for one in events]}


@pytest.mark.parametrize(
    "policy",
    [
        POLICY,
        POLICY.replace(
            "{users: [U0ANA, U0BEN, U0DAN]}", "{usergroups: [S0X], users: [U0BEN]}"
        ),
        POLICY.replace(
            "process_refund: {tier: approve}",
            "process_refund: {tier: approve, same_by: args.amount}",
        ),
    ],
    ids=["plain", "group", "same"],
)
async def test_what_is_written_is_what_a_claim_writes(
    harness: ServiceHarness, policy: str
) -> None:
    harness.policy = load_policy(policy, "policy.yml")
    ref, (verdict,) = await harness.submit((REFUND, {"amount": 5}))
    click = (await harness.click(verdict)).with_(request_digest=REQUEST)
    await harness.reviews.read_as_of_now(click.approval)
    harness.reviews.as_shown.precompute(click.approval)
    pressed = PRESSED.with_(usergroups=frozenset({"S0X"}))
    assert await harness.reviews.as_shown.approve(click, pressed)
    start = kept(harness, claim_of(ref, verdict))
    assert start
    store, chance = harness.store, random.Random(7)  # noqa: S311 - the same in each run
    conn, keys = store.conn, store.keys_of_tenant("default")
    loaded = store.approvals.with_seal(click.approval, start.seal)
    assert loaded
    [item] = loaded.approval.items
    for turn in range(100):
        owner = chance.choice(
            ["José", "名前", "%s %d", "an owner of the precomputation 1"]
        )
        owner += f" {turn}"
        now_ms = start.approved.now_ms + chance.randint(*AFTER_MS)
        moment = start.moment(item, owner, now_ms)
        assert moment

        told, seal = start.write.told(conn, keys, moment, Beside(Assumed()))

        write = precomputed_starts.granted(
            replace(loaded, now_ms=now_ms),
            item,
            start.evaluated,
            owner=owner,
            lease_ms=store.lease_ms,
        )
        assert write
        seen = replace(loaded, now_ms=now_ms, remembered={})
        plain, after = moves(conn, keys, seen, replace(write, unfrozen=()))
        assert seal == after.seal
        assert told_of(told) == told_of(to_json(plain))


async def test_each_start_is_used_once(
    harness: ServiceHarness, written: list[bool]
) -> None:
    claim = await approved(harness)
    first = await harness.agents.claim(claim)
    assert isinstance(first, Claimed)

    assert kept(harness, claim) is None
    again = await harness.agents.claim(claim)
    other = await harness.agents.claim(claim.with_(owner="worker-2"))

    assert written == [True]
    # The answer was lost: it is the same claim.
    assert isinstance(again, Claimed)
    assert again.fence == first.fence
    assert isinstance(other, Busy)


async def test_what_is_wrong_with_the_answer_is_raised(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await approved(harness)

    def keyless(*_: object) -> str:
        raise SettingsError("There is no key to sign with.")

    monkeypatch.setattr(Receipts, "issue", keyless)

    with pytest.raises(TwokeyError):
        await harness.agents.claim(claim)


async def test_an_answer_that_is_lost_is_asked_for_again(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is known that the claim is written, nobody is told so."""
    claim = await approved(harness)
    evalsha, lost = Connection.evalsha, list[list[Reply]]()

    async def lossy(
        self: Connection,
        source: str,
        keys: list[str],
        args: list[Argument],
        **named: bool,
    ) -> list[Reply]:
        reply = await evalsha(self, source, keys, args, **named)
        if not lost:
            lost.append(reply)
            raise StoreUnavailable("The answer is lost.")
        return reply

    monkeypatch.setattr(Connection, "evalsha", lossy)
    with pytest.raises(StoreUnavailable):
        await harness.agents.claim(claim)

    reply = await harness.agents.claim(claim)

    assert isinstance(reply, Claimed)
    assert reply.fence == 1


@pytest.mark.parametrize("calls", [1, 2])
async def test_only_of_one_call_alone_the_start_is_precomputed(
    harness: ServiceHarness, calls: int
) -> None:
    given: list[tuple[str, JsonObject]] = [
        (REFUND, {"amount": n + 1}) for n in range(calls)
    ]
    _, (verdict, *_) = await harness.submit(*given)
    click = await harness.click(verdict)
    await harness.reviews.read_as_of_now(click.approval)
    harness.reviews.as_shown.precompute(click.approval)

    found = harness.reviews.as_shown.precomputed(click)

    assert found
    assert (found.start is not None) == (calls == 1)


async def test_a_process_without_a_worker_precomputes_no_start(store: Store) -> None:
    harness = ServiceHarness(store)
    claim = await approved(harness)

    assert kept(harness, claim) is None
    assert isinstance(await harness.agents.claim(claim), Claimed)


async def test_a_call_that_more_people_may_approve_by_now_has_no_start(
    harness: ServiceHarness,
) -> None:
    """A vote that counts by one of both policies may not count by the other."""
    _, (verdict,) = await harness.submit((REFUND, {"amount": 1}))
    more = POLICY.replace("U0BEN, U0DAN]", "U0BEN, U0DAN, U0EVE]")
    harness.policy = load_policy(more, "policy.yml")
    click = await harness.click(verdict)
    await harness.reviews.read_as_of_now(click.approval)
    harness.reviews.as_shown.precompute(click.approval)

    found = harness.reviews.as_shown.precomputed(click)

    assert found
    assert found.start is None


async def test_only_so_many_are_kept(
    harness: ServiceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precomputed_starts, "MOST_KEPT", 2)
    claims = [await approved(harness, amount) for amount in (1, 2, 3)]

    assert [kept(harness, one) is None for one in claims] == [True, False, False]
