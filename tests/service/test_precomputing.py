"""What is precomputed of an approval is what deciding it would write, byte for byte."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest
from pydantic_core import to_json

from tests.service.harness import (
    ANA,
    BEN,
    CHLOE,
    EVE,
    POLICY,
    ServiceHarness,
    claim_of,
    person,
)
from tests.service.showing import shown
from twokey.gateway.approvals import deciding
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import (
    AccountKind,
    Approve,
    Click,
    Gesture,
    Reviewer,
)
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.wire import Claimed
from twokey.gateway.service import as_shown
from twokey.gateway.service.precomputing import Precomputation
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.audit_seals import parts_of
from twokey.gateway.store.next_version import moves
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import Role

GROUP = POLICY.replace(
    "{users: [U0ANA, U0BEN, U0DAN]}", "{usergroups: [S0X], users: [U0BEN]}"
)
ALONE = POLICY.replace("{users: [U0ANA, U0BEN, U0DAN]}", "{users: [U0ANA]}")
PRESSED = {"gesture": Gesture.BUTTON}


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


async def precomputed(
    harness: ServiceHarness, policy: str = POLICY
) -> tuple[Click, Precomputation]:
    """Return a click on a call, and the precomputation of its approval."""
    harness.policy = load_policy(policy, "policy.yml")
    click = (await shown(harness)).with_(request_digest="sha256:" + "a" * 64)
    harness.reviews.as_shown.precompute(click.approval)
    found = harness.reviews.as_shown.precomputed(click)
    assert found
    return click, found


def somebody(chance: random.Random, name: Callable[[], str]) -> Reviewer:
    return ANA.with_(
        **PRESSED,
        user=chance.choice(["U0ANA", "U0BEN"]),
        team=f"T{chance.randrange(10**9):X}",
        name=name(),
        membership_age_ms=chance.randrange(60_000),
    )


@pytest.mark.parametrize("policy", [POLICY, GROUP], ids=["users", "group"])
async def test_what_is_written_is_what_deciding_it_writes(
    harness: ServiceHarness, policy: str
) -> None:
    click, precomputation = await precomputed(harness, policy)
    conn, keys = harness.store.conn, harness.store.keys_of_tenant("default")
    keyring = harness.store.keyring
    assert keyring
    key, call, chance = keyring.signing(Role.BOT), precomputation.call, random.Random(7)  # noqa: S311 - the same people in each run
    for turn in range(200):
        who = somebody(
            chance, lambda: chance.choice(["Ana", "José", "名前", "U0BEN 1"])
        )
        if policy == GROUP:
            who = who.with_(user=f"U{turn}", usergroups=frozenset({"S0X"}))
        request = f"sha256:{chance.randbytes(32).hex()}"
        seen = click.with_(request_digest=request)
        now_ms = chance.randrange(precomputation.since_ms, precomputation.until_ms)

        moment = precomputation.moment(seen, who, now_ms, key)

        assert moment
        write = as_shown.beside_of(call.approval, 0, call.evaluated, None)
        told, seal = precomputation.write.told(conn, keys, moment, write)
        change = deciding.decide(
            call.approval,
            seen,
            Approve(),
            who,
            now_ms=now_ms,
            policy_now=call.evaluated.policy_now,
            key=key,
        )
        assert isinstance(change, Change)
        reading = Loaded(
            call.approval, now_ms, remembered={}, stored=call.loaded.stored
        )
        what = as_shown.write_of(change, 0, call.evaluated)
        plain, after = moves(conn, keys, reading, what)
        assert seal == after.seal
        assert without_nonces(told) == without_nonces(to_json(plain))


def without_nonces(document: bytes) -> dict[str, object]:
    """Return what a script is told, without the seals that are never the same."""
    told = cast("dict[str, object]", json.loads(document))
    events = cast("list[str]", told["events"])
    return {**told, "events": [parts_of(one)[0] for one in events]}


async def test_a_call_is_approved_signed_and_runs(harness: ServiceHarness) -> None:
    """Its record is made when somebody asks for it, and is the one that stands."""
    harness.policy = load_policy(POLICY, "policy.yml")
    ref, (verdict,) = await harness.submit(("process_refund", {"amount": 12}))
    click = (await harness.click(verdict)).with_(request_digest="sha256:" + "a" * 64)
    await harness.reviews.read_as_of_now(click.approval)
    harness.reviews.as_shown.precompute(click.approval)

    assert await harness.reviews.as_shown.approve(click, ANA.with_(**PRESSED))

    known = harness.store.approvals._known  # pyright: ignore[reportPrivateUsage] - what it would compute a claim from
    remembered = known.latest(click.approval)
    assert remembered
    assert remembered.stored
    read = await harness.store.approvals.load(click.approval)
    assert read
    assert read.stored == remembered.stored
    item = read.approval.items[0]
    assert item.state is ItemState.AUTHORIZED
    assert item.decision
    assert item.decision.by == ANA.person
    assert item.votes[0].signed
    assert item.votes[0].signed.request == click.request_digest
    # The gateway verifies the signature.
    assert isinstance(await harness.agents.claim(claim_of(ref, verdict)), Claimed)


@pytest.mark.parametrize(
    "who",
    [
        EVE,
        CHLOE,
        # They asked for the call.
        person("U0DAN"),
        ANA.with_(account=AccountKind.UNKNOWN),
        ANA.with_(account=AccountKind.GUEST),
        ANA.with_(unknown_groups=frozenset({"S0X"})),
        ANA.with_(stands_in_for=(BEN,)),
        ANA.with_(name=""),
        ANA.with_(name='Ana "A" A'),
        ANA.with_(gesture=Gesture.MODAL),
    ],
    ids=range(10),
)
async def test_who_was_not_precomputed_is_decided_as_it_comes(
    harness: ServiceHarness, who: Reviewer
) -> None:
    click, _ = await precomputed(harness)
    pressed = who if who.gesture is Gesture.MODAL else who.with_(**PRESSED)

    assert not await harness.reviews.as_shown.approve(click, pressed)

    assert (await harness.item(f"{click.approval}.0")).state is ItemState.PENDING
    # Anybody else still finds it precomputed.
    assert await harness.reviews.as_shown.approve(click, BEN.with_(**PRESSED))


async def test_the_one_person_that_was_precomputed_is_no_other_one(
    harness: ServiceHarness,
) -> None:
    click, precomputation = await precomputed(harness, ALONE)
    assert precomputation.user == "U0ANA"

    assert not await harness.reviews.as_shown.approve(click, BEN.with_(**PRESSED))
    assert await harness.reviews.as_shown.approve(click, ANA.with_(**PRESSED))


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"action_hash": "x"}, {"index": 1}, {"is_shared": True}],
)
@pytest.mark.parametrize("display", ["", "sha256:1"])
async def test_another_click_is_decided_as_it_comes(
    harness: ServiceHarness, change: dict[str, object], display: str
) -> None:
    click, _ = await precomputed(harness)
    other = click.with_(display_digest=display, **change)

    assert not await harness.reviews.as_shown.approve(other, ANA.with_(**PRESSED))


async def test_only_moments_between_both_that_were_precomputed_are_known(
    harness: ServiceHarness,
) -> None:
    click, precomputation = await precomputed(harness)
    who, keyring = ANA.with_(**PRESSED), harness.store.keyring
    assert keyring
    key = keyring.signing(Role.BOT)

    def is_known(now_ms: int) -> bool:
        return precomputation.moment(click, who, now_ms, key) is not None

    assert is_known(precomputation.since_ms)
    assert is_known(precomputation.until_ms - 1)
    assert not is_known(precomputation.since_ms - 1)
    assert not is_known(precomputation.until_ms)
    # What was precomputed with a signature is not written without one.
    assert precomputation.moment(click, who, precomputation.since_ms, None) is None


REASON = POLICY.replace("send_email: {", "send_email: {requires_reason: [approve], ")
NOBODY = POLICY.replace("send_email: {", "send_email: {reviewers: [U0DAN], ")
TWO_OF_ONE_ROLE = POLICY.replace(
    "of: [support, senior], at_least: {senior: 1}", "of: [support]"
)


@pytest.mark.parametrize(
    ("tool", "policy"),
    [
        ("wire_money", POLICY),
        ("wire_money", TWO_OF_ONE_ROLE),
        ("send_email", REASON),
        # Who asked for it is the only one who is named.
        ("send_email", NOBODY),
    ],
)
async def test_what_no_single_click_approves_is_not_precomputed(
    harness: ServiceHarness, tool: str, policy: str
) -> None:
    harness.policy = load_policy(policy, "policy.yml")
    click = await shown(harness, (tool, {"amount": 1}))
    assert harness.reviews.as_shown.find(click.approval)

    harness.reviews.as_shown.precompute(click.approval)

    assert harness.reviews.as_shown.precomputed(click) is None


async def test_what_is_shown_again_as_it_was_is_still_precomputed(
    harness: ServiceHarness,
) -> None:
    click, precomputation = await precomputed(harness)
    kept = harness.reviews.as_shown
    took = kept.bytes

    await harness.reviews.read_as_of_now(click.approval)

    assert kept.precomputed(click) is precomputation
    assert kept.bytes == took
    assert await kept.approve(click, ANA.with_(**PRESSED))
    assert kept.bytes == 0


async def test_what_changed_before_it_is_shown_again_is_not_precomputed(
    harness: ServiceHarness,
) -> None:
    click, _ = await precomputed(harness)
    kept = harness.reviews.as_shown
    await harness.reviews.times.extend(click.approval, ANA)

    await harness.reviews.read_as_of_now(click.approval)

    assert kept.find(click.approval)
    assert kept.precomputed(click) is None


async def test_what_the_policy_says_otherwise_now_is_not_precomputed(
    harness: ServiceHarness,
) -> None:
    click, precomputation = await precomputed(harness)
    kept, loaded = harness.reviews.as_shown, precomputation.call.loaded
    evaluated = precomputation.call.evaluated
    decision = evaluated.policy_now.with_(reasons=("Something else.",))

    kept.keep(loaded, harness.policy, {0: replace(evaluated, policy_now=decision)})

    assert kept.find(click.approval)
    assert kept.precomputed(click) is None


async def test_another_policy_precomputes_anew(harness: ServiceHarness) -> None:
    click, _ = await precomputed(harness)
    harness.policy = load_policy(POLICY, "policy.yml")

    assert harness.reviews.as_shown.precomputed(click) is None
    assert not await harness.reviews.as_shown.approve(click, ANA.with_(**PRESSED))


async def test_a_call_that_somebody_voted_for_is_not_precomputed(
    harness: ServiceHarness,
) -> None:
    """Those who voted before are asked again, if theirs is not the last vote."""
    harness.policy = load_policy(POLICY, "policy.yml")
    click = await shown(harness, ("wire_money", {"amount": 1}))
    await harness.reviews.decide(click, Approve(), BEN)
    await harness.reviews.read_as_of_now(click.approval)

    harness.reviews.as_shown.precompute(click.approval)

    assert harness.reviews.as_shown.find(click.approval)
    assert harness.reviews.as_shown.precomputed(click) is None
