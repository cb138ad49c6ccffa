"""People decide over HTTP with their own token; an API key cannot decide."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx
import jwt
import pytest
from pydantic import ValidationError

from keyturn.gateway.api.decide import Decisions
from keyturn.gateway.api.person_tokens import AGAIN_S, FRESH_S, PersonTokens
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.clock import ReferenceClock
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.http_api import OPERATIONS, Scope
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.strict_json import JsonObject
from keyturn.gateway.protocol.wire import Claimed, TurnRef, Verdict
from keyturn.gateway.service_settings import PeopleSettings
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.api.issuer import EC, ISSUER, OTHER, RSA, SETTINGS, Issuer, jwk
from tests.panics import panic
from tests.service import standing
from tests.service.harness import ServiceHarness, claim_of


@dataclass
class Desk:
    """A gateway, and an issuer of the tokens with which people decide there."""

    stack: ApiStack
    issuer: Issuer

    def __post_init__(self) -> None:
        self.harness = self.stack.harness
        self.client = self.stack.client
        self.token = self.issuer.token
        self.trust()

    def trust(self, **changes: Any) -> None:
        """Take decisions of people with a token of the issuer."""
        self.tokens = PersonTokens(
            SETTINGS.model_copy(update=changes),
            now_s=self.harness.store.conn.clock.now_s,
            fetch=self.issuer.fetch,
            clock_s=lambda: self.issuer.now_s,
        )
        self.stack.api.decisions = Decisions(self.tokens, self.harness.reviews)

    async def ask(
        self, verdict: Verdict, token: str, decision: str = "approve", **more: Any
    ) -> httpx.Response:
        body = {
            "expected_version": 1,
            "action_hash": verdict.action_hash,
            "decision": decision,
            **more,
        }
        approval = verdict.item_id.partition(".")[0]
        async with self.client(token) as client:
            return await client.post(f"/v1/approvals/{approval}/decide", json=body)

    async def held(
        self, tool: str = "process_refund", thread: str = "t1"
    ) -> tuple[TurnRef, Verdict]:
        args: JsonObject = {"amount": 5}
        ref, (verdict,) = await self.harness.submit((tool, args), thread=thread)
        return ref, verdict

    async def state(self, verdict: Verdict) -> ItemState:
        return (await self.harness.item(verdict.item_id)).state


@pytest.fixture
async def desk(store: Store) -> AsyncGenerator[Desk]:
    async with serving(ServiceHarness(store)) as stack:
        yield Desk(stack, Issuer())


@pytest.mark.parametrize(
    ("key", "kid", "alg"), [(RSA, "a", "RS256"), (EC, "b", "ES256")]
)
async def test_a_person_approves(desk: Desk, key: Any, kid: str, alg: str) -> None:
    ref, verdict = await desk.held()
    token = desk.token(key=key, kid=kid, alg=alg)

    reply = await desk.ask(verdict, token, reason="seen")

    assert reply.status_code == 200
    assert reply.json()["outcome"] == "decided"
    claimed = await desk.harness.agents.claim(claim_of(ref, verdict))
    assert isinstance(claimed, Claimed)
    item = await desk.harness.item(verdict.item_id)
    assert item.votes[0].by.user == "U0ANA"
    log = desk.harness.store.audit(desk.harness.store.keys_of_tenant("default"))
    events = [event async for event in log.newest(20)]
    authorized = next(one for one in events if one.name == "item.authorized")
    assert authorized.actor.endswith("U0ANA")
    assert authorized.data["gesture"] == "api"
    assert authorized.request_digest.startswith("sha256:")
    assert token not in authorized.model_dump_json()


async def test_a_person_edits_rejects_and_responds(desk: Desk) -> None:
    (_, edited), (_, rejected), (_, answered) = [
        await desk.held(thread=f"t{n}") for n in range(3)
    ]
    token = desk.token()
    replies = [
        await desk.ask(edited, token, "edit", modified_args={"amount": 1}),
        await desk.ask(rejected, token, "reject", reason="no"),
        await desk.ask(answered, token, "respond", message="ask the bank"),
    ]

    assert [one.status_code for one in replies] == [200] * 3
    assert replies[0].json()["approval"]["calls"][0]["args"] == {"amount": 1}
    states = [await desk.state(one) for one in (edited, rejected, answered)]
    assert states == ["authorized", "rejected", "answered"]


@pytest.mark.parametrize("who", ["dan", "eve", "mallory"])
async def test_who_may_not_in_slack_may_not_here(desk: Desk, who: str) -> None:
    # Dan is the requester, Eve has no role, and Mallory is not in the settings.
    _, verdict = await desk.held()

    reply = await desk.ask(verdict, desk.token(who))

    assert reply.status_code == 403
    assert reply.json()["type"].endswith(":not-allowed")
    assert await desk.state(verdict) == "pending"


async def test_a_decision_is_about_what_was_read(desk: Desk) -> None:
    _, verdict = await desk.held()
    _, other = await desk.held(thread="t2")
    token = desk.token()
    stale = [
        await desk.ask(verdict, token, expected_version=2),
        await desk.ask(verdict, token, action_hash=other.action_hash),
    ]
    await desk.ask(other, token)
    settled = await desk.ask(other, token, "reject")
    await desk.harness.overdue(verdict.item_id.partition(".")[0])
    late = await desk.ask(verdict, token)

    assert [one.status_code for one in stale] == [409, 409]
    assert all(one.json()["type"].endswith(":stale") for one in stale)
    assert settled.json()["type"].endswith(":settled")
    assert late.json()["type"].endswith(":expired")
    assert await desk.state(other) == "authorized"


async def test_what_is_not_there_is_not_found(desk: Desk) -> None:
    _, verdict = await desk.held()
    never = verdict.with_(item_id=f"ap_default_{'0' * 32}.0")
    token = desk.token()
    replies = [
        await desk.ask(never, token),
        await desk.ask(never.with_(item_id="x.0"), token),
        await desk.ask(verdict, token, call=never.item_id),
    ]

    assert [one.status_code for one in replies] == [404] * 3


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_standing_approval_needs_slack(desk: Desk, decision: str) -> None:
    desk.harness.policy = standing.allowing_policy()
    asked = await standing.proposed(desk.harness)
    (item,) = asked.items
    body = {"expected_version": 1, "action_hash": item.action_hash, "reason": "no"}
    url = f"/v1/approvals/{asked.id}/decide"
    async with desk.client(desk.token()) as client:
        replies = [
            await client.post(url, json={**body, "decision": decision, **call})
            for call in ({}, {"call": item.id})
        ]

    assert [one.status_code for one in replies] == [404] * 2
    now = await standing.standing_now(desk.harness, asked)
    assert now.items[0].state is ItemState.PENDING


@pytest.mark.parametrize(
    ("decision", "more", "status"),
    [
        ("edit", {}, 400),
        ("approve", {"message": "x"}, 400),
        ("approve", {"expected_version": 0}, 400),
        ("approve", {"as": "U0BEN"}, 400),
        ("respond", {"message": ""}, 422),
    ],
)
async def test_a_decision_that_cannot_be_is_refused(
    desk: Desk, decision: str, more: dict[str, Any], status: int
) -> None:
    _, verdict = await desk.held()

    reply = await desk.ask(verdict, desk.token(), decision, **more)

    assert reply.status_code == status
    assert await desk.state(verdict) == "pending"


async def test_no_api_key_decides(desk: Desk) -> None:
    _, verdict = await desk.held()
    for key in (desk.stack.key(agents=["*"]), desk.stack.key(scopes=[*Scope]), "tk_x"):
        reply = await desk.ask(verdict, key)
        assert reply.status_code == 403
        assert "people do, in Slack" in reply.json()["detail"]
    desk.stack.api.decisions = None
    reply = await desk.ask(verdict, desk.stack.key())

    assert reply.json()["type"].endswith(":people-decide")
    assert await desk.state(verdict) == "pending"
    assert not [one for one in OPERATIONS if "decide" in one.name]


NOW = int(time.time())  # noqa: TID251 - likewise


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example.com/"},
        {"exp": NOW - 3600},
        {"iat": NOW - 13 * 3600},
        {"iat": NOW + 3600},
        {"sub": ""},
        {"key": OTHER},
        {"kid": "never"},
        {"key": EC, "alg": "ES256"},
    ],
)
async def test_a_bad_token_proves_nobody(desk: Desk, claims: dict[str, Any]) -> None:
    _, verdict = await desk.held()

    reply = await desk.ask(verdict, desk.token(**{"sub": "ana", **claims}))

    assert reply.status_code == 401
    assert reply.json()["type"].endswith(":no-token")
    assert await desk.state(verdict) == "pending"


async def test_a_token_by_a_shared_secret_proves_nobody(desk: Desk) -> None:
    _, verdict = await desk.held()
    secret = "s" * 32
    desk.issuer.documents[f"{ISSUER}keys"]["keys"].append(
        {"kty": "oct", "kid": "c", "k": "c3NzcyI", "alg": "HS256"}
    )
    tokens = [
        desk.token(key=secret, kid="c", alg="HS256"),
        desk.token(key=secret, kid="a", alg="HS256"),
        jwt.encode({"sub": "ana"}, key="", algorithm="none", headers={"kid": "a"}),
        "a.b.c",
        "x" * 5000,
        desk.token()[:-4] + "AAAA",
    ]
    for token in tokens:
        assert (await desk.ask(verdict, token)).status_code == 401
    assert await desk.state(verdict) == "pending"


async def test_an_address_counts_once_it_is_verified(desk: Desk) -> None:
    _, verdict = await desk.held()
    people = {"ana@x": SETTINGS.reviewers["ana"]}
    desk.trust(claim="email", reviewers=people)
    refused = [
        await desk.ask(verdict, desk.token(email="ana@x")),
        await desk.ask(verdict, desk.token(email="ana@x", email_verified="true")),
    ]
    taken = await desk.ask(verdict, desk.token(email="ana@x", email_verified=True))

    assert [one.status_code for one in refused] == [401, 401]
    assert taken.status_code == 200


async def test_new_keys_of_the_issuer_are_found_and_old_ones_end(desk: Desk) -> None:
    _, verdict = await desk.held()
    _, second = await desk.held(thread="t2")
    await desk.ask(verdict, desk.token())
    desk.issuer.documents[f"{ISSUER}keys"] = {"keys": [jwk(OTHER, "c")]}
    new = desk.token(key=OTHER, kid="c")
    too_early = await desk.ask(second, new)
    asked = len(desk.issuer.asked)
    await desk.ask(second, new)
    assert len(desk.issuer.asked) == asked
    desk.issuer.now_s += AGAIN_S
    taken = await desk.ask(second, new)
    old = await desk.ask(second, desk.token())

    assert too_early.status_code == 401
    assert taken.status_code == 200
    assert old.status_code == 401


async def test_keys_that_cannot_be_read_decide_nothing(desk: Desk) -> None:
    _, verdict = await desk.held()
    before = dict(desk.issuer.documents)
    desk.issuer.documents.clear()
    away = await desk.ask(verdict, desk.token())
    desk.issuer.documents.update(before)
    desk.issuer.now_s += AGAIN_S
    there = await desk.ask(verdict, desk.token())
    desk.issuer.documents.clear()
    _, second = await desk.held(thread="t2")
    desk.issuer.now_s += FRESH_S
    stale = await desk.ask(second, desk.token())

    assert (away.status_code, there.status_code) == (503, 200)
    assert stale.status_code == 503
    assert await desk.state(second) == "pending"


@pytest.mark.parametrize(
    "about",
    [
        {"issuer": "https://other.example.com/", "jwks_uri": f"{ISSUER}keys"},
        {"issuer": ISSUER},
    ],
)
async def test_the_issuers_document_is_its_own(desk: Desk, about: Any) -> None:
    desk.issuer.documents[f"{ISSUER}.well-known/openid-configuration"] = about
    _, verdict = await desk.held()

    assert (await desk.ask(verdict, desk.token())).status_code == 503


@pytest.mark.parametrize(
    ("listed", "status", "state"), [(True, 200, "authorized"), (False, 403, "pending")]
)
async def test_an_earlier_vote_counts_while_its_person_is_listed(
    desk: Desk, *, listed: bool, status: int, state: str
) -> None:
    _, verdict = await desk.held("wire_money")
    await desk.harness.decide(verdict, Approve())
    if not listed:
        # It is not known here whether Ana still has her role.
        desk.trust(reviewers={"chloe": SETTINGS.reviewers["chloe"]})
    reply = await desk.ask(verdict, desk.token("chloe"))

    assert reply.status_code == status
    assert await desk.state(verdict) == state


@pytest.mark.parametrize(
    "change",
    [
        {"issuer": "http://login.example.com"},
        {"team": "x"},
        {"reviewers": {}},
        {"reviewers": {"ana": {"user": "U0ANA", "usergroups": ["support"]}}},
    ],
)
def test_settings_that_trust_anybody_are_refused(change: dict[str, Any]) -> None:
    given = {**SETTINGS.model_dump(mode="json"), **change}
    with pytest.raises(ValidationError):
        PeopleSettings.model_validate(given)


async def test_unchanged_arguments_keep_order_and_number_types(desk: Desk) -> None:
    body = (
        '{"ref":{"agent":"support","thread":"t1","message_id":"m1"},"calls":[{"tool":'
        '"process_refund","tool_call_id":"c1","args":{"order":{"no":7.0,"at":"x"},'
        '"amount":5.0,"lines":[{"n":2.0,"a":1},1.0]}}]}'
    )
    async with desk.client() as client:
        submitted = await client.post("/v1/submit", content=body)
        verdict = Verdict.model_validate(submitted.json()[0])
        order = {"at": "x", "no": 7}
        changed = {"lines": [{"a": 1, "n": 3}, 1], "amount": 5, "order": order}
        await desk.ask(verdict, desk.token(), "edit", modified_args=changed)
        item = await desk.harness.item(verdict.item_id)
        about = {"item_id": item.id, "action_hash": verdict.action_hash}
        run = {"agent": "support", "thread": "t1"}
        question = {"kind": "keyturn.approval", **about}
        asked = {"run": run, "questions": [question]}
        answered = await client.post("/v1/answers", json=asked)

    args = answered.json()[0]["answer"]["args"]
    lines = '"lines": [{"n": 3, "a": 1}, 1.0]'
    kept = f'{{"order": {{"no": 7.0, "at": "x"}}, "amount": 5.0, {lines}}}'
    assert json.dumps(args) == kept
    assert item.action_hash == digest.action_hash(item.action)
    assert list(item.args) == ["amount", "lines", "order"]


async def test_nobody_waits_for_a_key_that_somebody_else_named(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer, tokens = desk.issuer, desk.tokens
    await tokens.reviewer(issuer.token())
    issuer.now_s += AGAIN_S
    asked, answers = asyncio.Event(), asyncio.Event()
    fetch = issuer.fetch

    async def slow(url: str) -> bytes:
        asked.set()
        await answers.wait()
        return await fetch(url)

    monkeypatch.setattr(tokens, "_fetch", slow)
    unknown = asyncio.create_task(tokens.reviewer(issuer.token(kid="never")))
    async with asyncio.timeout(30):
        await asked.wait()
        ana = await tokens.reviewer(issuer.token())
    answers.set()

    assert ana.user == "U0ANA"
    with pytest.raises(Refusal):
        await unknown


@pytest.mark.parametrize("ahead_s", [7200, -7200])
async def test_a_token_ends_by_the_clock_of_the_store(ahead_s: int) -> None:
    issuer, wall_s = Issuer(), ReferenceClock().now_s
    tokens = PersonTokens(
        SETTINGS, now_s=lambda: wall_s() + ahead_s, fetch=issuer.fetch
    )
    now = int(wall_s()) + ahead_s

    ana = await tokens.reviewer(issuer.token(iat=now, exp=now + 300))

    assert ana.user == "U0ANA"
    with pytest.raises(Refusal) as refused:
        await tokens.reviewer(issuer.token())
    assert "the clock of the store or the issuer is wrong" in refused.value.detail


ODD_KEYS: dict[str, object] = {
    "for encryption": jwk(RSA, "odd") | {"alg": "RSA-OAEP"},
    "X25519": {"kty": "OKP", "crv": "X25519", "x": "A" * 43, "kid": "odd"},
    "unknown kind": {"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA", "kid": "odd"},
    "numbers for texts": jwk(RSA, "odd") | {"n": 5, "e": 3},
    "no point of its curve": jwk(EC, "odd") | {"x": "AAAA"},
    "a text": "key",
}


@pytest.mark.parametrize("odd", ODD_KEYS)
async def test_a_key_that_cannot_be_used_is_skipped(
    desk: Desk, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = desk.issuer.documents[f"{ISSUER}keys"]
    found["keys"] = [ODD_KEYS[odd], *found["keys"], ODD_KEYS[odd]]

    by_rsa = await desk.tokens.reviewer(desk.token())
    by_ec = await desk.tokens.reviewer(desk.token("ben", key=EC, kid="b", alg="ES256"))

    assert (by_rsa.user, by_ec.user) == ("U0ANA", "U0BEN")
    assert "issuer_keys_unread" not in caplog.text


async def test_a_key_on_which_a_library_panics_is_skipped(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.issuer.documents[f"{ISSUER}keys"]["keys"].insert(0, jwk(RSA, "odd"))
    of_pyjwt = jwt.PyJWK

    def read(key: dict[str, Any]) -> jwt.PyJWK:
        return panic() if key["kid"] == "odd" else of_pyjwt(key)

    monkeypatch.setattr(jwt, "PyJWK", read)

    assert (await desk.tokens.reviewer(desk.token())).user == "U0ANA"
