"""The page gets a person's view of the workspace, and only its own site may act."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from yarl import URL

from keyturn.sandbox.client import Person
from keyturn.sandbox.records import Suggestion
from keyturn.sandbox.server import Sandbox

APPROVALS = "C0APPROVALS"


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def test_the_state_has_everything_the_page_draws(client: Any) -> None:
    del client
    suggestion = Suggestion("Refund", "@keyturn refund order 78291", APPROVALS)
    async with Sandbox(suggestions=[suggestion]) as sandbox:
        state = await sandbox.person("U0ANA").state()

    assert state["team"] == {"id": "T0SANDBOX", "name": "Keyturn Sandbox"}
    assert state["me"]["real_name"] == "Ana Alves"
    assert state["bot"]["connected"] is False
    assert state["commands"] == ["/approvals"]
    assert [one["text"] for one in state["suggestions"]] == [suggestion.text]
    assert {group["id"] for group in state["usergroups"]} == {"S0SUPPORT", "S0SENIOR"}
    names = {channel["id"]: channel["name"] for channel in state["channels"]}
    assert names == {
        APPROVALS: "agent-approvals",
        "C0GENERAL": "general",
        "C0PRIVATE": "finance",
        "D0ANA": "Keyturn",
    }
    assert (state["views"], state["home"], state["notices"]) == ([], None, [])


async def test_events_tell_only_of_what_the_person_can_see(
    sandbox: Sandbox, session: aiohttp.ClientSession, ana: Person
) -> None:
    url = f"{sandbox.url}/sandbox/events"
    async with session.get(url, params={"user": "U0GUEST"}) as stream:
        first = json.loads((await stream.content.readline()).removeprefix(b"data: "))
        await stream.content.readline()
        await ana.say("C0GENERAL", "not for guests")
        await ana.say(APPROVALS, "for all")
        line = await asyncio.wait_for(stream.content.readline(), 30)

    assert stream.content_type == "text/event-stream"
    assert json.loads(line.removeprefix(b"data: "))["seq"] == first["seq"] + 2


async def test_an_unknown_person_sees_nothing(
    sandbox: Sandbox, session: aiohttp.ClientSession
) -> None:
    for path in ("state", "events"):
        async with session.get(f"{sandbox.url}/sandbox/{path}?user=U0NO") as response:
            assert response.status == 400
            assert (await response.json())["error"] == "user_not_found"


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({"Origin": "https://evil.example"}, "{}", "invalid_origin"),
        ({"Content-Type": "text/plain"}, "{}", "invalid_content_type"),
        ({}, "not json", "invalid_json"),
        ({}, "[]", "invalid_json"),
    ],
)
async def test_another_site_cannot_act_for_a_person(
    sandbox: Sandbox,
    session: aiohttp.ClientSession,
    headers: dict[str, str],
    body: str,
    expected: str,
) -> None:
    headers = {"Content-Type": "application/json", **headers}

    for path in ("act", "control"):
        url = f"{sandbox.url}/sandbox/{path}"
        async with session.post(url, data=body, headers=headers) as response:
            assert (await response.json())["error"] == expected


@pytest.mark.parametrize("address", ["127.0.0.2", "::1", "localhost"])
async def test_no_address_of_this_machine_is_reached_by_another_sites_name(
    session: aiohttp.ClientSession, address: str
) -> None:
    async with Sandbox(host=address) as sandbox:
        url, headers = f"{sandbox.url}/sandbox/control", {"Host": "evil.example"}
        async with session.post(url, json={"do": "calls"}, headers=headers) as response:
            assert response.status == 400
        async with session.post(url, json={"do": "calls"}) as response:
            assert response.status == 200


async def test_the_page_is_served_under_a_strict_policy(
    sandbox: Sandbox, session: aiohttp.ClientSession
) -> None:
    async with session.get(f"{sandbox.url}/") as page:
        policy = page.headers["Content-Security-Policy"]
        assert page.status == 200
        assert page.content_type == "text/html"
    assert policy.startswith("default-src 'self'")
    assert "unsafe" not in policy
    # A zero, half a letter and more characters than a name of a file has.
    odd = ("x%00", "%00", "app.js%00", "%ff", "a" * 3000, "..", "%2e%2e%00")
    for path in ("nothing.js", "..%2fserver.py", "%2fetc%2fpasswd", *odd):
        url = URL(f"{sandbox.url}/static/{path}", encoded=True)
        async with session.get(url) as missing:
            assert missing.status == 404, path
