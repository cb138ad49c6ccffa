"""Only the sandbox's own pages may act, on loopback and on any other interface."""

from __future__ import annotations

import aiohttp
import pytest

from keyturn.sandbox.serve import settings
from keyturn.sandbox.server import Sandbox

ROUTES = [
    "/",
    "/static/app.js",
    "/sandbox/state?user=U0ANA",
    "/sandbox/events?user=U0ANA",
]


@pytest.mark.parametrize("path", ROUTES)
async def test_another_sites_name_for_this_machine_is_refused(path: str) -> None:
    async with Sandbox() as sandbox, aiohttp.ClientSession() as session:
        headers = {"Host": "attacker.example"}
        async with session.get(sandbox.url + path, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"] == "invalid_host"


@pytest.mark.parametrize("path", ROUTES)
async def test_a_sandbox_on_every_interface_needs_its_token(path: str) -> None:
    async with Sandbox(host="0.0.0.0") as sandbox:  # noqa: S104 - the case under test
        async with aiohttp.ClientSession() as stranger:
            async with stranger.get(sandbox.url + path) as response:
                assert (await response.json())["error"] == "invalid_token"
            async with stranger.get(sandbox.url + "/?token=guessed") as response:
                assert (await response.json())["error"] == "invalid_token"
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as invited:
            async with invited.get(sandbox.page_url) as page:
                assert page.status == 200
                assert "token" not in str(page.url)
            async with invited.get(sandbox.url + path) as response:
                assert response.status == 200


async def test_scripted_people_have_the_token() -> None:
    async with Sandbox(host="0.0.0.0") as sandbox:  # noqa: S104 - the case under test
        ana = sandbox.person("U0ANA")
        await ana.say("#general", "hello")

        assert [one["text"] for one in await ana.messages("#general")] == ["hello"]


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])  # noqa: S104 - as above
async def test_the_command_warns_of_others(host: str, *, warns: bool) -> None:
    async with Sandbox(host=host) as sandbox:
        lines = settings(sandbox)

    assert lines[0].startswith("# Warning: other machines") == warns
    assert any(line.startswith("# A local Slack: ") for line in lines)
