"""A panic of a library is answered like any other failure of a request."""

from __future__ import annotations

import httpx
import pytest

from tests.api.api_stack import ApiStack
from tests.panics import apanic


@pytest.mark.parametrize("place", ["_health", "_admit"])
async def test_a_request_that_panics_is_answered(
    stack: ApiStack, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(stack.api, place, apanic)
    async with httpx.AsyncClient(base_url=stack.url) as client:
        reply = await client.get("/healthz")

    assert reply.status_code == 500
    assert reply.json()["detail"] == "The gateway failed; see its log."
