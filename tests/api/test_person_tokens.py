"""The keys of an issuer of tokens are read without holding up others."""

from __future__ import annotations

import asyncio
from typing import Any

import jwt
import pytest

from keyturn.gateway.api.person_tokens import AGAIN_S, PersonTokens
from keyturn.gateway.api.refusals import Refusal
from keyturn.gateway.clock import ReferenceClock
from tests.api.issuer import EC, ISSUER, RSA, SETTINGS, Issuer, jwk
from tests.panics import panic


async def test_nobody_waits_for_a_key_that_somebody_else_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer = Issuer()
    tokens = PersonTokens(
        SETTINGS,
        now_s=ReferenceClock().now_s,
        fetch=issuer.fetch,
        clock_s=lambda: issuer.now_s,
    )
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
async def test_the_clock_of_the_store_says_whether_a_token_has_ended(
    ahead_s: int,
) -> None:
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
    odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer()
    keys = issuer.documents[f"{ISSUER}keys"]["keys"]
    issuer.documents[f"{ISSUER}keys"]["keys"] = [ODD_KEYS[odd], *keys, ODD_KEYS[odd]]
    tokens = PersonTokens(SETTINGS, now_s=ReferenceClock().now_s, fetch=issuer.fetch)

    by_rsa = await tokens.reviewer(issuer.token())
    by_ec = await tokens.reviewer(issuer.token("ben", key=EC, kid="b", alg="ES256"))

    assert (by_rsa.user, by_ec.user) == ("U0ANA", "U0BEN")
    assert "issuer_keys_unread" not in caplog.text


async def test_a_key_on_which_a_library_panics_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    issuer = Issuer()
    keys = issuer.documents[f"{ISSUER}keys"]["keys"]
    issuer.documents[f"{ISSUER}keys"]["keys"] = [jwk(RSA, "odd"), *keys]
    of_pyjwt = jwt.PyJWK

    def read(key: dict[str, Any]) -> jwt.PyJWK:
        return panic() if key["kid"] == "odd" else of_pyjwt(key)

    monkeypatch.setattr(jwt, "PyJWK", read)
    tokens = PersonTokens(SETTINGS, now_s=ReferenceClock().now_s, fetch=issuer.fetch)

    assert (await tokens.reviewer(issuer.token())).user == "U0ANA"
