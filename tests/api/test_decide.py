"""People decide over HTTP with their own token; an API key cannot decide."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import jwt
import pytest
from pydantic import ValidationError

from keyturn.gateway.api.decide import Decisions
from keyturn.gateway.api.person_tokens import AGAIN_S, FRESH_S, PersonTokens
from keyturn.gateway.approvals.decisions import Approve
from keyturn.gateway.protocol import digest
from keyturn.gateway.protocol.http_api import OPERATIONS, Scope
from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.protocol.wire import Claimed, TurnRef, Verdict
from keyturn.gateway.service_settings import PeopleSettings
from keyturn.gateway.store.store import Store
from tests.api.api_stack import ApiStack, serving
from tests.api.issuer import EC, ISSUER, OTHER, RSA, SETTINGS, Issuer, jwk
from tests.service import standing
from tests.service.harness import ANA, ServiceHarness, claim_of


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
async def stack(store: Store, issuer: Issuer) -> AsyncGenerator[ApiStack]:
    async with serving(ServiceHarness(store)) as found:
        trust(found, issuer)
        yield found


def trust(stack: ApiStack, issuer: Issuer, **changes: Any) -> None:
    """Take decisions of people with a token of an issuer."""
    tokens = PersonTokens(
        SETTINGS.model_copy(update=changes),
        now_s=stack.harness.store.conn.clock.now_s,
        fetch=issuer.fetch,
        clock_s=lambda: issuer.now_s,
    )
    stack.api.decisions = Decisions(tokens, stack.harness.reviews)


async def ask(
    stack: ApiStack,
    verdict: Verdict,
    token: str,
    decision: str = "approve",
    **more: Any,
) -> httpx.Response:
    approval = verdict.item_id.partition(".")[0]
    body = {
        "expected_version": 1,
        "action_hash": verdict.action_hash,
        "decision": decision,
        **more,
    }
    async with stack.client(token) as client:
        return await client.post(f"/v1/approvals/{approval}/decide", json=body)


async def held(
    stack: ApiStack, tool: str = "process_refund", thread: str = "t1"
) -> tuple[TurnRef, Verdict]:
    ref, (verdict,) = await stack.harness.submit((tool, {"amount": 5}), thread=thread)
    return ref, verdict


async def state(stack: ApiStack, verdict: Verdict) -> ItemState:
    return (await stack.harness.item(verdict.item_id)).state


@pytest.mark.parametrize(
    ("key", "kid", "alg"), [(RSA, "a", "RS256"), (EC, "b", "ES256")]
)
async def test_a_person_approves(
    stack: ApiStack, issuer: Issuer, key: Any, kid: str, alg: str
) -> None:
    ref, verdict = await held(stack)
    token = issuer.token(key=key, kid=kid, alg=alg)

    reply = await ask(stack, verdict, token, reason="seen")

    assert reply.status_code == 200
    assert reply.json()["outcome"] == "decided"
    claimed = await stack.harness.agents.claim(claim_of(ref, verdict))
    assert isinstance(claimed, Claimed)
    item = await stack.harness.item(verdict.item_id)
    assert item.votes[0].by.user == "U0ANA"
    log = stack.harness.store.audit(stack.harness.store.keys_of_tenant("default"))
    events = [event async for event in log.newest(20)]
    authorized = next(one for one in events if one.name == "item.authorized")
    assert authorized.actor.endswith("U0ANA")
    assert authorized.data["gesture"] == "api"
    assert authorized.request_digest.startswith("sha256:")
    assert token not in authorized.model_dump_json()


async def test_a_person_edits_rejects_and_responds(
    stack: ApiStack, issuer: Issuer
) -> None:
    (_, edited), (_, rejected), (_, answered) = [
        await held(stack, thread=f"t{n}") for n in range(3)
    ]
    token = issuer.token()
    replies = [
        await ask(stack, edited, token, "edit", modified_args={"amount": 1}),
        await ask(stack, rejected, token, "reject", reason="no"),
        await ask(stack, answered, token, "respond", message="ask the bank"),
    ]

    assert [one.status_code for one in replies] == [200] * 3
    assert replies[0].json()["approval"]["calls"][0]["args"] == {"amount": 1}
    states = [await state(stack, one) for one in (edited, rejected, answered)]
    assert states == ["authorized", "rejected", "answered"]


@pytest.mark.parametrize("who", ["dan", "eve"])
async def test_who_may_not_in_slack_may_not_here(
    stack: ApiStack, issuer: Issuer, who: str
) -> None:
    _, verdict = await held(stack)  # Dan is the requester, and Eve has no role

    reply = await ask(stack, verdict, issuer.token(who))

    assert reply.status_code == 403
    assert reply.json()["type"].endswith(":not-allowed")
    assert await state(stack, verdict) == "pending"


async def test_a_decision_is_about_what_was_read(
    stack: ApiStack, issuer: Issuer
) -> None:
    _, verdict = await held(stack)
    _, other = await held(stack, thread="t2")
    token = issuer.token()
    stale = [
        await ask(stack, verdict, token, expected_version=2),
        await ask(stack, verdict, token, action_hash=other.action_hash),
    ]
    await ask(stack, other, token)
    settled = await ask(stack, other, token, "reject")
    await stack.harness.overdue(verdict.item_id.partition(".")[0])
    late = await ask(stack, verdict, token)

    assert [one.status_code for one in stale] == [409, 409]
    assert all(one.json()["type"].endswith(":stale") for one in stale)
    assert settled.json()["type"].endswith(":settled")
    assert late.json()["type"].endswith(":expired")
    assert await state(stack, other) == "authorized"


async def test_what_is_not_there_is_not_found(stack: ApiStack, issuer: Issuer) -> None:
    _, verdict = await held(stack)
    never = verdict.with_(item_id=f"ap_default_{'0' * 32}.0")
    token = issuer.token()
    replies = [
        await ask(stack, never, token),
        await ask(stack, never.with_(item_id="x.0"), token),
        await ask(stack, verdict, token, call=never.item_id),
    ]

    assert [one.status_code for one in replies] == [404] * 3


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_a_standing_approval_is_given_in_slack_alone(
    stack: ApiStack, issuer: Issuer, decision: str
) -> None:
    stack.harness.policy = standing.allowing_policy()
    asked = await standing.proposed(stack.harness)
    (item,) = asked.items
    body = {"expected_version": 1, "action_hash": item.action_hash, "reason": "no"}
    url = f"/v1/approvals/{asked.id}/decide"
    async with stack.client(issuer.token()) as client:
        replies = [
            await client.post(url, json={**body, "decision": decision, **call})
            for call in ({}, {"call": item.id})
        ]

    assert [one.status_code for one in replies] == [404] * 2
    now = await standing.standing_now(stack.harness, asked)
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
    stack: ApiStack, issuer: Issuer, decision: str, more: dict[str, Any], status: int
) -> None:
    _, verdict = await held(stack)

    reply = await ask(stack, verdict, issuer.token(), decision, **more)

    assert reply.status_code == status
    assert await state(stack, verdict) == "pending"


async def test_no_api_key_decides(stack: ApiStack) -> None:
    _, verdict = await held(stack)
    for key in (stack.key(agents=["*"]), stack.key(scopes=[*Scope]), "tk_x"):
        reply = await ask(stack, verdict, key)
        assert reply.status_code == 403
        assert "people do, in Slack" in reply.json()["detail"]
    stack.api.decisions = None
    reply = await ask(stack, verdict, stack.key())

    assert reply.json()["type"].endswith(":people-decide")
    assert await state(stack, verdict) == "pending"
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
async def test_a_token_that_does_not_hold_proves_nobody(
    stack: ApiStack, issuer: Issuer, claims: dict[str, Any]
) -> None:
    _, verdict = await held(stack)

    reply = await ask(stack, verdict, issuer.token(**{"sub": "ana", **claims}))

    assert reply.status_code == 401
    assert reply.json()["type"].endswith(":no-token")
    assert await state(stack, verdict) == "pending"


async def test_a_token_by_a_shared_secret_proves_nobody(
    stack: ApiStack, issuer: Issuer
) -> None:
    _, verdict = await held(stack)
    secret = "s" * 32
    issuer.documents[f"{ISSUER}keys"]["keys"].append(
        {"kty": "oct", "kid": "c", "k": "c3NzcyI", "alg": "HS256"}
    )
    tokens = [
        issuer.token(key=secret, kid="c", alg="HS256"),
        issuer.token(key=secret, kid="a", alg="HS256"),
        jwt.encode({"sub": "ana"}, key="", algorithm="none", headers={"kid": "a"}),
        "a.b.c",
        "x" * 5000,
        issuer.token()[:-4] + "AAAA",
    ]
    for token in tokens:
        assert (await ask(stack, verdict, token)).status_code == 401
    assert await state(stack, verdict) == "pending"


async def test_nobody_else_is_a_reviewer(stack: ApiStack, issuer: Issuer) -> None:
    _, verdict = await held(stack)

    reply = await ask(stack, verdict, issuer.token("mallory"))

    assert reply.json()["type"].endswith(":not-allowed")
    assert await state(stack, verdict) == "pending"


async def test_an_address_counts_once_it_is_verified(
    stack: ApiStack, issuer: Issuer
) -> None:
    _, verdict = await held(stack)
    people = {"ana@x": SETTINGS.reviewers["ana"]}
    trust(stack, issuer, claim="email", reviewers=people)
    refused = [
        await ask(stack, verdict, issuer.token(email="ana@x")),
        await ask(stack, verdict, issuer.token(email="ana@x", email_verified="true")),
    ]
    taken = await ask(stack, verdict, issuer.token(email="ana@x", email_verified=True))

    assert [one.status_code for one in refused] == [401, 401]
    assert taken.status_code == 200


async def test_new_keys_of_the_issuer_are_found_and_old_ones_end(
    stack: ApiStack, issuer: Issuer
) -> None:
    _, verdict = await held(stack)
    _, second = await held(stack, thread="t2")
    await ask(stack, verdict, issuer.token())
    issuer.documents[f"{ISSUER}keys"] = {"keys": [jwk(OTHER, "c")]}
    new = issuer.token(key=OTHER, kid="c")
    too_early = await ask(stack, second, new)
    asked = len(issuer.asked)
    await ask(stack, second, new)
    assert len(issuer.asked) == asked
    issuer.now_s += AGAIN_S
    taken = await ask(stack, second, new)
    old = await ask(stack, second, issuer.token())

    assert too_early.status_code == 401
    assert taken.status_code == 200
    assert old.status_code == 401


async def test_keys_that_cannot_be_read_decide_nothing(
    stack: ApiStack, issuer: Issuer
) -> None:
    _, verdict = await held(stack)
    before = dict(issuer.documents)
    issuer.documents.clear()
    away = await ask(stack, verdict, issuer.token())
    issuer.documents.update(before)
    issuer.now_s += AGAIN_S
    there = await ask(stack, verdict, issuer.token())
    issuer.documents.clear()
    _, second = await held(stack, thread="t2")
    issuer.now_s += FRESH_S
    stale = await ask(stack, second, issuer.token())

    assert (away.status_code, there.status_code) == (503, 200)
    assert stale.status_code == 503
    assert await state(stack, second) == "pending"


@pytest.mark.parametrize(
    "about",
    [
        {"issuer": "https://other.example.com/", "jwks_uri": f"{ISSUER}keys"},
        {"issuer": ISSUER},
    ],
)
async def test_the_issuers_document_is_its_own(
    stack: ApiStack, issuer: Issuer, about: Any
) -> None:
    issuer.documents[f"{ISSUER}.well-known/openid-configuration"] = about
    _, verdict = await held(stack)

    assert (await ask(stack, verdict, issuer.token())).status_code == 503


async def test_a_vote_of_somebody_unlisted_is_asked_about(
    stack: ApiStack, issuer: Issuer
) -> None:
    _, verdict = await held(stack, "wire_money")
    trust(stack, issuer, reviewers={"chloe": SETTINGS.reviewers["chloe"]})
    click = await stack.harness.click(verdict)
    for _ in range(2):
        await stack.harness.reviews.decide(click, Approve(), ANA)
    for _ in range(2):
        await ask(stack, verdict, issuer.token("chloe"))

    # It is not known here whether Ana still has her role.
    assert await state(stack, verdict) == "pending"


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


async def test_unchanged_arguments_keep_the_order_and_number_types_of_the_request(
    stack: ApiStack, issuer: Issuer
) -> None:
    body = (
        '{"ref":{"agent":"support","thread":"t1","message_id":"m1"},"calls":[{"tool":'
        '"process_refund","tool_call_id":"c1","args":{"order":{"no":7.0,"at":"x"},'
        '"amount":5.0,"lines":[{"n":2.0,"a":1},1.0]}}]}'
    )
    async with stack.client() as client:
        submitted = await client.post("/v1/submit", content=body)
        verdict = Verdict.model_validate(submitted.json()[0])
        order = {"at": "x", "no": 7}
        changed = {"lines": [{"a": 1, "n": 3}, 1], "amount": 5, "order": order}
        await ask(stack, verdict, issuer.token(), "edit", modified_args=changed)
        item = await stack.harness.item(verdict.item_id)
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
