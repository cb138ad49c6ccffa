"""A client reads what its token may do."""

from __future__ import annotations

import aiohttp

from keyturn.sandbox.server import Sandbox


async def test_answers_name_the_scopes_of_the_token() -> None:
    async with Sandbox() as sandbox:
        headers = {"Authorization": f"Bearer {sandbox.bot_token}"}
        url = f"{sandbox.api_url}auth.test"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, headers=headers) as answer,
        ):
            granted = answer.headers["X-OAuth-Scopes"].split(",")

    assert {"chat:write", "commands", "users:read"} <= set(granted)
