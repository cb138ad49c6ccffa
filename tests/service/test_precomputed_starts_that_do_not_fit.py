"""What changed since a call was approved lets it be claimed the long way, or not."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.service.harness import POLICY, ServiceHarness
from tests.service.starts import REFUND, approved, elsewhere, kept, later, working
from twokey.gateway.approvals.record import Approval, approval_of
from twokey.gateway.errors import (
    LeaseLost,
    TwokeyError,
)
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import (
    Busy,
    Claimed,
    ClaimReply,
    ClaimRequest,
    Refused,
)
from twokey.gateway.service import (
    starting_as_precomputed,
)
from twokey.gateway.service.decided_by import decided_by
from twokey.gateway.service.precomputed_starts import AFTER_MS, starts_of
from twokey.gateway.service.receipts import Receipts
from twokey.gateway.store.fences import holding
from twokey.gateway.store.freezes import FreezeScope, ScopeKind
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import Role
from twokey.gateway.trust.keyring import Keyring


@pytest.fixture
def harness(store: Store) -> Generator[ServiceHarness]:
    with working(store) as found:
        yield found


Change = Callable[[ServiceHarness, ClaimRequest], None]


def same_rules_again(harness: ServiceHarness, _: ClaimRequest) -> None:
    harness.policy = load_policy(POLICY, "policy.yml")


def forgotten_evaluation(harness: ServiceHarness, claim: ClaimRequest) -> None:
    cast("Any", decided_by(harness.store))._by_item.pop(claim.item_id)


def another_evaluation(harness: ServiceHarness, claim: ClaimRequest) -> None:
    """Let the call have been evaluated once more, by the same policy."""
    by_item = cast("Any", decided_by(harness.store))._by_item
    one = by_item[claim.item_id]
    by_item[claim.item_id] = replace(one, evaluation=replace(one.evaluation))


def other_lease(harness: ServiceHarness, _: ClaimRequest) -> None:
    harness.store.lease_ms += 1


def too_late(harness: ServiceHarness, claim: ClaimRequest) -> None:
    later(harness, claim.item_id, by_ms=AFTER_MS[1] + 1_000)


def too_early(harness: ServiceHarness, claim: ClaimRequest) -> None:
    later(harness, claim.item_id, by_ms=-60_000)


def other_record(harness: ServiceHarness, claim: ClaimRequest) -> None:
    """Let something else be remembered under the revision that was written."""
    start = starts_of(harness.store).take(claim.item_id)
    assert start
    starts_of(harness.store).keep(claim.item_id, replace(start, seal=b"another"))


@pytest.mark.parametrize(
    "change",
    [
        same_rules_again,
        forgotten_evaluation,
        another_evaluation,
        other_lease,
        too_late,
        too_early,
        other_record,
    ],
)
async def test_where_anything_differs_it_is_claimed_the_long_way(
    harness: ServiceHarness, written: list[bool], change: Change
) -> None:
    claim = await approved(harness)
    assert kept(harness, claim)
    change(harness, claim)

    assert isinstance(await harness.agents.claim(claim), Claimed)

    assert written == []
    item = await harness.item(claim.item_id)
    assert (item.state, item.owner) == (ItemState.EXECUTING, "worker-1")


@pytest.mark.parametrize("owner", ['wor"ker', "wor\\ker", "wor\nker"])
async def test_an_owner_that_json_writes_otherwise_claims_the_long_way(
    harness: ServiceHarness, written: list[bool], owner: str
) -> None:
    claim = (await approved(harness)).with_(owner=owner)

    assert isinstance(await harness.agents.claim(claim), Claimed)

    assert written == []
    assert (await harness.item(claim.item_id)).owner == owner


async def test_a_policy_that_forbids_it_now_refuses_it(
    harness: ServiceHarness, written: list[bool]
) -> None:
    claim = await approved(harness)
    denied = POLICY.replace(
        "process_refund: {tier: approve}", "process_refund: {tier: deny}"
    )
    harness.policy = load_policy(denied, "policy.yml")

    assert isinstance(await harness.agents.claim(claim), Refused)
    assert written == []


@pytest.mark.parametrize(
    "other", [{"tool": "send_email"}, {"tool_call_id": "c9"}], ids=str
)
async def test_another_call_is_refused(
    harness: ServiceHarness, written: list[bool], other: dict[str, str]
) -> None:
    claim = await approved(harness)

    assert isinstance(await harness.agents.claim(claim.with_(**other)), Refused)

    assert written == []
    assert (await harness.item(claim.item_id)).state is ItemState.AUTHORIZED


async def test_the_agent_of_another_tenant_is_refused(
    harness: ServiceHarness, written: list[bool]
) -> None:
    claim = await approved(harness)
    other = starting_as_precomputed.StartingAsPrecomputed(
        harness.store,
        lambda: harness.policy,
        Receipts(harness.store, lambda: harness.policy),
        tenant="other",
    )

    def refused(_approval: Approval, _index: int) -> ClaimReply:
        raise AssertionError("it is not granted")

    assert await other.claim(claim, refused) is None
    assert written == []


async def test_what_another_process_did_meanwhile_counts(
    harness: ServiceHarness, valkey_url: str, written: list[bool]
) -> None:
    claim = await approved(harness)
    async with elsewhere(harness, valkey_url) as theirs:
        first = await theirs.agents.claim(claim.with_(owner="elsewhere"))
    assert isinstance(first, Claimed)

    assert isinstance(await harness.agents.claim(claim), Busy)

    # The script has refused it.
    assert written == [False]
    assert (await harness.item(claim.item_id)).owner == "elsewhere"


async def test_a_freeze_that_is_not_known_here_stops_it(
    harness: ServiceHarness, valkey_url: str, written: list[bool]
) -> None:
    claim = await approved(harness)
    scope = FreezeScope(kind=ScopeKind.TOOL, name=REFUND)
    async with elsewhere(harness, valkey_url) as theirs:
        await theirs.reviews.freezes.freeze(scope, "U0ANA", "stop")

        assert isinstance(await harness.agents.claim(claim), Refused)

        assert written == [False]
        await theirs.reviews.freezes.unfreeze(scope, "U0ANA")


async def test_a_former_holder_of_the_lease_starts_nothing(
    harness: ServiceHarness, written: list[bool]
) -> None:
    claim = await approved(harness)
    store, place = harness.store, ("default", "support", "t1")
    keys = store.keys_of_tenant("default")
    async with store.threads.lease(keys, *place) as lease:
        await store.conn.command("HSET", lease.key, "fence", lease.fence + 1)
        with holding(lease), pytest.raises(LeaseLost):
            await harness.agents.claim(claim)
        await store.conn.command("HSET", lease.key, "fence", lease.fence)

    assert written == []
    assert (await harness.item(claim.item_id)).state is ItemState.AUTHORIZED


async def test_who_signed_it_is_verified(
    harness: ServiceHarness, written: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await approved(harness)
    keyring = harness.store.keyring
    assert keyring
    # A reviewer's decision that was signed by a key of somebody else.
    stranger = keyring.verifying(Role.GATEWAY)

    def known(_keyring: Keyring, _role: Role) -> object:
        return stranger

    monkeypatch.setattr(Keyring, "verifying", known)
    monkeypatch.setattr(Keyring, "verifying_now", known)

    with pytest.raises(TwokeyError):
        await harness.agents.claim(claim)
    assert written == []


async def test_no_authorization_is_used_when_it_has_lapsed_or_out_of_time(
    harness: ServiceHarness, written: list[bool]
) -> None:
    claim = await approved(harness)
    start = kept(harness, claim)
    assert start
    loaded = harness.store.approvals.with_seal(
        approval_of(claim.item_id)[0], start.seal
    )
    assert loaded
    [item] = loaded.approval.items
    at_ms, now_ms = start.approved.now_ms, start.approved.now_ms + 10

    assert start.moment(item, "worker", now_ms)
    for in_time_ms in AFTER_MS:
        assert start.moment(item, "worker", at_ms + in_time_ms)
    for early_or_late_ms in (AFTER_MS[0] - 1, AFTER_MS[1] + 1):
        assert start.moment(item, "worker", at_ms + early_or_late_ms) is None
    assert start.moment(item.with_(lapses_at_ms=now_ms), "worker", now_ms) is None
    assert start.moment(item, "", now_ms) is None
    assert written == []


async def test_what_the_code_that_starts_calls_does_not_start_is_not_run(
    harness: ServiceHarness, written: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should a precomputation ever differ from the code it was learned from."""
    claim = await approved(harness)
    monkeypatch.setattr(starting_as_precomputed, "granted", _not_granted)
    # As for a policy that lets nobody run it.
    monkeypatch.setattr(
        "twokey.gateway.service.claiming.ClaimService._may_still_run", _never
    )

    assert not isinstance(await harness.agents.claim(claim), Claimed)

    assert written == [True]
    assert (await harness.item(claim.item_id)).state is ItemState.IN_DOUBT


def _not_granted(*_: object, **__: object) -> None:
    return None


async def _never(*_: object) -> bool:
    return False
