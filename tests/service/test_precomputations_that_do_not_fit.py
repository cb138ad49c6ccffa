"""What changed since then, or is not as the samples were, is decided anew."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from pydantic_core import to_json

from tests.service.harness import ANA, POLICY, ServiceHarness, claim_of
from tests.service.showing import shown
from twokey.gateway.approvals import deciding
from twokey.gateway.approvals.changes import Change
from twokey.gateway.approvals.decisions import Approve, Gesture, Reviewer
from twokey.gateway.approvals.requirement import Vote
from twokey.gateway.policy.load import load_policy
from twokey.gateway.protocol.states import ItemState
from twokey.gateway.protocol.strict_json import JsonObject
from twokey.gateway.protocol.wire import Claimed
from twokey.gateway.service import as_shown
from twokey.gateway.service.precomputing import Precomputation
from twokey.gateway.store.atomic_write import Loaded
from twokey.gateway.store.audit_seals import parts_of
from twokey.gateway.store.next_version import moves
from twokey.gateway.store.store import Store
from twokey.gateway.trust.key_folder import KeyFolder, Role
from twokey.gateway.trust.keyring import Keyring

PRESSED = ANA.with_(gesture=Gesture.BUTTON)
REQUEST = "sha256:" + "a" * 64

GROUP = POLICY.replace(
    "{users: [U0ANA, U0BEN, U0DAN]}", "{usergroups: [S0X], users: [U0BEN]}"
)
ONE_IS_PREFIX = POLICY.replace("[U0ANA, U0BEN, U0DAN]", "[U0AN, U0BEN, U0ANA]")
NAMED = POLICY.replace(
    "process_refund: {tier: approve}",
    "process_refund: {tier: approve, same_by: args.order}",
)
COUNTED = POLICY.replace(
    "process_refund: {tier: approve}",
    """process_refund:
    tier: approve
    same_by: args.order
    raise: [{to: escalate, when: windows.refunded > 1e18, because: too much}]""",
) + (
    "windows:\n"
    "  refunded: {tools: process_refund, sum: args.amount, by: args.order,\n"
    "    within: 1h}\n"
)


@pytest.fixture
def harness(store: Store) -> ServiceHarness:
    return ServiceHarness(store)


def hostile(chance: random.Random, now_ms: int, until_ms: int) -> str:
    """Return a text that holds what a template could take for a place of its own."""
    pieces = [
        "Somebody of the precomputation 0",
        "Somebody of the precomputation 1",
        "UPRECOMPUTED0",
        "UPRECOMPUTED1",
        "TPRECOMPUTED0",
        "TPRECOMPUTED1",
        "U0ANA",
        "U0BEN",
        "U0AN",
        f"sha256:{'1' * 64}",
        f"sha256:{'2' * 64}",
        "AQEB" * 21 + "AQ==",
        "AgIC" * 21 + "Ag==",
        str(now_ms),
        str(until_ms),
        str(until_ms - 1),
        str(now_ms - 3001),
        "0017",
        "名前",
        "👩‍👩",
        "it's {0} %s $1 \\1 <@U0ANA> &amp;",
        " ",
        "/",
        "1",
    ]
    return "".join(chance.choices(pieces, k=chance.randrange(1, 6)))


def comparable(document: bytes) -> dict[str, object]:
    """Return what a script is told, without the seals that are never the same."""
    told = cast("dict[str, object]", json.loads(document))
    events = cast("list[str]", told["events"])
    return {**told, "events": [parts_of(one)[0] for one in events]}


@pytest.mark.parametrize(
    "policy",
    [POLICY, GROUP, ONE_IS_PREFIX, NAMED, COUNTED],
    ids=["users", "group", "prefix", "named", "counted"],
)
async def test_whatever_texts_stand_in_it(harness: ServiceHarness, policy: str) -> None:
    """Arguments, names and ids that look like samples and moments change nothing."""
    harness.policy = load_policy(policy, "policy.yml")
    chance = random.Random(policy)  # noqa: S311 - the same calls in each run
    conn, keys = harness.store.conn, harness.store.keys_of_tenant("default")
    keyring = harness.store.keyring
    assert keyring
    key, checked = keyring.signing(Role.BOT), 0
    for turn in range(15):
        now_ms = await conn.now_ms(keys.outbox)
        end_ms = now_ms + 3_600_000
        calls: list[tuple[str, JsonObject]] = [
            (
                "process_refund",
                {
                    "amount": chance.choice([1, turn]),
                    "moment": chance.choice([now_ms, end_ms, end_ms - 1]),
                    "order": "o" + hostile(chance, now_ms, end_ms),
                    hostile(chance, now_ms, end_ms): hostile(chance, now_ms, end_ms),
                },
            )
            for _ in range(chance.randrange(1, 4))
        ]
        click = (await shown(harness, *calls)).with_(request_digest=REQUEST)
        harness.reviews.as_shown.precompute(click.approval)
        precomputation = harness.reviews.as_shown.precomputed(click)
        assert precomputation
        call = precomputation.call
        for _ in range(10):
            who = a_person(chance, precomputation, policy, turn)
            at_ms = chance.choice(
                [
                    precomputation.since_ms,
                    precomputation.until_ms - 1,
                    chance.randrange(precomputation.since_ms, precomputation.until_ms),
                ]
            )
            request = f"sha256:{chance.choice(['1', '2', 'a']) * 64}"
            seen = click.with_(request_digest=request)
            moment = precomputation.moment(seen, who, at_ms, key)
            assert moment
            checked += 1
            beside = as_shown.beside_of(call.approval, 0, call.evaluated, None)
            told, seal = precomputation.write.told(conn, keys, moment, beside)
            change = deciding.decide(
                call.approval,
                seen,
                Approve(),
                who,
                now_ms=at_ms,
                policy_now=call.evaluated.policy_now,
                key=key,
            )
            assert isinstance(change, Change)
            what = as_shown.write_of(change, 0, call.evaluated)
            stored = call.loaded.stored
            reading = Loaded(call.approval, at_ms, remembered={}, stored=stored)
            plain, after = moves(conn, keys, reading, what)
            assert seal == after.seal
            assert comparable(told) == comparable(to_json(plain))
        # And one of them in the store: what is read there has the seals it needs.
        who = a_person(chance, precomputation, policy, turn)
        assert await harness.reviews.as_shown.approve(click, who)
        item = await harness.item(f"{click.approval}.0")
        assert item.state is ItemState.AUTHORIZED
        assert item.votes_now[0].by == who.person
    assert checked == 150


def a_person(
    chance: random.Random, precomputation: Precomputation, policy: str, turn: int
) -> Reviewer:
    """Return somebody who may approve, by a name that looks like another text."""
    now_ms, until_ms = precomputation.since_ms, precomputation.until_ms
    users = ["U0BEN"]
    if policy == ONE_IS_PREFIX:
        users = ["U0AN", "U0ANA", "U0BEN"]
    elif policy != GROUP:
        users = ["U0ANA", "U0BEN"]
    else:
        users += [f"U{turn}", "UPRECOMPUTED0", "UPRECOMPUTED1", "U0ANA", str(now_ms)]
    return PRESSED.with_(
        user=chance.choice(users),
        team=chance.choice(["T0", "TPRECOMPUTED0", "TPRECOMPUTED1", "U0ANA"]),
        name=hostile(chance, now_ms, until_ms).replace("\\", "").replace("‍", ""),
        usergroups=frozenset({"S0X"} if policy == GROUP else ()),
        membership_age_ms=chance.choice([0, 1, 3_001, 7_013, 4_012, 600_000]),
    )


@pytest.mark.parametrize(
    "name",
    ['a"b', "a\\b", "a\u202eb", "a\u0000b", "a\u2028b", "a\nb", "a\ud800b", "\u200f"],
)
async def test_a_name_that_is_not_written_as_it_is(
    harness: ServiceHarness, name: str
) -> None:
    click = (await shown(harness)).with_(request_digest=REQUEST)
    harness.reviews.as_shown.precompute(click.approval)
    assert harness.reviews.as_shown.precomputed(click)

    assert not await harness.reviews.as_shown.approve(click, PRESSED.with_(name=name))


async def test_a_key_that_is_rotated_between_signs_the_long_way(
    harness: ServiceHarness, tmp_path: Path
) -> None:
    """Its name stands in what was precomputed, and another key's signature is wrong."""
    looked_s = [0.0]
    keyring = Keyring(tmp_path, makes=Role, clock=lambda: looked_s[0])
    keyring.make_missing(datetime.fromtimestamp(0, UTC))
    harness.store.keyring = keyring
    ref, (verdict,) = await harness.submit(("process_refund", {"amount": 12}))
    click = (await harness.click(verdict)).with_(request_digest=REQUEST)
    await harness.reviews.read_as_of_now(click.approval)
    harness.reviews.as_shown.precompute(click.approval)
    precomputation = harness.reviews.as_shown.precomputed(click)
    assert precomputation
    before = keyring.signing(Role.BOT)

    KeyFolder(tmp_path, Role.BOT).rotate(datetime.fromtimestamp(1, UTC))
    looked_s[0] += 60

    after = keyring.signing(Role.BOT)
    assert after.public.id != before.public.id
    assert not await harness.reviews.as_shown.approve(click, PRESSED)
    # Nothing was written, and what was precomputed fits the key of then alone.
    now_ms = precomputation.since_ms
    assert precomputation.moment(click, PRESSED, now_ms, before)
    assert precomputation.moment(click, PRESSED, now_ms, after) is None
    await harness.reviews.decide(click, Approve(), PRESSED)
    assert isinstance(await harness.agents.claim(claim_of(ref, verdict)), Claimed)


async def test_what_is_encrypted_is_not_precomputed(harness: ServiceHarness) -> None:
    """Each sample has other bytes of the same text, so nothing can be learned."""
    harness.store.conn.encrypts = True
    click = (await shown(harness)).with_(request_digest=REQUEST)

    harness.reviews.as_shown.precompute(click.approval)

    assert harness.reviews.as_shown.find(click.approval)
    assert harness.reviews.as_shown.precomputed(click) is None
    assert not await harness.reviews.as_shown.approve(click, PRESSED)


async def test_what_was_precomputed_plainly_is_not_written_once_it_is_encrypted(
    harness: ServiceHarness,
) -> None:
    click = (await shown(harness)).with_(request_digest=REQUEST)
    harness.reviews.as_shown.precompute(click.approval)
    assert harness.reviews.as_shown.precomputed(click)

    harness.store.conn.encrypts = True

    assert not await harness.reviews.as_shown.approve(click, PRESSED)
    assert (await harness.item(f"{click.approval}.0")).state is ItemState.PENDING


async def test_who_voted_meanwhile(harness: ServiceHarness) -> None:
    """A vote of another process makes a version for which nothing is precomputed."""
    click = (await shown(harness)).with_(request_digest=REQUEST)
    harness.reviews.as_shown.precompute(click.approval)
    other = ServiceHarness(harness.store, harness.policy)
    assert await other.reviews.decide(click, Approve(), PRESSED.with_(user="U0BEN"))

    assert not await harness.reviews.as_shown.approve(click, PRESSED)
    votes: tuple[Vote, ...] = (await harness.item(f"{click.approval}.0")).votes
    assert [one.by.user for one in votes] == ["U0BEN"]
