"""The keys of an issuer of tokens are read without holding up others."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.issuer import SETTINGS, Issuer
from twokey.gateway.api.person_tokens import AGAIN_S, PersonTokens
from twokey.gateway.api.refusals import Refusal
from twokey.gateway.reference_clock import ReferenceClock


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
