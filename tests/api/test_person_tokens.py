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
