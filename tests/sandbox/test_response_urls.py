"""A response URL takes five posts in thirty minutes, into one conversation."""

from typing import Any

import aiohttp
import pytest

from keyturn.sandbox.client import Person
from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import card
from tests.sandbox.bolt_app import RunningApp

APPROVALS = "C0APPROVALS"


@pytest.fixture
async def url(http_app: RunningApp, ana: Person) -> str:
    """Return the response URL of a click on a card."""
    http_app.note_clicks("approve")

    posted = await http_app.client.chat_postMessage(
        channel=APPROVALS, text="card", blocks=card("one")
    )
    await ana.click(APPROVALS, posted["ts"], "approve")
    return str(http_app.heard[0]["response_url"])


async def respond(url: str, **body: Any) -> tuple[int, str | None]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body) as response,
    ):
        return response.status, (await response.json()).get("error")


async def test_a_response_is_private(sandbox: Sandbox, ana: Person, url: str) -> None:
    await respond(url, text="for you")
    await respond(url, text="for all", response_type="in_channel")

    ben = sandbox.person("U0BEN")
    mine = [m["text"] for m in await ana.messages(APPROVALS)]
    assert mine == ["card", "for you", "for all"]
    assert [m["text"] for m in await ben.messages(APPROVALS)] == ["card", "for all"]


async def test_a_response_replaces_or_deletes(ana: Person, url: str) -> None:
    await respond(url, text="new", replace_original=True)
    (replaced,) = await ana.messages(APPROVALS)
    await respond(url, delete_original=True)
    again = await respond(url, text="newer", replace_original=True)

    assert (replaced["text"], replaced["blocks"]) == ("new", None)
    assert await ana.messages(APPROVALS) == []
    assert again == (200, None), "it is not said that nothing was replaced"


async def test_a_sixth_or_late_post_is_refused(sandbox: Sandbox, url: str) -> None:
    for _ in range(5):
        assert await respond(url, text="t") == (200, None)

    assert await respond(url, text="t") == (404, "used_url")
    sandbox.clock.advance(30 * 60 + 1)
    assert await respond(url, text="t") == (404, "expired_url")
    unknown = f"{sandbox.url}/response/nope"
    assert await respond(unknown, text="t") == (404, "expired_url")
